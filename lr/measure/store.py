"""Results on disk: the run's settings, and one JSON file per problem and sample, under
the official tool's names. docs/evaluation.md shows the folder of a run.

A file is written under another name and then moved, so it is complete or absent, even
after a crash. A run resumes if its settings are the same; a directory never holds two
experiments."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from lr.errors import LRError, SettingError

SETTINGS = "run.json"
LEAST_FREE = 16 << 20  # Bytes of free space needed to begin a run.


class StorageError(LRError):
    """Results cannot be written: folder, rights or space. Earlier files are
    complete."""


class AnswerKey(NamedTuple):
    """Identifies an answer: the problem's number in the data set, and the sample."""

    number: int
    sample: int = 0

    @property
    def file(self) -> str:
        return (
            f"{self.number}.json"
            if self.sample == 0
            else f"{self.number}.{self.sample}.json"
        )

    @classmethod
    def of(cls, file: str) -> AnswerKey | None:
        """The key in a file name, or None. Example: "7.3.json" is problem 7, sample
        3."""
        found = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?\.json", file)
        return None if found is None else cls(int(found[1]), int(found[2] or 0))


class Head(TypedDict, total=False):
    """The fields of run.json that other modules read; it has more."""

    settings: dict[str, Any]
    devices: list[str]


class StoredAnswer(TypedDict, total=False):
    """The fields that other modules read of a result (ours or the official tool's) or a
    file of pairs. A file may have more fields, and fewer."""

    question: str | None
    generation_text: str | None
    full_text: str
    target_prompt: str
    generation_tokens: list[int]
    full_tokens: list[int]
    right: bool | None
    finished: bool
    cut_steps: int
    time_taken: float
    speed: float | None
    stats: dict[str, Any]
    unjudged: dict[str, int]
    steps: list[tuple[str, int]]
    prompt: list[int]
    pairs: list[dict[str, Any]]


class Store:
    """The directory of a run. `Store.open` is for writing, `Store(path)` for
    reading."""

    fresh = False  # Whether `open` made the directory.

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove a directory that `open` made and that holds nothing but settings."""
        if self.fresh and [one.name for one in self.path.iterdir()] == [SETTINGS]:
            (self.path / SETTINGS).unlink()
            self.path.rmdir()

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any]) -> Store:
        """Make the directory, or resume the run in it. Raises `StorageError` if it
        cannot be written, `SettingError` if it holds a run with other settings."""
        store = cls(path)
        store.fresh = not os.path.lexists(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for half in path.rglob(
                ".*.tmp"
            ):  # left by a killed process, unless its owner lives
                owner = half.name.rsplit(".", 2)[1]
                if not (
                    owner.isdecimal()
                    and int(owner) != os.getpid()
                    and _alive(int(owner))
                ):
                    half.unlink(missing_ok=True)
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise _cannot_write(path, error) from error
        if free < LEAST_FREE:
            lacks = (
                f"{free >> 20} MiB of free space, expected at least {LEAST_FREE >> 20}"
            )
            raise StorageError(
                f"{path} has {lacks}. Make room, or choose another --output."
            )
        known = store.settings()
        if known is not None:
            mine, theirs = settings["settings"], known.get("settings", {})
            names = sorted(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n))
            if names:
                was = [
                    f"{n} was {theirs.get(n)!r} and is {mine.get(n)!r}"
                    for n in names[:5]
                ]
                raise SettingError(
                    f"{path} holds a run with other settings ({', '.join(was)}). Choose another "
                    "--output (an experiment: another --work), or resume with the same settings."
                )
        # written even if present: shows that writing works before anything is computed
        store.write(SETTINGS, dict(settings) if known is None else known)
        return store

    def settings(self) -> dict[str, Any] | None:
        """The content of run.json; None without one (a run of the official tool)."""
        path = self.path / SETTINGS
        return read_object(path, Head) if path.is_file() else None

    def keys(self) -> list[AnswerKey]:
        """The answers that have a file, sorted."""
        return sorted(
            key for path in self.path.glob("*.json") if (key := AnswerKey.of(path.name))
        )

    def done(self) -> set[AnswerKey]:
        """The answers whose file is valid; renames an invalid one to FILE.broken."""
        found = set()
        for key in self.keys():
            try:
                read_object(self.path / key.file, StoredAnswer)
                found.add(key)
            except SettingError:
                (self.path / key.file).replace(self.path / f"{key.file}.broken")
        return found

    def results(self) -> Iterator[tuple[AnswerKey, dict[str, Any]]]:
        """Every answer, sorted by key. Raises `SettingError` for a file that is no
        result."""
        return (
            (key, read_object(self.path / key.file, StoredAnswer))
            for key in self.keys()
        )

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file completely or not at all. Raises `StorageError`."""
        self.write_lines(name, [json.dumps(content, ensure_ascii=False, indent=1)])

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write a text file likewise; `lines` come without line ends."""
        place = self.path / name
        fresh = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(place)
        except BaseException as error:  # also what a signal raises
            with contextlib.suppress(OSError):
                fresh.unlink()
            if isinstance(error, OSError):
                raise _cannot_write(place, error) from error
            raise


def read_object(path: Path, kind: Any = dict[str, Any]) -> dict[str, Any]:
    """The JSON object in a file, checked against the `TypedDict`. Raises
    `SettingError`."""
    from msgspec import (  # the GPU checks write results without msgspec
        ValidationError,
        convert,
    )

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            convert(content, kind)
            return content
        said = f"holds {type(content).__name__}; a JSON object is expected"
    except ValidationError as error:
        said = f"is not as lr run writes it ({error})"
    except (OSError, ValueError, RecursionError) as error:
        said = f"cannot be read as JSON ({error})"
    raise SettingError(f"{path} {said}. Remove it, or fetch it again.")


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be written ({error.strerror or error}). Earlier files are complete; "
        "give a writable folder with room (--output), or make room and run the same command again."
    )


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
