"""Bad inputs: everything a user can get wrong, given to the command line.

Each has to end in one sentence and exit code 2, without a traceback and without an incomplete run folder; or in what
its case states, such as a damaged checkpoint that is skipped for an earlier one.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cli.test_app import BAD_FILES, BAD_OPTIONS, GOOD_FILE
from stress.fixtures import Workspace, same_bits

from tightfit.cli import app
from tightfit.training.checkpoints import MANIFEST, latest_checkpoint, read_manifest, write_manifest

Arguments = list[object]


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def is_clean_error(self) -> bool:
        lines = [line for line in self.err.splitlines() if not line.endswith(" …")]  # without what was under way
        one_line = len(lines) == 1 and len(lines[0]) < 1200
        return self.code == 2 and not self.out and one_line and "Traceback" not in self.err


def call(arguments: Arguments) -> CommandResult:
    """Run a command in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["tightfit", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app.main()
    except SystemExit as end:
        return CommandResult(int(end.code or 0), out.getvalue(), err.getvalue())
    except Exception:
        return CommandResult(70, out.getvalue(), traceback.format_exc())
    finally:
        sys.argv = before
    return CommandResult(0, out.getvalue(), err.getvalue())


MORE_FILES: dict[str, tuple[str, bytes]] = {
    "a name with an escape": ("bad.csv", b"\x1b[31mlabel,te\nxt\n1,a\n"),
    "truncated utf-16": ("bad.csv", GOOD_FILE.encode("utf-16")[:-1]),
    "utf-8 BOM, invalid bytes": ("bad.csv", b"\xef\xbb\xbflabel,review\n1,\xff\xff\n"),
    "only NUL bytes": ("bad.csv", b"\0" * 4096),
    "only newlines": ("bad.csv", b"\n\r\n\n"),
    "an image": ("bad.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8),
    "one very long line": ("bad.csv", b"a" * 2_000_000),
    "a thousand columns": ("bad.csv", ",".join(f"c{n}" for n in range(1000)).encode() + b"\n" + b"1," * 999 + b"1\n"),
    "broken JSON": ("bad.json", b'[{"text": "a", "label": 1}, {"text": '),
    "a JSON number": ("bad.json", b"17"),
    "a list of numbers": ("bad.json", b"[1, 2, 3]"),
    "deeply nested JSON": ("bad.json", b"[" * 100_000),
    "a number of 5000 digits": ("bad.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n"),
    "JSON lines with a broken one": ("bad.jsonl", b'{"text": "a", "label": 1}\n{"text"\n'),
    "JSON lines of lists": ("bad.jsonl", b"[1]\n[2]\n"),
    "texts that are lists": ("bad.jsonl", b'{"text": ["a"], "label": 1}\n{"text": ["b"], "label": 0}\n'),
    "labels that are objects": ("bad.jsonl", b'{"text": "a", "label": {}}\n{"text": "b", "label": {}}\n'),
    "not a Parquet file": ("bad.parquet", b"PAR1 and no more"),
    "an empty Parquet file": ("bad.parquet", b""),
    "a zip": ("bad.csv.zip", b"PK\x03\x04"),
}
JOB_FILES: dict[str, bytes] = {
    "a list": b"- a\n- b\n",
    "a broken list": b"model: [\n",
    "a tab": b"model:\n\t- a\n",
    "an unknown setting": b"modle: a\ndata: b\n",
    "a string for a number": b"model: a\ndata: b\nepochs: many\n",
    "a strategy that is a number": b"model: a\ndata: b\nuse: [1]\n",
    "Python in YAML": b"model: !!python/object/apply:os.system ['touch executed']\ndata: b\n",
    "billion laughs": b"a: &a [x,x]\nb: &b [*a,*a]\nmodel: *b\ndata: b\n",
    "deep nesting": b"model: " + b"[" * 3000,
    "binary data": b"\xff\xfe\0\0model",
    "empty": b"",
    "a model that is a list": b"model: [a]\ndata: b\n",
}


class BadInputs:
    """The bad inputs, as variations of a run that works."""

    def __init__(self, workspace: Workspace, seed: int = 0) -> None:
        self.workspace, self.rng = workspace, random.Random(seed)
        self.folder = workspace.folder / "inputs"
        self.folder.mkdir()
        (self.folder / "good.csv").write_text(GOOD_FILE, "utf-8")
        self.out = self.folder / "run"
        workspace.train("finished", save_every="3 steps")

    def cases(self) -> dict[str, Callable[[], bool]]:
        """A check for every input by name."""
        return {
            **{f"file: {name}": self._file("bad.csv", text.encode()) for name, (text, _) in BAD_FILES.items()},
            **{f"file: {name}": self._file(*content) for name, content in MORE_FILES.items()},
            **{f"options: {name}": self._rejected([*self._train(), *more]) for name, (more, _) in BAD_OPTIONS.items()},
            **{f"interval: '{text}'": self._rejected([*self._train(), "--save-every", text]) for text in _INTERVALS},
            **{f"job file: {name}": self._job_file(content) for name, content in JOB_FILES.items()},
            **{f"model: {name}": self._model(change) for name, change in _MODELS.items()},
            **{f"run: {name}": self._run(change, arguments) for name, (change, arguments) in _RUNS.items()},
            **{f"checkpoint: truncated, number {n}": self._checkpoint(self._truncate) for n in range(8)},
            "checkpoint: a byte changed": self._checkpoint(self._change_a_byte),
            "checkpoint: a missing file": self._checkpoint(lambda path: path.unlink()),
            "checkpoints: all damaged": self._all_damaged,
            "checkpoint: a malicious pickle": self._malicious_checkpoint,
        }

    def _train(self, data: Path | None = None, model: Path | None = None) -> Arguments:
        data, model = data or self.folder / "good.csv", model or self.workspace.model
        return ["train", "--model", model, "--data", data, "--out", self.out, "--device", "cpu", "--max-length", 32]

    def _rejected(self, arguments: Arguments) -> Callable[[], bool]:
        return lambda: call(arguments).is_clean_error and not self.out.exists()

    def _file(self, name: str, content: bytes) -> Callable[[], bool]:
        def check() -> bool:
            path = self.folder / name
            path.write_bytes(content)
            return self._rejected(self._train(path))()

        return check

    def _job_file(self, content: bytes) -> Callable[[], bool]:
        def check() -> bool:
            path = self.folder / "job.yaml"
            path.write_bytes(content)
            rejected = self._rejected(["train", path, "--out", self.out, "--device", "cpu"])()
            return rejected and not Path("executed").exists()

        return check

    def _model(self, change: Callable[[Path], None]) -> Callable[[], bool]:
        def check() -> bool:
            model = self.folder / "model"
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(self.workspace.model, model)
            change(model)
            return self._rejected(self._train(model=model))()

        return check

    def _run(self, change: Callable[[Path], None], arguments: Arguments) -> Callable[[], bool]:
        """A finished run whose folder was tampered with."""

        def check() -> bool:
            run = self._copy()
            change(run)
            return call([run if argument is _RUN else argument for argument in arguments]).is_clean_error

        return check

    def _checkpoint(self, damage: Callable[[Path], None]) -> Callable[[], bool]:
        """A run that was killed after its last checkpoint, which is damaged: it resumes from the one before."""

        def check() -> bool:
            run = self._copy()
            (run / "run.json").unlink()
            last = latest_checkpoint(run)
            damage(self.rng.choice(sorted(last.iterdir())))
            resumed = self.workspace.train(f"inputs/{run.name}", resume=True)
            noted = any(f"{last.name} is skipped" in note for note in resumed.notes)
            return noted and same_bits(self.workspace.weights(f"inputs/{run.name}"), self.workspace.weights("finished"))

        return check

    def _all_damaged(self) -> bool:
        run = self._copy()
        (run / "run.json").unlink()
        for weights in run.glob("checkpoint-*/model.safetensors"):
            self._truncate(weights)
        return call(["train", "--resume", "--out", run, "--device", "cpu"]).is_clean_error

    def _malicious_checkpoint(self) -> bool:
        """A pickle that would run code, with a correct checksum."""
        run, executed = self._copy(), self.folder / "executed"
        (run / "run.json").unlink()
        for checkpoint in {path.parent for path in run.glob("checkpoint-*/optimizer.pt")}:
            torch.save({"state": _MaliciousPickle(executed)}, checkpoint / "optimizer.pt")
            manifest = read_manifest(checkpoint)
            (checkpoint / MANIFEST).unlink()
            write_manifest(checkpoint, manifest)
        result = call(["train", "--resume", "--out", run, "--device", "cpu", "--json"])
        return result.is_clean_error and not executed.exists()

    def _copy(self) -> Path:
        run = self.folder / f"copy-{len(list(self.folder.glob('copy-*')))}"
        shutil.copytree(self.workspace.folder / "finished", run)
        return run

    def _truncate(self, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: self.rng.randrange(len(content))])

    def _change_a_byte(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = self.rng.randrange(len(content))
        content[at] ^= 1 << self.rng.randrange(8)
        path.write_bytes(bytes(content))


class _MaliciousPickle:
    """Creates a file when it is unpickled."""

    def __init__(self, executed: Path) -> None:
        self.executed = executed

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.executed,)


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def _without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            for path in folder.glob(name):
                path.unlink()

    return change


def _truncated(name: str, share: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return change


def _custom_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.Model"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('this ran')")


def _shards_outside(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    names = {"weight_map": {"bert.pooler.dense.bias": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))


def _malicious_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _MaliciousPickle(folder / "executed")}, folder / "pytorch_model.bin")


