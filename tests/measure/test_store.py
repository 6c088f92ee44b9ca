"""Results survive: whole files or none, the same run goes on, another one is refused, a
full disk stops cleanly."""

import errno
import json
import os
import sys

import pytest

from lr.errors import SettingError
from lr.measure.store import AnswerKey, StorageError, Store

HEAD = {"settings": {"mode": "lr", "seed": 0}, "versions": {}}


def test_names_of_files():
    for key in (AnswerKey(0), AnswerKey(7, 3), AnswerKey(120, 15)):
        assert AnswerKey.of(key.file) == key
    assert AnswerKey(7).file == "7.json", "the official tool's name"
    for name in ("run.json", "notes-0.json", "7.json.broken", ".7.json.4.tmp"):
        assert AnswerKey.of(name) is None


def test_the_same_settings_go_on_and_others_are_refused(tmp_path):
    store = Store.open(tmp_path / "a" / "run", HEAD)
    file = store.path / AnswerKey(1, 2).file
    store.write(file.name, {"right": False})
    with file.open() as before:
        store.write(file.name, {"right": True})
        assert json.load(before) == {"right": False}, "a file is replaced as a whole"
    store.close()
    again = Store.open(tmp_path / "a" / "run", HEAD)
    assert again.done() == {AnswerKey(1, 2)}
    assert dict(again.results()) == {AnswerKey(1, 2): {"right": True}}
    again.close()
    with pytest.raises(SettingError, match="seed"):
        Store.open(store.path, {"settings": {"mode": "lr", "seed": 1}})


def test_leftovers_are_swept_and_a_torn_file_is_put_aside(tmp_path):
    store = Store.open(tmp_path, HEAD)
    (tmp_path / ".3.json.999999999.tmp").write_text("{")
    (tmp_path / "5.json").write_text('{"right": tr')
    store.write("6.json", {})
    store.close()
    store = Store.open(tmp_path, HEAD)
    assert store.done() == {AnswerKey(6)}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["5.json.broken", "6.json", "run.json"]


def test_an_unwritable_place_is_an_error_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "file/below", "link", "long" * 100):
        folder = tmp_path / name
        with pytest.raises(StorageError, match="written"):
            Store.open(folder, HEAD)


@pytest.mark.parametrize(
    "failure, raised",
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_full_disk_or_ctrl_c_leaves_every_file_whole(
    failure, raised, tmp_path, monkeypatch
):
    store = Store.open(tmp_path, HEAD)
    store.write("0.json", {"text": "first"})

    def fails(descriptor):
        raise failure

    monkeypatch.setattr(os, "fsync", fails)
    for name in ("0.json", "1.json"):
        with pytest.raises(raised):
            store.write(name, {"text": "second"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "run.json"]
    assert json.loads((tmp_path / "0.json").read_text()) == {"text": "first"}


def test_a_new_folder_comes_with_its_first_file(tmp_path):
    path = tmp_path / "above" / "run"
    with Store.open(path, HEAD) as store:
        assert not path.parent.exists()
        store.write("0.json", {})
        assert store.settings() == HEAD
        with pytest.raises(SettingError, match="another process"):
            Store.open(path, HEAD)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks no folders")
def test_of_two_that_begin_in_one_new_folder_the_first_to_write_has_it(tmp_path):
    other = {"settings": {"mode": "lr", "seed": 1}}
    first, second, third = (
        Store.open(tmp_path / "run", head) for head in (HEAD, other, HEAD)
    )
    first.write("0.json", {})
    for _ in range(2):
        with pytest.raises(SettingError, match="another process"):
            second.write("1.json", {})
    first.close()
    with pytest.raises(SettingError, match="seed"):
        second.write("1.json", {})
    third.write("2.json", {})  # continues the same run
    assert third.settings() == HEAD
    assert third.keys() == [AnswerKey(0), AnswerKey(2)]


def test_answers_of_an_unknown_run_are_not_continued(tmp_path):
    with Store.open(tmp_path / "run", HEAD) as store:
        store.write("3.json", {})
    for content in (None, "{}", "", '{"settings": [1]}'):
        (tmp_path / "run" / "run.json").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "run" / "run.json").write_text(content)
        with pytest.raises(SettingError, match=r"run\.json|settings"):
            Store.open(tmp_path / "run", HEAD)
    assert (tmp_path / "run" / "3.json").is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks no folders")
def test_a_folder_that_is_written_is_left_alone(tmp_path):
    with Store.open(tmp_path, HEAD) as store:
        unfinished = tmp_path / ".0.json.1.tmp"
        unfinished.write_text("{")
        with pytest.raises(SettingError, match="another process"):
            Store.open(tmp_path, HEAD)
        assert unfinished.is_file(), "the other process still writes it"
        store.write("0.json", {})
    with Store.open(tmp_path, HEAD) as store:
        assert store.done() == {AnswerKey(0)}
    Store.open(tmp_path, HEAD)  # not kept: its lock goes with it
    Store.open(tmp_path, HEAD).close()


@pytest.mark.parametrize(
    "file, content",
    [
        ("0.json", '{"right": "yes"}'),
        ("0.json", '{"right": true, "time_taken": "long"}'),
        ("0.json", '{"stats": {"target_passes": "many"}}'),
        ("0.json", "[1]"),
        ("run.json", '{"settings": 5}'),
        ("run.json", '{"settings": {}, "conditions": []}'),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(tmp_path, file, content):
    store = Store(tmp_path)
    tmp_path.joinpath(file).write_text(content)
    with pytest.raises(SettingError, match=file):
        list(store.results()) or store.settings()
    if file == "0.json":
        assert not store.done(), "it is answered again"
