"""Sources: the tables of a data file, a folder or a hub dataset, as training and validation rows."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tightfit.compat import fingerprint_of
from tightfit.data.encoding import detect_encoding
from tightfit.data.header import HeaderHints
from tightfit.data.readers import Row, Table, has_supported_extension, open_table, supported_extensions
from tightfit.errors import DataError, closest_name, first_line
from tightfit.hub import HubUnreachable, hub_access
from tightfit.messages import Message, msg
from tightfit.optional_imports import ARROW, allow_imports
from tightfit.system.files import digest_of
from tightfit.system.processes import SharedSetting

_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val", "dev", "eval")
_TEST = ("test",)
_SAMPLED_ROWS = 1000
_NOTED_ENCODINGS = ("gb18030", "utf-16")  # guesses that a user may want to check


class Readable(Protocol):
    """Anything with columns and rows."""

    def columns(self) -> list[str]: ...

    def rows(self) -> Iterator[Row]: ...


@dataclass(frozen=True)
class Source:
    """The tables of one split of the data, read as one."""

    name: str
    tables: tuple[Readable, ...]
    digest: str
    """Changes when the content changes."""
    notes: tuple[Message, ...] = ()

    def columns(self) -> list[str]:
        """The columns that every table has, in the order of the first table."""
        first, *others = (table.columns() for table in self.tables)
        return [name for name in first if all(name in other for other in others)]

    def rows(self) -> Iterator[Row]:
        for table in self.tables:
            yield from table.rows()

    def sample(self) -> list[Row]:
        """The first rows."""
        return list(itertools.islice(self.rows(), _SAMPLED_ROWS))

    @property
    def numbered(self) -> bool:
        """Whether no file has a header line, so that columns are numbered."""
        return all(isinstance(table, Table) and not table.header for table in self.tables)


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
class HubTable:
    """A dataset of the datasets library; class ids are read as class names."""

    dataset: Any = field(hash=False)

    def columns(self) -> list[str]:
        return list(self.dataset.column_names)

    def rows(self) -> Iterator[Row]:
        names = {column: names for column, f in self.dataset.features.items() if (names := _class_names(f))}
        for number, row in enumerate(self.dataset, 1):
            yield number, {**row, **{column: _named(row[column], of) for column, of in names.items()}}


def _class_names(feature: Any) -> Sequence[str] | None:
    """The names of the classes in a column, or in the lists in it; None if there are no classes."""
    from datasets import ClassLabel

    inner = getattr(feature, "feature", feature)
    return inner.names if isinstance(inner, ClassLabel) else None


def _named(cell: Any, names: Sequence[str]) -> Any:
    if isinstance(cell, list):
        return [_named(each, names) for each in cell]
    return names[cell] if cell is not None and cell >= 0 else None


def find_sources(name: str, hints: HeaderHints) -> tuple[Source, Source | None]:
    """The training rows of a file, folder or hub dataset, and its validation rows if it has any."""
    path = Path(name).expanduser()
    if path.is_file():
        return _file(path, hints), None
    if path.is_dir():
        return _folder(path, hints)
    if has_supported_extension(path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise DataError(msg("Data file not found: '{name}'. {hint}", name=name, hint=_other_files(path)))
    return _hub(name)


def _other_files(path: Path) -> Message:
    """The end of the message about a missing file: the file that was probably meant, or those in its folder."""
    names = sorted(p.name for p in path.parent.glob("*") if has_supported_extension(p)) if path.parent.is_dir() else []
    near = closest_name(path.name, names)
    if near:
        return msg("Did you mean '{near}'?", near=near)
    if names:
        return msg("Data files in '{folder}': {names}.", folder=path.parent, names=names)
    return msg("Check the path.")


def _file(path: Path, hints: HeaderHints) -> Source:
    if not has_supported_extension(path):
        known = supported_extensions()
        raise DataError(msg("{path} has an unknown extension: use one of {known}.", path=path, known=known))
    if path.stat().st_size == 0:
        raise DataError(msg("{path} is empty: give a file with a header line and rows below it.", path=path))
    return _source(str(path), [path], hints)


def _source(name: str, paths: list[Path], hints: HeaderHints) -> Source:
    encodings = {path: detect_encoding(path) for path in paths if path.suffix.lower() != ".parquet"}
    notes = tuple(
        msg("{path}: read as {encoding}", path=path, encoding=encoding)
        for path, encoding in encodings.items()
        if encoding in _NOTED_ENCODINGS
    )
    tables = tuple(open_table(path, hints) for path in paths)
    return Source(name, tables, digest_of(paths), (*notes, *(note for table in tables for note in table.notes)))


def _folder(folder: Path, hints: HeaderHints) -> tuple[Source, Source | None]:
    if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
        allow_imports(*ARROW)
        from datasets import load_from_disk

        with _progress_bars.changed():
            return _arrow(str(folder), load_from_disk(str(folder)))
    files = sorted(path for path in folder.iterdir() if path.is_file() and has_supported_extension(path))
    files = [path for path in files if path.suffix.lower() != ".txt"] or files  # a readme.txt is not data
    if files:
        return _named_files(folder, files, hints)
    if any(folder.glob("*/*.txt")):
        texts = sorted(folder.glob("*/*.txt"))
        digest = hashlib.sha256("".join(f"{p}{p.stat().st_mtime_ns}" for p in texts).encode()).hexdigest()
        return Source(str(folder), (ClassFolders(folder),), digest), None
    known = supported_extensions()
    raise DataError(msg("The folder '{folder}' contains no data: add {known} files.", folder=folder, known=known))


def _named_files(folder: Path, files: list[Path], hints: HeaderHints) -> tuple[Source, Source | None]:
    """train.csv, and validation.csv or dev.csv; without a train file, all remaining files are the training rows."""
    train = [path for path in files if _is_named(path, _TRAIN)]
    validation = [path for path in files if _is_named(path, _VALIDATION)]
    if not train:
        train = [path for path in files if path not in validation and not _is_named(path, _TEST)]
    if not train:
        raise DataError(msg("The folder '{folder}' contains no training file: name one train.csv.", folder=folder))
    unused = [path.name for path in files if path not in train and path not in validation]
    note = msg("{folder}: {files} not used, neither for training nor for validation", folder=folder, files=unused)
    held_out = _source(f"{folder} ({validation[0].name})", validation, hints) if validation else None
    source = _source(str(folder), train, hints)
    return replace(source, notes=(*source.notes, note) if unused else source.notes), held_out


def _is_named(path: Path, names: tuple[str, ...]) -> bool:
    return re.split(r"[._-]", path.stem.lower())[0] in names


def _hub(name: str) -> tuple[Source, Source | None]:
    allow_imports(*ARROW)
    from datasets import load_dataset

    try:
        with _progress_bars.changed(), hub_access(name):
            return _arrow(name, load_dataset(name))
    except DataError:
        raise
    except HubUnreachable as error:
        raise DataError(
            msg(
                "'{name}' is no local file, and {host} cannot be reached: check the path, set HF_ENDPOINT to a mirror "
                "(HF_ENDPOINT=https://hf-mirror.com), or download the data set from ModelScope and give its folder.",
                name=name,
                host=error.host,
            )
        ) from error
    except Exception as error:  # the hub client raises dozens of types
        reason = first_line(error).rstrip(".")
        raise DataError(
            msg(
                "'{name}' is neither a local file nor a dataset on the hub ({reason}): check the path or the name.",
                name=name,
                reason=reason,
            )
        ) from error


def _hide_progress_bars() -> Callable[[], None]:
    """The progress bars of datasets would break ours."""
    from datasets import utils

    if utils.are_progress_bars_disabled():
        return lambda: None
    utils.disable_progress_bars()
    return utils.enable_progress_bars


_progress_bars = SharedSetting(_hide_progress_bars)


def _arrow(name: str, content: Any) -> tuple[Source, Source | None]:
    parts = dict(content) if isinstance(content, dict) else {"train": content}
    train = next((parts[split] for split in _TRAIN if split in parts), None)
    if train is None:
        raise DataError(msg("'{name}' has no training split, only {splits}.", name=name, splits=list(parts)))
    validation = next((parts[split] for split in _VALIDATION if split in parts), None)
    return _arrow_source(name, train), None if validation is None else _arrow_source(name, validation)


def _arrow_source(name: str, part: Any) -> Source:
    return Source(name, (HubTable(part),), fingerprint_of(part))
