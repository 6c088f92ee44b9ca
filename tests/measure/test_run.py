"""`lr run` as a stranger meets it: the official commands, what contradicts, what is
refused, interruption and going on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests_root import ROOT

from lr.commands.run import OFFICIAL, RunCommand, RunModels
from lr.errors import SettingError
from lr.measure.running import identified
from lr.measure.store import StorageError, Store
from lr.tiny import CHECKPOINTS

SAMPLE = Path(__file__).with_name("aime_sample.jsonl")
OFFICIAL_MODES = {
    "lr": "--use_spec --ignore_half_sentence",
    "lr+sd": "--use_spec --ignore_half_sentence --enable_n_gram",
    "sd": "--enable_n_gram",
    "ar": "",
}
OFFICIAL_FIELDS = set(
    "question full_text full_tokens generation_tokens gold time_taken speed question_id".split()
)


def read(folder):
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def answers(count):
    return {f"{number}.json" for number in range(count)}


def test_the_four_official_commands(tmp_path, cli, monkeypatch):
    """Word for word but for the file's name; the machine has no CUDA device, so the
    tiny models answer, and a note says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    folders = []
    for mode, switches in OFFICIAL_MODES.items():
        out, err = cli(f"run --dataset {SAMPLE} {switches}")
        assert "no CUDA device here" in err and f"mode {mode}: 4 answers" in err
        folders.append(out.strip())
        files = read(tmp_path / folders[-1])
        assert files.keys() == {*answers(4), "run.json"}
        assert all(files[name].keys() >= OFFICIAL_FIELDS for name in answers(4))
        assert sum(files[name]["right"] for name in answers(4)) >= 3
        assert files["run.json"]["settings"]["mode"] == mode
    shown = cli(f"report {' '.join(folders)}").out
    assert all(Path(folder).name in shown for folder in folders)


@pytest.mark.parametrize("mode", [*OFFICIAL_MODES, "draft"])
def test_modes_in_a_batch(mode, tmp_path, cli):
    words = f"run --dataset tiny:4 --mode {mode} --concurrency 10 --output {tmp_path}"
    words += " --verifier oracle"
    cli(words)
    records = [read(tmp_path)[name] for name in sorted(answers(4))]
    assert all(record["mode"] == mode for record in records)
    if mode != "draft":  # it is worse, by design
        assert sum(record["right"] for record in records) >= 3
    if mode == "lr":
        assert all(record["stats"]["judged"] > 0 for record in records)
        assert "4 of them there already" in cli(words).err


def test_kill_9_in_the_middle_and_again(tmp_path, cli):
    words = f"run --dataset tiny:9 --output {tmp_path} --mode draft --device cpu"
    killed = subprocess.Popen(
        [sys.executable, "-m", "lr", *words.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob("[0-9]*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("[0-9]*.json")}
    assert 2 <= len(times) < 9, "it was killed in the middle"
    cli(words)
    assert answers(9) <= read(tmp_path).keys() and not list(tmp_path.glob(".*"))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    cli(f"{words} --seed 1", 2)  # another run is refused


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), StorageError("full")])
def test_an_answer_without_all_its_files_is_answered_again(
    failure, tmp_path, monkeypatch, cli
):
    """It comes when the pairs of the first answer are there and the answer is not."""
    write = Store.write
    failed = []

    def fails_once(store, name, content):
        if name == "0.json" and not failed:
            failed.append(name)
            raise failure
        write(store, name, content)

    monkeypatch.setattr(Store, "write", fails_once)
    words = f"run --dataset tiny:3 --mode lr --verifier oracle --save_pairs --output {tmp_path}"
    code = 130 if isinstance(failure, KeyboardInterrupt) else 2
    assert "same command" in cli(words, code).err
    assert "0.json" not in read(tmp_path)
    cli(words)
    assert answers(3) <= read(tmp_path).keys()
    assert all((tmp_path / "pairs" / f"{name}l").stat().st_size for name in answers(3))


