"""Inputs: everything a user may get wrong, given to the command line itself.

Each has to end in one sentence and exit code 2, without a traceback and without a half-written run folder; or in what
is stated for it, such as a damaged checkpoint that is passed over for an earlier one.
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
from app.test_app import BAD_FILES, BAD_WORDS, GOOD_FILE
from stress.fixtures import Ground, same_bits

from tightfit.cli import app
from tightfit.training.checkpoints import latest_checkpoint

Strings = list[object]


@dataclass(frozen=True)
class Answer:
    """How the command line ended."""

    code: int
    out: str
    err: str

    @property
    def is_a_sentence(self) -> bool:
        one_line = len(self.err.strip().splitlines()) == 1 and len(self.err) < 1200
        return self.code == 2 and not self.out and one_line and "Traceback" not in self.err


def call(words: Strings) -> Answer:
    """The command line in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["tightfit", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app.main()
    except SystemExit as end:
        return Answer(int(end.code or 0), out.getvalue(), err.getvalue())
    except Exception:
        return Answer(70, out.getvalue(), traceback.format_exc())
    finally:
        sys.argv = before
    return Answer(0, out.getvalue(), err.getvalue())


MORE_FILES: dict[str, tuple[str, bytes]] = {
    "a name with an escape": ("bad.csv", b"\x1b[31mlabel,te\nxt\n1,a\n"),
    "utf-16 cut in half": ("bad.csv", GOOD_FILE.encode("utf-16")[:-1]),
    "utf-8 mark, other bytes": ("bad.csv", b"\xef\xbb\xbflabel,review\n1,\xff\xff\n"),
    "only zeros": ("bad.csv", b"\0" * 4096),
    "only line ends": ("bad.csv", b"\n\r\n\n"),
    "a picture": ("bad.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8),
    "one endless line": ("bad.csv", b"a" * 2_000_000),
    "a thousand columns": ("bad.csv", ",".join(f"c{n}" for n in range(1000)).encode() + b"\n" + b"1," * 999 + b"1\n"),
    "broken JSON": ("bad.json", b'[{"text": "a", "label": 1}, {"text": '),
    "a JSON number": ("bad.json", b"17"),
    "a list of numbers": ("bad.json", b"[1, 2, 3]"),
    "deep JSON": ("bad.json", b"[" * 100_000),
    "a number of 5000 digits": ("bad.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n"),
    "JSON lines with a broken one": ("bad.jsonl", b'{"text": "a", "label": 1}\n{"text"\n'),
    "JSON lines of lists": ("bad.jsonl", b"[1]\n[2]\n"),
    "texts that are lists": ("bad.jsonl", b'{"text": ["a"], "label": 1}\n{"text": ["b"], "label": 0}\n'),
    "labels that are objects": ("bad.jsonl", b'{"text": "a", "label": {}}\n{"text": "b", "label": {}}\n'),
    "no Parquet at all": ("bad.parquet", b"PAR1 and no more"),
    "an empty Parquet file": ("bad.parquet", b""),
    "a zip": ("bad.csv.zip", b"PK\x03\x04"),
}
JOB_FILES: dict[str, bytes] = {
    "a list": b"- a\n- b\n",
    "a broken list": b"model: [\n",
    "a tab": b"model:\n\t- a\n",
    "an unknown setting": b"modle: a\ndata: b\n",
    "a text for a number": b"model: a\ndata: b\nepochs: many\n",
    "a strategy that is a number": b"model: a\ndata: b\nuse: [1]\n",
    "Python in YAML": b"model: !!python/object/apply:os.system ['touch sprung']\ndata: b\n",
    "a million laughs": b"a: &a [x,x]\nb: &b [*a,*a]\nmodel: *b\ndata: b\n",
    "deep": b"model: " + b"[" * 3000,
    "bytes": b"\xff\xfe\0\0model",
    "nothing": b"",
    "a model that is a list": b"model: [a]\ndata: b\n",
}


class Inputs:
    """Bad inputs, one after the other, beside a training that works."""

    def __init__(self, ground: Ground, seed: int = 0) -> None:
        self.ground, self.chance = ground, random.Random(seed)
        self.folder = ground.folder / "inputs"
        self.folder.mkdir()
        (self.folder / "good.csv").write_text(GOOD_FILE, "utf-8")
        self.out = self.folder / "run"
        ground.train("finished", save_every="3 steps")

    def cases(self) -> dict[str, Callable[[], bool]]:
        """Every input by name, with what has to become of it."""
        return {
            **{f"file: {name}": self._file("bad.csv", text.encode()) for name, (text, _) in BAD_FILES.items()},
            **{f"file: {name}": self._file(*content) for name, content in MORE_FILES.items()},
            **{f"words: {name}": self._refused([*self._train(), *words]) for name, (words, _) in BAD_WORDS.items()},
            **{f"interval: '{text}'": self._refused([*self._train(), "--save-every", text]) for text in _INTERVALS},
            **{f"job file: {name}": self._job_file(content) for name, content in JOB_FILES.items()},
            **{f"model: {name}": self._model(change) for name, change in _MODELS.items()},
            **{f"run: {name}": self._run(change, words) for name, (change, words) in _RUNS.items()},
            **{f"checkpoint: cut off, number {n}": self._checkpoint(self._cut_off) for n in range(8)},
            "checkpoint: a byte changed": self._checkpoint(self._change_a_byte),
            "checkpoint: a file gone": self._checkpoint(lambda path: path.unlink()),
            "checkpoints: all damaged": self._all_damaged,
            "checkpoint: a trap in a pickle": self._trap,
        }

    def _train(self, data: Path | None = None, model: Path | None = None) -> Strings:
        data, model = data or self.folder / "good.csv", model or self.ground.model
        return ["train", "--model", model, "--data", data, "--out", self.out, "--device", "cpu", "--max-length", 32]

    def _refused(self, words: Strings) -> Callable[[], bool]:
        return lambda: call(words).is_a_sentence and not self.out.exists()

    def _file(self, name: str, content: bytes) -> Callable[[], bool]:
        def check() -> bool:
            path = self.folder / name
            path.write_bytes(content)
            return self._refused(self._train(path))()

        return check

    def _job_file(self, content: bytes) -> Callable[[], bool]:
        def check() -> bool:
            path = self.folder / "job.yaml"
            path.write_bytes(content)
            refused = self._refused(["train", path, "--out", self.out, "--device", "cpu"])()
            return refused and not Path("sprung").exists()

        return check

    def _model(self, change: Callable[[Path], None]) -> Callable[[], bool]:
        def check() -> bool:
            model = self.folder / "model"
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(self.ground.model, model)
            change(model)
            return self._refused(self._train(model=model))()

        return check

    def _run(self, change: Callable[[Path], None], words: Strings) -> Callable[[], bool]:
        """A finished run whose folder was tampered with."""

        def check() -> bool:
            run = self._copy()
            change(run)
            return call([run if word is _RUN else word for word in words]).is_a_sentence

        return check

    def _checkpoint(self, damage: Callable[[Path], None]) -> Callable[[], bool]:
        """A run that was killed behind its last checkpoint, which is damaged: the one before is taken."""

        def check() -> bool:
            run = self._copy()
            (run / "run.json").unlink()
            last = latest_checkpoint(run)
            damage(self.chance.choice(sorted(last.iterdir())))
            again = self.ground.train(f"inputs/{run.name}", resume=True)
            said = any("passed over" in note for note in again.notes)
            return said and same_bits(self.ground.weights(f"inputs/{run.name}"), self.ground.weights("finished"))

        return check

    def _all_damaged(self) -> bool:
        run = self._copy()
        (run / "run.json").unlink()
        for weights in run.glob("checkpoint-*/model.safetensors"):
            self._cut_off(weights)
        return call(["train", "--resume", "--out", run, "--device", "cpu"]).is_a_sentence

    def _trap(self) -> bool:
        """A pickle that would run code, with its checksum set right."""
        from tightfit.training.checkpoints import MANIFEST, read_manifest, write_manifest

        run, sprung = self._copy(), self.folder / "sprung"
        (run / "run.json").unlink()
        for checkpoint in {path.parent for path in run.glob("checkpoint-*/optimizer.pt")}:
            torch.save({"state": _Trap(sprung)}, checkpoint / "optimizer.pt")
            about = read_manifest(checkpoint)
            (checkpoint / MANIFEST).unlink()
            write_manifest(checkpoint, about)
        answer = call(["train", "--resume", "--out", run, "--device", "cpu", "--json"])
        return answer.is_a_sentence and not sprung.exists()

    def _copy(self) -> Path:
        run = self.folder / f"copy-{len(list(self.folder.glob('copy-*')))}"
        shutil.copytree(self.ground.folder / "finished", run)
        return run

    def _cut_off(self, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: self.chance.randrange(len(content))])

    def _change_a_byte(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = self.chance.randrange(len(content))
        content[at] ^= 1 << self.chance.randrange(8)
        path.write_bytes(bytes(content))


class _Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sprung,)


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


def _cut(name: str, share: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return change


def _own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.Model"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('this ran')")


def _shards_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    names = {"weight_map": {"bert.pooler.dense.bias": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(names))


def _pickled_trap(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Trap(folder / "sprung")}, folder / "pytorch_model.bin")


_RUN = object()
_INTERVALS = ("often", "0 steps", "-3 minutes", "1.5 steps", "10 parsecs", "")
_MODELS: dict[str, Callable[[Path], None]] = {
    "config gone": _without("config.json"),
    "config cut off": _cut("config.json", 0.5),
    "config of nothing known": _write("config.json", b'{"model_type": "nothing"}'),
    "config a list": _write("config.json", b"[]"),
    "tokenizer gone": _without("tokenizer*", "vocab*", "special*"),
    "tokenizer cut off": _cut("tokenizer.json", 0.5),
    "weights gone": _without("model.safetensors"),
    "weights cut off": _cut("model.safetensors", 0.7),
    "weights cut off in their header": _cut("model.safetensors", 0.01),
    "weights empty": _write("model.safetensors", b""),
    "weights with an endless header": _write("model.safetensors", b"\xff" * 8 + b"{}"),
    "weights in files elsewhere": _shards_elsewhere,
    "a list of weights of no use": _write("model.safetensors.index.json", b'{"weight_map": [1]}'),
    "code of its own": _own_code,
    "a trap in a pickle": _pickled_trap,
}
_RUNS: dict[str, tuple[Callable[[Path], None], Strings]] = {
    "record cut off": (_cut("run.json", 0.5), ["predict", _RUN, "text"]),
    "record of lists": (_write("run.json", b"[[]]"), ["predict", _RUN, "text"]),
    "record gone": (_without("run.json"), ["evaluate", _RUN]),
    "weights gone": (_without("model.safetensors"), ["predict", _RUN, "text"]),
    "weights cut off": (_cut("model.safetensors", 0.5), ["predict", _RUN, "text"]),
    "config gone": (_without("config.json"), ["predict", _RUN, "text"]),
    "split cut off": (_cut("split/train.npy", 0.5), ["evaluate", _RUN]),
    "split of no use": (_write("split/validation.json", b"[]"), ["evaluate", _RUN]),
    "job cut off": (_write("job.yaml", b"model: ["), ["train", "--resume", "--out", _RUN]),
    "job gone": (_without("job.yaml"), ["train", "--resume", "--out", _RUN]),
}
