"""The Hugging Face hub: found out in seconds whether it can be reached, before its client retries for a minute."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tightfit.activity import activity, is_shown
from tightfit.messages import msg
from tightfit.system.processes import SharedSetting

_SECONDS = 5.0  # for an answer of any kind
_FORGET = 60.0  # seconds after which a hub that did not answer is asked again
_failed: dict[str, float] = {}
"""When each endpoint did not answer; one that has answered is not asked again."""
_answered: set[str] = set()


class HubUnreachable(Exception):
    """The hub did not answer, and what was asked for is not in its cache."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


@contextlib.contextmanager
def hub_access(name: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Inside, something is loaded from the hub, with its progress bars if it is not in the cache; or from a folder.

    If the hub cannot be reached, the cache is used. One of the `files` is in the cache if that has what is loaded.
    """
    if Path(name).exists() or _is_offline():
        yield
        return
    cached = any(_is_cached(name, file) for file in files)
    if _is_reachable():
        with contextlib.nullcontext() if cached or not is_shown() else _downloading(name):
            yield
        return
    if files and not cached:
        raise HubUnreachable(_host())
    with _offline.changed():
        try:
            yield
        except Exception as error:  # each library has its own
            if cached:
                raise
            raise HubUnreachable(_host()) from error


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _is_cached(name: str, file: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, file), str)
    except HFValidationError:
        return False


def _is_reachable() -> bool:
    from huggingface_hub import constants

    endpoint, now = constants.ENDPOINT, time.monotonic()
    if endpoint in _answered:
        return True
    if now - _failed.get(endpoint, -_FORGET) < _FORGET:
        return False
    if _answers_in_time(endpoint):
        _answered.add(endpoint)
        return True
    _failed[endpoint] = time.monotonic()
    return False


def _answers_in_time(endpoint: str) -> bool:
    """Any answer counts, an error too. In a thread, since looking up a name has no time limit."""
    from huggingface_hub import get_session

    found = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # every transport has its own errors
            get_session().head(endpoint, timeout=_SECONDS)
            found.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found.is_set()


def _host() -> str:
    from huggingface_hub import constants

    return urlsplit(constants.ENDPOINT).netloc


@contextlib.contextmanager
def _downloading(name: str) -> Iterator[None]:
    with activity(msg("loading {name} from the hub", name=name), own_output=True), _progress_bars.changed():
        yield


def _use_cache_only() -> Callable[[], None]:
    from huggingface_hub import constants

    settings = [constants, *(sys.modules[name] for name in ("datasets.config",) if sys.modules.get(name))]
    for module in settings:
        module.__dict__["HF_HUB_OFFLINE"] = True

    def restore() -> None:
        for module in settings:
            module.__dict__["HF_HUB_OFFLINE"] = False

    return restore


def _show_progress_bars() -> Callable[[], None]:
    """The hub client's own, which are hidden otherwise, unless the user has switched them off."""
    import huggingface_hub.utils
    from huggingface_hub import constants

    utils: Any = huggingface_hub.utils  # its functions are imported when they are used, which mypy does not see
    if constants.HF_HUB_DISABLE_PROGRESS_BARS or not utils.are_progress_bars_disabled():
        return lambda: None
    utils.enable_progress_bars()
    return lambda: utils.disable_progress_bars()


_offline = SharedSetting(_use_cache_only)
_progress_bars = SharedSetting(_show_progress_bars)
