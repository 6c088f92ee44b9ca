"""Results survive: whole files or none, the same run goes on, another one is refused, a
full disk stops cleanly.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.store import AnswerKey, StorageError, Store

HEAD = {"settings": {"mode": "lr", "seed": 0}, "versions": {}}


def test_names_of_files() -> None:
    for key in (AnswerKey(0), AnswerKey(7), AnswerKey(7, 3), AnswerKey(120, 15)):
        assert AnswerKey.of(key.file) == key
    assert AnswerKey(7).file == "7.json", "the official tool's name"
    for other in (
        "run.json",
        "session-0.json",
        "7.json.broken",
        "a.json",
        "1.2.3.json",
        ".7.json.4.tmp",
        "7.txt",
    ):
        assert AnswerKey.of(other) is None


def test_the_same_settings_go_on_and_others_are_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a" / "run", HEAD)
    store.write(AnswerKey(1, 2).file, {"right": True})
    again = Store.open(tmp_path / "a" / "run", HEAD)
    assert again.done() == {AnswerKey(1, 2)}
    assert dict(again.results()) == {AnswerKey(1, 2): {"right": True}}
    with pytest.raises(SettingError, match="seed was 0 and is 1"):
        Store.open(store.path, {"settings": {"mode": "lr", "seed": 1}})


def test_what_a_killed_process_left_is_swept_and_a_torn_file_is_put_aside(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path, HEAD)
    (tmp_path / ".3.json.999999999.tmp").write_text("{", encoding="utf-8")
    (tmp_path / f".4.json.{os.getppid()}.tmp").write_text("{", encoding="utf-8")
    (tmp_path / "5.json").write_text('{"right": tr', encoding="utf-8")
    store.write("6.json", {})
    store = Store.open(tmp_path, HEAD)
    assert store.done() == {AnswerKey(6)}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f".4.json.{os.getppid()}.tmp",
        "5.json.broken",
        "6.json",
        "run.json",
    ], "another live process is writing 4"


def test_an_unwritable_place_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="cannot be written"):
            Store.open(place, HEAD)
    monkeypatch.setattr("lr.measure.store.LEAST_FREE", 1 << 62)
    with pytest.raises(StorageError, match="free space"):
        Store.open(tmp_path / "run", HEAD)


def test_a_disk_that_fills_leaves_every_finished_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path, HEAD)
    store.write("0.json", {"text": "first"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in ("0.json", "1.json"):
        with pytest.raises(StorageError, match="No space left"):
            store.write(name, {"text": "second"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "run.json"]
    assert json.loads((tmp_path / "0.json").read_text(encoding="utf-8")) == {
        "text": "first"
    }


def test_a_signal_in_the_middle_of_a_file_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: int) -> None:
        raise SystemExit(143)

    store = Store.open(tmp_path, HEAD)
    monkeypatch.setattr(os, "fsync", stopped)
    with pytest.raises(SystemExit):
        store.write("7.json", {"right": True})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_folder_in_which_nothing_came_about_goes_again(tmp_path: Path) -> None:
    """One that was there before, or that has an answer, stays."""
    path, settings = tmp_path / "run", {"settings": {}}
    with Store.open(path, settings):
        assert path.is_dir()
    assert not path.exists()
    with Store.open(path, settings) as store:
        store.write("0.json", {})
    assert path.is_dir()
    (path / "0.json").unlink()
    with Store.open(path, settings):
        pass
    assert path.is_dir()


@pytest.mark.parametrize(
    "change",
    [
        {"stats": 7},
        {"speed": "fast"},
        {"generation_tokens": None},
        {"unjudged": ["why"]},
        {"right": "yes"},
        {"steps": [[1]]},
    ],
    ids=str,
)
def test_a_result_that_is_none_is_named_or_done_again(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    store.write("0.json", {"question": "?", "right": True, **change})
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "0.json is not as lr run writes it" in said
    assert not store.done() and (tmp_path / "0.json.broken").is_file()
