"""A hub that cannot be reached is one sentence within seconds; one that can shows its progress bars."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A port that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


class Hub(BaseHTTPRequestHandler):
    """The files of one model, as the hub answers."""

    def __init__(self, folder: Path, *args: object) -> None:
        self.folder = folder
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._content()

    def do_GET(self) -> None:
        self.wfile.write(self._content())

    def _content(self) -> bytes:
        prefix, _, name = self.path.partition("/resolve/main/")
        file = self.folder / name.partition("?")[0]
        if prefix != "/someone/tiny" or not name or not file.is_file():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return b""
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        return content

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def call(endpoint: str, cache: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "NO_PROXY": "*",
        "TQDM_POSITION": "-1",
    }  # bars also without a terminal
    environment.pop("HF_HUB_OFFLINE")
    command = [sys.executable, "-m", "tightfit", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("server", [silent_server, nobody])
@pytest.mark.parametrize("verb", ["estimate", "plan", "train"])
def test_an_unreachable_hub_is_one_sentence_within_seconds(
    server: object, verb: str, reviews: Path, tmp_path: Path
) -> None:
    with server() as endpoint:  # type: ignore[operator]
        start = time.monotonic()
        done = call(endpoint, tmp_path / "cache", verb, "--model", "hfl/chinese-macbert-large", "--data", reviews)
        seconds = time.monotonic() - start
    assert done.returncode == 2
    host = endpoint.removeprefix("http://")
    assert done.stderr.startswith(f"tightfit: 'hfl/chinese-macbert-large' is no local folder, and {host} cannot be")
    assert all(way in done.stderr for way in ("HF_ENDPOINT", "ModelScope", "folder"))
    assert done.stderr.count("\n") == 1
    assert seconds < 10


def test_an_unreachable_hub_of_data_sets_is_one_sentence(tiny_model: Path, tmp_path: Path) -> None:
    with nobody() as endpoint:
        done = call(endpoint, tmp_path / "cache", "estimate", "--model", tiny_model, "--data", "someone/reviews")
    assert done.returncode == 2
    assert "'someone/reviews' is no local file, and 127.0.0.1" in done.stderr
    assert "Retry" not in done.stderr


@pytest.mark.slow
def test_a_download_shows_its_bars_and_the_cache_serves_without_the_hub(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    cache, out = tmp_path / "cache", tmp_path / "run"
    job = ["--model", "someone/tiny", "--data", reviews, "--device", "cpu", "--max-length", 32, "--max-steps", 1]
    with hub(tiny_model) as endpoint:
        done = call(endpoint, cache, "train", *job, "--out", out)
        assert done.returncode == 0, done.stderr
        assert "loading someone/tiny from the hub …" in done.stderr
        assert "model.safetensors" in done.stderr
        assert "100%" in done.stderr
        quiet = call(endpoint, tmp_path / "other cache", "estimate", *job, "--json")
        assert quiet.stderr == ""
    done = call(endpoint, cache, "estimate", *job)  # nobody answers any more
    assert done.returncode == 0, done.stderr
    assert "Retry" not in done.stderr
    assert "from the hub" not in done.stderr
