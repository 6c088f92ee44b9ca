"""Data sets by name: a JSONL file, `tiny:N` or `plans:N` (held-out problems of a tiny language), or
a data set of the Hugging Face hub.

The layout of every line is recognised by its fields (`layouts.py`); an unknown one is refused with
the fields that were found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.lab.eval.items import Item, Task
from lr.lab.eval.layouts import read_item
from lr.tiny.language import Split
from lr.tiny.languages import LANGUAGES, TinyLanguage

_TINY = re.compile(rf"({'|'.join(LANGUAGES)}):(\d+)")
_HUB = re.compile(r"([\w.-]+/[\w.-]+?)(?::([\w.-]+))?(?::([\w.-]+))?")


def load_items(
    name: str, *, seed: int = 0, start: int | None = None, end: int | None = None
) -> list[Item]:
    """The problems of a data set from number `start` up to, not including, `end`, numbered as in
    the whole data set.

    `name` is a file with one JSON object per line; `tiny:N` or `plans:N`; or a hub id,
    `owner/name`, `owner/name:split` or `owner/name:config:split`. `seed` shuffles the options of
    multiple choice. Raises `SettingError`.
    """
    items = _all_items(name, seed)
    chosen = items[slice(start, end)]
    if not chosen:
        raise SettingError(
            f"there is no problem from start_qid {start} to end_qid {end} in {name}, which has {len(items)}. Choose others."
        )
    return chosen


def _all_items(name: str, seed: int) -> list[Item]:
    if match := _TINY.fullmatch(name):
        return _tiny(LANGUAGES[match[1]], int(match[2]))
    path = Path(name).expanduser()
    if path.is_file():
        return [read_item(line, number, seed) for number, line in enumerate(read_lines(path))]
    hub = _HUB.fullmatch(name)
    if hub is None or path.exists() or name.endswith((".jsonl", ".json")):
        raise SettingError(
            f"there is no data set {name!r}: {_beside(path)} Give a JSONL file, tiny:N, plans:N, or a hub id."
        )
    rows = _from_hub(hub[1], *((hub[2], hub[3]) if hub[3] else (None, hub[2])))
    return [read_item(row, number, seed) for number, row in enumerate(rows)]


def _tiny(language: TinyLanguage, count: int) -> list[Item]:
    if count < 1:
        name = language.family
        raise SettingError(
            f"the data set is '{name}:{count}', expected {name}:N with N of at least 1."
        )
    drawn = [language.problem(Split.TEST, number, 0) for number in range(count)]
    return [
        Item(
            number,
            one.question,
            Task.MATH if isinstance(one.answer, int) else Task.WORD,
            str(one.answer),
        )
        for number, one in enumerate(drawn)
    ]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line; empty lines are skipped. Raises `SettingError` with
    the number of the line.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{path} cannot be read as text ({error}). A data set is UTF-8, one JSON object per line."
        ) from error
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise SettingError(
                f"line {number} of {path} is not JSON ({error}). One JSON object per line is expected."
            ) from error
        if not isinstance(line, dict):
            raise SettingError(
                f"line {number} of {path} holds {type(line).__name__}; a JSON object is expected."
            )
        lines.append(line)
    return lines


def _beside(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder."
    folder = path.parent if path.parent.is_dir() else Path()
    found = sorted(one.name for one in folder.glob("*.jsonl"))[:5]
    return f"no such file{', but there is ' + ', '.join(found) if found else ''}."


def _from_hub(name: str, config: str | None, split: str | None) -> Iterable[dict[str, Any]]:
    """The rows of a hub data set: with the package `datasets` any, without it those that are stored
    as JSONL.
    """
    try:
        if find_spec("datasets") is not None:
            from datasets import load_dataset

            return [dict(row) for row in load_dataset(name, config, split=split or "test")]
        return _jsonl_from_hub(name, config, split or "test")
    except SettingError:
        raise
    except (
        Exception
    ) as error:  # what a failed download raises differs between versions and HTTP libraries
        said = (str(error).splitlines() or ["no message"])[0]
        raise SettingError(
            f"there is no file {name}, and the data set {name} of the Hugging Face hub could not be read "
            f"({type(error).__name__}: {said}). Check the name and the connection, or download it and give the JSONL file."
        ) from error


def _jsonl_from_hub(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
    from huggingface_hub import HfApi, hf_hub_download

    files = [
        file
        for file in HfApi().list_repo_files(name, repo_type="dataset")
        if file.endswith(".jsonl")
    ]
    fitting = [
        file for file in files if split in file and (config is None or config in file)
    ] or files[:1]
    if not fitting:
        raise SettingError(
            f"the data set {name} is not stored as JSONL; install the package that reads other forms: pip install datasets."
        )
    return read_lines(Path(hf_hub_download(name, fitting[0], repo_type="dataset")))
