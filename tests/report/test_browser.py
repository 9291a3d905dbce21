"""The report in Chromium: nothing is cut off on a phone, and nothing is fetched from the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tightfit.report.html import write_report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")]
CONTROL = "http://control.invalid/image.png"
FRAME = """<body><img src="{control}">
<iframe id="it" src="{page}" style="border: 0; width: {width}px; height: 900px"></iframe>
<script>
onload = () => {{
  const page = document.getElementById("it").contentDocument.documentElement;
  const cut = [...page.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth);
  document.body.textContent = "WIDTHS " + page.scrollWidth + " " + page.clientWidth + " CUT " +
    cut.map(each => each.querySelector("tr").textContent.trim()).join(" | ") + " END";
}};
</script>"""


@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_fits_the_window_and_fetches_nothing(trained: Path, tmp_path: Path, width: int, language: str) -> None:
    page = write_report([trained, trained], tmp_path / "several.html", language)
    opened = page.read_text("utf-8").replace("<details>", "<details open>")
    page.write_text(opened, "utf-8")
    frame, log = tmp_path / "frame.html", tmp_path / "net.json"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width, control=CONTROL), "utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    flags += [
        f"--log-net-log={log}",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--disable-background-networking",
        "--hide-scrollbars",
    ]
    done = subprocess.run([CHROMIUM, *flags, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    seen = re.search(r"WIDTHS (\d+) (\d+)", done.stdout)
    assert seen, done.stdout[-500:]
    assert int(seen[1]) <= int(seen[2]) == width
    assert "CUT  END" in done.stdout, "a table is wider than the window"
    assert _fetched(log) == {CONTROL}, (
        "only the frame around the report makes a request, which shows that requests are logged"
    )


def _fetched(log: Path) -> set[str]:
    """Addresses that a page requested; requests of the browser itself have no initiator."""
    events = json.loads(log.read_text("utf-8", errors="replace"))["events"]
    requests = [event["params"] for event in events if "url" in event.get("params", {})]
    return {each["url"] for each in requests if each["url"].startswith("http") and _is_from_a_page(each)}


def _is_from_a_page(request: dict[str, str]) -> bool:
    return request.get("initiator", "not an origin") != "not an origin"
