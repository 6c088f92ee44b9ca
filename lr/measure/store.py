"""Results on disk: the run's settings, and one JSON file per problem and sample, under
the official tool's names. docs/evaluation.md shows the folder of a run.

A file is written under another name and then moved, so it is complete or absent, even
after a crash. A run resumes if its settings are the same; a folder never holds two
experiments, and one process at a time writes into it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec

from lr.errors import LRError, SettingError
from lr.trace import Stats

SETTINGS = "run.json"


class RunFields(TypedDict, total=False):
    """The fields of run.json that are read; each may be missing."""

    settings: dict[str, Any]
    conditions: dict[str, Any]
    devices: list[str]


class AnswerFields(TypedDict, total=False):
    """Those of an answer's file."""

    target_prompt: str
    full_text: str
    generation_text: str
    generation_tokens: list[int]
    answer: str | None
    right: bool | None
    finished: bool
    time_taken: float
    speed: float
    stats: Stats
    unjudged: dict[str, int]
    steps: list[tuple[str, int]]


class StorageError(LRError):
    """Results cannot be written: folder, rights or space. Earlier files are
    complete."""


class AnswerKey(NamedTuple):
    """An answer: the problem's number in the data set, and the sample."""

    number: int
    sample: int = 0

    @property
    def file(self) -> str:
        """7.json for the first sample of problem 7, 7.3.json for sample 3."""
        sample = f".{self.sample}" if self.sample else ""
        return f"{self.number}{sample}.json"

    @classmethod
    def of(cls, file: str) -> AnswerKey | None:
        """The key in a file name; None if it is no answer's."""
        match = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?\.json", file)
        return None if match is None else cls(int(match[1]), int(match[2] or 0))


class Store:
    """The folder of a run. `Store.open` is for writing, `Store(path)` for reading. A new
    folder is made with the first file in it: what is refused before leaves none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head: Mapping[str, Any] | None = None  # what a new run.json is to hold
        self.close: Callable[[], object] = lambda: None  # lets other processes in
        self._is_new = False  # whether `open` found no folder

    @classmethod
    def open(cls, path: Path, head: Mapping[str, Any]) -> Store:
        """A store that begins a run, or resumes the one in the folder.

        `head` is what run.json holds. Raises `StorageError` if the folder cannot be
        written, `SettingError` if another process writes into it, or if it holds a run
        with other settings or answers without settings.
        """
        store = cls(path)
        store._head = head
        try:
            above = (path, *path.parents)
            nearest = next(p for p in above if p.exists() or p.is_symlink())
            if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
                raise NotADirectoryError(f"{nearest} is no folder to write in")
        except OSError as error:
            raise _cannot_write(path, error) from error
        store._is_new = nearest != path
        if not store._is_new:
            store._enter(head)
        return store

    def _enter(self, head: Mapping[str, Any]) -> None:
        """Take the folder, which exists, and the run in it, if there is one."""
        try:
            self._lock()
            self._resume(head)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _cannot_write(self.path, error) from error
            raise

    def _resume(self, head: Mapping[str, Any]) -> None:
        path = self.path
        for leftover in path.rglob(".*.tmp"):  # of a process that was killed
            leftover.unlink(missing_ok=True)
        stored = self.settings()
        if stored is None:
            if keys := self.keys():
                raise SettingError(
                    f"{path} holds {len(keys)} answers and no {SETTINGS}, which says how "
                    "they were made. Put that file back, or choose another folder."
                )
            return
        self._head = None  # it is written
        ours = json.loads(json.dumps(head["settings"]))  # as JSON: a tuple is a list
        theirs = stored.get("settings", {})
        changes = differences(ours, theirs, sorted({*ours, *theirs}))
        if changes:
            raise SettingError(
                f"{path} holds a run with other settings ({'; '.join(changes[:5])}). "
                "Choose another folder, or resume with the same settings."
            )

    def _begin(self) -> None:
        """Make the folder of a new run, with its run.json. Raises `SettingError` as
        `open` does: another process may have made the folder since."""
        if self._is_new and self._head is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._enter(self._head)
            self._is_new = False
        if self._head is not None:
            self.write(SETTINGS, self._head)
            self._head = None

    def _lock(self) -> None:
        """Keep other processes out, until this one ends or the store is closed."""
        if sys.platform == "win32":
            return
        import fcntl

        folder = os.open(self.path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                f"another process writes its run into {self.path} at this moment. Wait "
                "for it, or choose another folder."
            ) from None
        except OSError:  # some network disks lock no folders
            return

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def settings(self) -> dict[str, Any] | None:
        """The content of run.json; None without one (a run of the official tool)."""
        path = self.path / SETTINGS
        return read_object(path, RunFields) if path.is_file() else None

    def keys(self) -> list[AnswerKey]:
        """The answers that have a file, sorted."""
        files = self.path.glob("*.json")
        return sorted(key for file in files if (key := AnswerKey.of(file.name)))

    def done(self) -> set[AnswerKey]:
        """The answers whose file can be read. Renames any other file to FILE.broken."""
        valid = set()
        for key in self.keys():
            path = self.path / key.file
            try:
                read_object(path, AnswerFields)
                valid.add(key)
            except SettingError:
                path.replace(path.with_name(f"{path.name}.broken"))
        return valid

    def results(self) -> Iterator[tuple[AnswerKey, dict[str, Any]]]:
        """Every answer, sorted by key. Raises `SettingError` for a damaged file."""
        return ((k, read_object(self.path / k.file, AnswerFields)) for k in self.keys())

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file completely or not at all; NaN becomes null. Raises
        `StorageError`."""
        text = msgspec.json.format(msgspec.json.encode(content), indent=1)
        self.write_lines(name, [text.decode()])

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write a text file likewise; `lines` come without line ends."""
        path = self.path / name
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            if name != SETTINGS:
                self._begin()
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException as error:  # also Ctrl-C
            with contextlib.suppress(OSError):
                unfinished.unlink()
            if isinstance(error, OSError):
                raise _cannot_write(path, error) from error
            raise


def differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Iterable[str]
) -> list[str]:
    """Those of the settings `names` in which two runs differ, with both values."""
    return [
        f"{name} is {ours.get(name)!r} here, {theirs.get(name)!r} there"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def digest_of(content: object, size: int) -> str:
    """So many bytes in hexadecimal digits; equal for content that JSON writes alike."""
    text = json.dumps(content, sort_keys=True, default=str).encode()
    return hashlib.blake2b(text, digest_size=size).hexdigest()


def write_json(content: Mapping[str, Any], path: Path | None) -> None:
    """Write the file completely or not at all; do nothing without a path."""
    if path is not None:
        Store(path.parent).write(path.name, content)


def read_object(path: Path, fields: type = dict) -> dict[str, Any]:
    """The JSON object in a file, whose known `fields` have their types. Raises
    `SettingError`."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        msgspec.convert(content, fields)
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(
            f"{path} is not what lr run writes ({error}). Fetch it again, or choose another "
            "folder."
        ) from error
    return content


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be written ({error.strerror or error}). Earlier files are "
        "complete; make room or name another folder, and run the same command again."
    )
