"""Showing: a page in the browser, where somebody sits before a screen."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path


def open_page(page: Path) -> bool:
    """Whether it was opened; in a pipe, over ssh or on a server it is not."""
    if not somebody_is_there():
        return False
    try:
        return webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False


def somebody_is_there() -> bool:
    """A terminal, and a display that is not at the other end of a line."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