@pytest.mark.parametrize(
    "flags, named",
    [
        ("--mode ar --use_spec", "--use_spec"),
        ("--enable_n_gram --drafter draft", "drafter"),
        ("--judge_port 80000", "judge_port"),
        ("--save_pairs", "--save_pairs"),
        ("--protocol acceptance", "protocol"),
        ("--start_qid 5", "has 3"),
        (f"--output {os.devnull}/x", "written"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(flags, named, cli, monkeypatch):
    monkeypatch.setattr(RunModels, "reasoner", lambda *_: pytest.fail("loaded"))
    out, err = cli(f"run --dataset tiny:3 {flags}", 2)
    assert named in err and out == ""


def cuda(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr("lr.model.device.find_device", torch.device)


@pytest.mark.parametrize(
    "count, target, draft", [(1, [0], 0), (2, [0], 1), (3, [0, 1], 2)]
)
def test_the_default_models_and_gpus(count, target, draft, monkeypatch, capsys):
    cuda(monkeypatch, count)
    models = RunModels().named("aime.jsonl")
    assert (models.model, models.draft_model, models.judge_model) == OFFICIAL
    assert capsys.readouterr().err == ""
    places = models.devices()
    assert [device.index for device in places.target] == target
    assert places.draft.index == draft
    with pytest.raises(SettingError, match="gpu_id"):
        RunModels(draft_gpu_id="7").devices()


def test_the_papers_protocol_is_a_window_of_one_pair():
    options = RunCommand(protocol="acceptance").options_in("lr")
    assert (options.schedule, options.depth, options.width) == ("paper", 1, 1)


@pytest.mark.parametrize("flag", ["variant", "verifier"])
def test_an_edited_file_makes_another_run(flag, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    code = (
        "from lr.spec.verifiers.base import Verifier\nfrom lr.types import Verdict\n"
        "class Mine(Verifier):\n    name = 'mine'\n"
        "    def judge(self, pairs):\n        return [Verdict({}, 'mine') for _ in pairs]\n"
    )
    words = f"run --dataset tiny:1 --mode lr --{flag} mine.py:Mine"
    Path("mine.py").write_text(code.format(False))
    cli(f"{words} --output run")
    first = cli(words).out
    Path("mine.py").write_text(code.format(True))
    assert "mine.py" in cli(f"{words} --output run", 2).err
    for module in [name for name in sys.modules if name.startswith("lr_plugin")]:
        monkeypatch.delitem(sys.modules, module)  # as in another process
    assert cli(words).out != first
    Path("mine.py").write_text(code.format(False))
    cli(f"{words} --output run")  # the same code continues


def test_another_checkpoint_of_one_name_makes_another_run(tmp_path, monkeypatch):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS["tiny-target"], checkpoint)
    settings = {"model": str(checkpoint), "verifier": None}
    before = identified(settings)
    assert identified(settings | {"lr": "?"}) == before
    os.utime(checkpoint / "model.safetensors", (1, 1))
    assert identified(settings) == before, "the same content at another time"
    monkeypatch.setattr("lr.measure.running.SMALL_FILE", 100)  # weights of gigabytes
    large = identified(settings)
    os.utime(checkpoint / "model.safetensors", (2, 2))
    assert identified(settings) != large
    weights = checkpoint / "model.safetensors"
    for key, value, path in (
        ("judge_model", checkpoint, checkpoint),
        ("draft_model", f"int4:{checkpoint}", checkpoint),
        ("verifier", f"judge:0.5@{checkpoint}", checkpoint),
        ("verifier", f"fitted:{weights}:0.8", weights),
        ("variant", f"{weights}:mine(width=3)", weights),
    ):
        assert f"content of {path}" in identified({key: str(value)})
    served = {"judge_model": "a name on the server", "served_judge": True}
    assert identified(served).keys() == {*served, "lr"}


def test_a_run_says_what_was_left_out_and_not_graded(tmp_path, cli):
    program = {"prompt": "def f():\n", "test": "assert f()", "entry_point": "f"}
    rows = [program, {"problem": "How many?", "answer": ""}, {"question": "Why?"}]
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    words = f"run --dataset {data} --mode draft --output {out} --model tiny-target"
    words += " --max_tokens_len 100"
    assert "--skip_bad_rows" in cli(words, 2).err
    notes = cli(f"{words} --skip_bad_rows").err
    assert "1 bad row" in notes and "2 NOT GRADED" in notes
    assert (out / "samples.jsonl").is_file()
    notes = cli(f"{words} --skip_bad_rows --run_code").err
    assert "0/1 right (0%), 1 NOT GRADED" in notes


def test_official_defaults():
    flags = RunCommand()
    assert (flags.dataset, flags.prefix) == ("aime-2024.jsonl", "AIME")
    options = flags.generation
    assert (options.depth, options.width, options.num_speculative_tokens) == (4, 1, 6)
    assert (options.prompt_lookup_max, flags.max_tokens_len) == (2, 37000)
    assert not options.ignore_half_sentence and options.drafter == "ngram"
    assert RunCommand(use_spec=True, mode="lr+sd").chosen_mode() == "lr+sd"
