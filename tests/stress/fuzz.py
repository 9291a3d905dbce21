"""Fuzzing: data files, job files and records with random mutations are read, or rejected in one sentence."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tightfit.cli.planning import planned_recipe
from tightfit.data.rows import load_rows
from tightfit.data.split import split_rows
from tightfit.errors import TightfitError
from tightfit.job import Job, read_job_file
from tightfit.runs.record import load_run
from tightfit.strategies.recipe import Recipe
from tightfit.tasks.text_classification import TextClassification
from tightfit.training.checkpoints import find_corruption, read_manifest

_CSV = 'label,review\n1,clean quiet room\n0,"dirty, loud"\n1,"a ""quoted"" word"\n0,房间很脏\n1,好\n0,bad bed\n'
_ROWS = [{"label": number % 2, "review": f"row {number} 房间", "stars": number} for number in range(6)]
_JSON = json.dumps(_ROWS, ensure_ascii=False)
_JSONL = "\n".join(json.dumps(row) for row in _ROWS) + "\n"
_TSV = _CSV.replace(",", "\t")
_YAML = (
    "model: some/model\ndata: a.csv\nbatch-size: 8\nepochs: 1.5\ntext: [a, b]\n"
    "use:\n- micro-batch:size=4\n- gradient-checkpointing\n"
)
_PLAN = (
    "plan:\n  version: 1\n  budget: 4096MB\n  device: cpu\n  peak_bytes: 9000\n  seconds_per_epoch: 1.5\n"
    "  result: same\n  data:\n    a.csv: 0123456789abcdef (1.0 KiB)\n"
)
_NASTY = (
    b"\0", b"\xff", b"\xfe", b'"', b",", b"\n", b"\r", b"\t", b"{", b"}", b"[", b"]", b":", b"- ", b"&a", b"*a", b"!!",
    b"\xef\xbb\xbf", b"\\ud800", b"null", b"1e999", b"-", b"NaN", b"'", b"%", b"#", b"|\n", b"\x1b[31m", b"\xf0\x9f",
    b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 2000,
)  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three random mutations: bytes changed, removed, repeated, swapped or inserted."""
    for _ in range(rng.randint(1, 3)):
        at, end = sorted(rng.randint(0, len(content)) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif kind == 1:
            content = content[:at] + rng.choice(_NASTY) + content[at:]
        elif kind == 2:
            content = content[:at] + content[end:]
        elif kind == 3:
            content = content[:end] + content[at:]
        elif kind == 4:
            content = content[:at]
        else:
            content = content[end:] + content[:end]
    return content


def _read_data(path: Path) -> None:
    rows, _ = load_rows(str(path), TextClassification())
    TextClassification().find_labels(rows, will_be_split=True)
    split_rows(rows, None, 0, TextClassification().strata(rows.dataset))


def _read_job(path: Path) -> None:
    values, use = read_job_file(path)
    Recipe.parse(use)
    Job(**values)


def _read_plan(path: Path) -> None:
    planned_recipe(path, Job(model="m", data="d"), [])


def _read_record(path: Path) -> None:
    load_run(path.parent)


def _read_manifest(path: Path) -> None:
    read_manifest(path.parent)
    find_corruption(path.parent)


class Fuzz:
    """Reads mutated files of every kind."""

    def __init__(self, folder: Path, record: str, manifest: str, seed: int = 0) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        folder.mkdir()
        self.kinds: dict[str, tuple[str, bytes, Callable[[Path], None]]] = {
            "csv": ("fuzz.csv", _CSV.encode(), _read_data),
            "csv gb18030": ("fuzz.csv", _CSV.encode("gb18030"), _read_data),
            "csv utf-16": ("fuzz.csv", _CSV.encode("utf-16"), _read_data),
            "tsv": ("fuzz.tsv", _TSV.encode(), _read_data),
            "json": ("fuzz.json", _JSON.encode(), _read_data),
            "jsonl": ("fuzz.jsonl", _JSONL.encode(), _read_data),
            "yaml": ("fuzz.yaml", _YAML.encode(), _read_job),
            "plan": ("fuzz.yaml", (_YAML + _PLAN).encode(), _read_plan),
            "run.json": ("run.json", record.encode(), _read_record),
            "manifest.json": ("manifest.json", manifest.encode(), _read_manifest),
        }

    def run(self, files: int) -> dict[str, object]:
        """Read this many mutated files, the kinds in rotation."""
        outcomes: Counter[str] = Counter()
        unhandled: list[str] = []
        for number in range(files):
            kind = list(self.kinds)[number % len(self.kinds)]
            outcomes[self._read(kind, unhandled)] += 1
        return {"files": files, "read": outcomes["read"], "rejected": outcomes["rejected"], "unhandled": unhandled}

    def _read(self, kind: str, unhandled: list[str]) -> str:
        name, content, read = self.kinds[kind]
        path = self.folder / name
        path.write_bytes(mutated(content, self.rng))
        try:
            read(path)
        except TightfitError as error:
            if len(str(error).splitlines()) > 1:
                unhandled.append(f"{kind}: several lines: {str(error)[:200]}")
            return "rejected"
        except Exception as error:
            path.rename(self.folder / f"unhandled-{len(unhandled)}-{name}")
            unhandled.append(f"{kind}: {type(error).__name__}: {str(error)[:200]}")
            return "unhandled"
        return "read"