_RUN = object()
_INTERVALS = ("often", "0 steps", "-3 minutes", "1.5 steps", "10 parsecs", "")
_MODELS: dict[str, Callable[[Path], None]] = {
    "config missing": _without("config.json"),
    "config truncated": _truncated("config.json", 0.5),
    "config of an unknown model": _write("config.json", b'{"model_type": "nothing"}'),
    "config is a list": _write("config.json", b"[]"),
    "tokenizer missing": _without("tokenizer*", "vocab*", "special*"),
    "tokenizer truncated": _truncated("tokenizer.json", 0.5),
    "weights missing": _without("model.safetensors"),
    "weights truncated": _truncated("model.safetensors", 0.7),
    "weights truncated in their header": _truncated("model.safetensors", 0.01),
    "weights empty": _write("model.safetensors", b""),
    "weights with an oversized header": _write("model.safetensors", b"\xff" * 8 + b"{}"),
    "weights outside the folder": _shards_outside,
    "an invalid weight index": _write("model.safetensors.index.json", b'{"weight_map": [1]}'),
    "custom code": _custom_code,
    "a malicious pickle": _malicious_weights,
}
_RUNS: dict[str, tuple[Callable[[Path], None], Arguments]] = {
    "record truncated": (_truncated("run.json", 0.5), ["predict", _RUN, "text"]),
    "record is a list": (_write("run.json", b"[[]]"), ["predict", _RUN, "text"]),
    "record missing": (_without("run.json"), ["evaluate", _RUN]),
    "weights missing": (_without("model.safetensors"), ["predict", _RUN, "text"]),
    "weights truncated": (_truncated("model.safetensors", 0.5), ["predict", _RUN, "text"]),
    "config missing": (_without("config.json"), ["predict", _RUN, "text"]),
    "split truncated": (_truncated("split/train.npy", 0.5), ["evaluate", _RUN]),
    "invalid split": (_write("split/validation.json", b"[]"), ["evaluate", _RUN]),
    "job truncated": (_write("job.yaml", b"model: ["), ["train", "--resume", "--out", _RUN]),
    "job missing": (_without("job.yaml"), ["train", "--resume", "--out", _RUN]),
}
