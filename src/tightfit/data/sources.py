"""Sources: what the user named as data, be it a file, a folder or a hub data set, as tables of rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tightfit.compat import fingerprint_of
from tightfit.data.readers import Row, Table, detect_encoding, is_table, table_endings
from tightfit.errors import DataError, first_line, suggest
from tightfit.files import digest_of
from tightfit.optional_imports import ARROW, allow_imports

_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val", "dev", "eval")
_TEST = ("test",)
_SAID_ALOUD = ("gb18030", "utf-16")  # guesses that a user may want to check


class Readable(Protocol):
    """Anything with columns and rows."""

    def columns(self) -> list[str]: ...

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class Source:
    """The tables of one part of the data, read as one."""

    name: str
    tables: tuple[Readable, ...]
    digest: str
    """Changes when the content changes."""
    notes: tuple[str, ...] = ()

    def columns(self) -> list[str]:
        """The columns that every table has, in the order of the first."""
        first, *others = (table.columns() for table in self.tables)
        return [name for name in first if all(name in other for other in others)]

    def rows(self) -> Iterator[Row]:
        for table in self.tables:
            yield from table.rows()


@dataclass(frozen=True)
class ClassFolders:
    """A folder with one folder of .txt files per label."""

    folder: Path

    def columns(self) -> list[str]:
        return ["text", "label"]

    def rows(self) -> Iterator[Row]:
        for number, path in enumerate(sorted(self.folder.glob("*/*.txt")), 1):
            text = path.read_text(encoding=detect_encoding(path))
            yield number, {"text": text, "label": path.parent.name}


@dataclass(frozen=True)
class Arrow:
    """A data set of the datasets library; class numbers are read as their names."""

    dataset: Any = field(hash=False)

    def columns(self) -> list[str]:
        return list(self.dataset.column_names)

    def rows(self) -> Iterator[Row]:
        from datasets import ClassLabel

        classes = {k: f for k, f in self.dataset.features.items() if isinstance(f, ClassLabel)}
        for number, row in enumerate(self.dataset, 1):
            for column, feature in classes.items():
                row[column] = feature.int2str(row[column]) if row[column] is not None and row[column] >= 0 else None
            yield number, row


def find_sources(name: str, *, header: bool = True) -> tuple[Source, Source | None]:
    """The training rows that a name stands for, and the validation rows where it brings its own."""
    path = Path(name).expanduser()
    if path.is_file():
        return _file(path, header), None
    if path.is_dir():
        return _folder(path, header)
    if is_table(path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        neighbours = [p.name for p in path.parent.glob("*") if is_table(p)] if path.parent.is_dir() else []
        hint = suggest(path.name, neighbours) if neighbours else "check the path."
        raise DataError(f"There is no data file '{name}': {hint}")
    return _hub(name)


def _file(path: Path, header: bool) -> Source:
    if not is_table(path):
        raise DataError(f"{path} has an ending that is not known: use one of {table_endings()}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: give a file with a line of column names and rows below it.")
    return _source(str(path), [path], header)


def _source(name: str, paths: list[Path], header: bool) -> Source:
    encodings = {path: detect_encoding(path) for path in paths if path.suffix.lower() != ".parquet"}
    notes = tuple(f"{path}: read as {encoding}" for path, encoding in encodings.items() if encoding in _SAID_ALOUD)
    return Source(name, tuple(Table(path, header) for path in paths), digest_of(paths), notes)


def _folder(folder: Path, header: bool) -> tuple[Source, Source | None]:
    if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
        allow_imports(*ARROW)
        from datasets import load_from_disk

        return _arrow(str(folder), load_from_disk(str(folder)))
    files = sorted(path for path in folder.iterdir() if path.is_file() and is_table(path))
    files = [path for path in files if path.suffix.lower() != ".txt"] or files  # a readme.txt is no data
    if files:
        return _named_files(folder, files, header)
    if any(folder.glob("*/*.txt")):
        texts = sorted(folder.glob("*/*.txt"))
        digest = hashlib.sha256("".join(f"{p}{p.stat().st_mtime_ns}" for p in texts).encode()).hexdigest()
        return Source(str(folder), (ClassFolders(folder),), digest), None
    raise DataError(f"The folder '{folder}' holds no data: put {table_endings()} files into it.")


def _named_files(folder: Path, files: list[Path], header: bool) -> tuple[Source, Source | None]:
    """train.csv with validation.csv or dev.csv beside it; files of no such name are read as one."""
    train = [path for path in files if _is_named(path, _TRAIN)]
    validation = [path for path in files if _is_named(path, _VALIDATION)]
    if not train:
        train = [path for path in files if path not in validation and not _is_named(path, _TEST)]
    if not train:
        raise DataError(f"The folder '{folder}' holds no training file: name one train.csv.")
    unused = [path.name for path in files if path not in train and path not in validation]
    note = (f"{folder}: {', '.join(unused)} is left alone, neither trained nor validated on",) if unused else ()
    held_out = _source(f"{folder} ({validation[0].name})", validation, header) if validation else None
    source = _source(str(folder), train, header)
    return replace(source, notes=(*source.notes, *note)), held_out


def _is_named(path: Path, words: tuple[str, ...]) -> bool:
    return re.split(r"[._-]", path.stem.lower())[0] in words


def _hub(name: str) -> tuple[Source, Source | None]:
    allow_imports(*ARROW)
    from datasets import load_dataset

    try:
        return _arrow(name, load_dataset(name))
    except DataError:
        raise
    except Exception as error:  # the hub client raises dozens of kinds, none of them of use to the user
        reason = first_line(error).rstrip(".")
        raise DataError(
            f"'{name}' is neither a file here nor a data set that the hub gives out ({reason}): "
            "check the path or the name."
        ) from error


def _arrow(name: str, content: Any) -> tuple[Source, Source | None]:
    parts = dict(content) if isinstance(content, dict) else {"train": content}
    train = next((parts[word] for word in _TRAIN if word in parts), None)
    if train is None:
        raise DataError(f"'{name}' has no training part, only {', '.join(parts)}.")
    validation = next((parts[word] for word in _VALIDATION if word in parts), None)
    return _arrow_source(name, train), None if validation is None else _arrow_source(name, validation)


def _arrow_source(name: str, part: Any) -> Source:
    return Source(name, (Arrow(part),), fingerprint_of(part))
