"""`lr run` as a stranger meets it: the official commands, what contradicts, what is
refused, interruption and going on.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from tests_root import ROOT

from lr.commands.cli import main
from lr.commands.options import Placement
from lr.commands.run import OFFICIAL, TINY, RunCommand, RunModels, RunTally
from lr.engine.answer import Answer
from lr.engine.engine import Engine
from lr.errors import LRError, SettingError
from lr.measure.datasets import Item
from lr.measure.grading import Grade, Grader
from lr.measure.report import AnswerRecord
from lr.measure.running import engine_options, family_sampling
from lr.measure.store import Store
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import GenerateOptions

SAMPLE = Path(__file__).with_name("aime_sample.jsonl")
OFFICIAL_MODES = {
    "lr": ("--use_spec", "--ignore_half_sentence"),
    "lr+sd": ("--use_spec", "--ignore_half_sentence", "--enable_n_gram"),
    "sd": ("--enable_n_gram",),
    "ar": (),
}


def installed(*words: str, **more: Any) -> subprocess.Popen[str]:
    """The command in a process of its own, on a machine without CUDA devices."""
    surroundings = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "lr", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings,
        **more,
    )


def read(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in folder.glob("*.json")
    }


def test_the_four_official_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word but for the file's name; the machine has no CUDA device, so the
    tiny family answers, and says so.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    folders = []
    for mode, switches in OFFICIAL_MODES.items():
        code = main(["run", "--dataset", str(SAMPLE), *switches])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert (
            "no CUDA device here" in err
            and f"mode {mode}: 4 answers" in err
            and "Traceback" not in err
        )
        folders.append(tmp_path / out.strip())
        files = read(folders[-1])
        assert sorted(files) == sorted(
            [*(f"{i}.json" for i in range(4)), "run.json", "session-0.json"]
        )
        official = {
            "question",
            "full_text",
            "full_tokens",
            "generation_tokens",
            "gold",
            "time_taken",
            "speed",
            "question_id",
        }
        assert all(official <= files[f"{i}.json"].keys() for i in range(4))
        assert sum(files[f"{i}.json"]["right"] for i in range(4)) >= 3
        assert files["run.json"]["settings"]["mode"] == mode
    assert main(["report", *map(str, folders)]) == 0
    shown = capsys.readouterr().out
    assert all(folder.name in shown for folder in folders) and "speedup" in shown


@pytest.mark.parametrize("mode", ["ar", "sd", "lr", "lr+sd", "draft", "specreason"])
def test_modes_on_tiny_problems(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 4
    words = [
        "run",
        "--dataset",
        "tiny:4",
        "--mode",
        mode,
        "--concurrency",
        "10",
        "--output",
        str(tmp_path),
    ]
    words += (
        ["--verifier", "oracle"] if mode in OFFICIAL_MODES else []
    )  # the judge decides in the test above
    words += [*OFFICIAL_MODES.get(mode, ()), "--threads", "1"]
    assert main(words) == 0
    files = read(tmp_path)
    right = sum(files[f"{i}.json"]["right"] for i in range(count))
    assert right >= count - 1 or mode in ("draft", "specreason"), (
        "these two are worse, by design and by threshold"
    )
    if mode == "lr":
        assert all(files[f"{i}.json"]["stats"]["judged"] > 0 for i in range(count))
        assert main(words) == 0
        assert "4 of them there already" in capsys.readouterr().err


def test_kill_9_in_the_middle_and_again(tmp_path: Path) -> None:
    words = ("--dataset", "tiny:24", "--output", str(tmp_path), "--mode", "draft")
    killed = installed(*words)
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob("[0-9]*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in tmp_path.glob("[0-9]*.json")
    }
    assert 2 <= len(before) < 24, "it was killed in the middle"
    for _, content in before.values():
        json.loads(content)
    assert main(["run", *words]) == 0
    after = read(tmp_path)
    assert {f"{i}.json" for i in range(24)} <= after.keys() and not list(
        tmp_path.glob(".*")
    )
    assert all(
        (path.stat().st_mtime_ns, path.read_bytes()) == old
        for path, old in before.items()
    ), "none done twice"
    assert after["session-1.json"]["problems"] == 24 - len(before)
    assert main(["run", *words, "--seed", "1"]) == 2, (
        "another run does not go on in this folder"
    )


def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = RunTally.add

    def interrupt(tally: RunTally, done: AnswerRecord) -> None:
        add(tally, done)
        if len(tally.rights) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunTally, "add", interrupt)
    words = ["run", "--dataset", "tiny:6", "--mode", "draft", "--output", str(tmp_path)]
    assert main(words) == 130
    said = capsys.readouterr().err
    assert (
        "of 6 answers" in said
        and "continues with the rest" in said
        and "Traceback" not in said
    )
    monkeypatch.undo()
    assert main(words) == 0
    assert {f"{i}.json" for i in range(6)} <= read(tmp_path).keys()


@pytest.mark.parametrize("grading", ["at once", "after the last answer"])
def test_ctrl_c_while_an_answer_is_written_loses_none(
    grading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the pairs of the first answer are there and the answer is not."""
    work, grade, write = Engine.serve, Grader.grade, Store.write
    over, broken = Event(), list[str]()

    def serve(engine: Engine, runs: Any, *how: Any) -> Iterator[tuple[Answer, object]]:
        yield from work(engine, runs, *how)
        if len(runs) == 3:  # and it does not only warm up
            over.set()

    def graded(grader: Grader, item: Item, text: str) -> Grade:
        assert grading == "at once" or over.wait(60)
        return grade(grader, item, text)

    def interrupted(store: Store, name: str, content: Any) -> None:
        if name == "0.json" and not broken:
            broken.append(name)
            raise KeyboardInterrupt
        write(store, name, content)

    monkeypatch.setattr(Engine, "serve", serve)
    monkeypatch.setattr(Grader, "grade", graded)
    monkeypatch.setattr(Store, "write", interrupted)
    words = [
        "run",
        "--dataset",
        "tiny:3",
        "--mode",
        "lr",
        "--verifier",
        "oracle",
        "--save_pairs",
    ]
    words += ["--output", str(tmp_path)]
    assert main(words) == 130
    done = {f"{i}.json" for i in range(3)} & read(tmp_path).keys()
    assert "0.json" in done and (grading == "at once" or len(done) == 3)
    assert all(read(tmp_path / "pairs")[name]["pairs"] for name in done)
    assert main(words) == 0
    assert {f"{i}.json" for i in range(3)} <= read(tmp_path).keys()


def test_samples_of_one_question_keep_the_pairs_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the first one is graded: pairs belong to the answer that they were
    judged in."""
    work, grade, over = Engine.serve, Grader.grade, Event()

    def serve(engine: Engine, runs: Any, *how: Any) -> Iterator[tuple[Answer, object]]:
        yield from work(engine, runs, *how)
        if len(runs) == 2:
            over.set()

    def late(grader: Grader, item: Item, text: str) -> Grade:
        assert over.wait(60)
        return grade(grader, item, text)

    monkeypatch.setattr(Engine, "serve", serve)
    monkeypatch.setattr(Grader, "grade", late)
    words = [
        "run",
        "--dataset",
        "tiny:1",
        "--mode",
        "lr",
        "--verifier",
        "oracle",
        "--save_pairs",
    ]
    assert main([*words, "--n_samples", "2", "--output", str(tmp_path)]) == 0
    for name, kept in read(tmp_path / "pairs").items():
        record, n = read(tmp_path)[name], len(kept["prompt"])
        assert len(kept["pairs"]) >= record["stats"]["judged"] > 0, name
        first = next(one for one in kept["pairs"] if not one["context"])
        if first["verdict"]["aligned"]:
            written = first["draft"]["tokens"]
            assert record["full_tokens"][n : n + len(written)] == written


def test_an_answer_whose_grade_is_pending_when_a_model_fails_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, grade, failed = Engine.serve, Grader.grade, Event()

    def fails(
        engine: Engine, runs: list[Answer], concurrency: int = 1
    ) -> Iterator[tuple[Answer, object]]:
        done = 0
        for run, step in work(engine, runs, concurrency):
            if done == 2:
                failed.set()
                raise LRError("rank 1 is lost")
            done += run.done
            yield run, step

    def slow(grader: Grader, item: Item, text: str) -> Grade:
        assert failed.wait(60)
        return grade(grader, item, text)

    monkeypatch.setattr(Engine, "serve", fails)
    monkeypatch.setattr(Grader, "grade", slow)
    assert (
        main(
            ["run", "--dataset", "tiny:4", "--mode", "draft", "--output", str(tmp_path)]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "rank 1 is lost" in said and "2 of 4 answers" in said and "/2 right" in said
    assert {"0.json", "1.json"} <= read(tmp_path).keys()


def test_a_prompt_that_does_not_fit_counts_as_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--dataset",
        "tiny:2",
        "--mode",
        "draft",
        "--max_tokens_len",
        "5",
        "--output",
        str(tmp_path),
    ]
    assert main(["run", *words]) == 0
    said = capsys.readouterr().err
    assert "2 of 2 answers: 0/2 right" in said and "continues" not in said


def test_a_disk_that_fills_stops_the_run_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []

    def fsync(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 7:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    assert (
        main(
            [
                "run",
                "--dataset",
                "tiny:10",
                "--output",
                str(tmp_path),
                "--mode",
                "draft",
            ]
        )
        == 2
    )
    assert "No space left" in capsys.readouterr().err
    assert 2 <= len(read(tmp_path)) < 10, "each of them whole"
    monkeypatch.undo()
    assert (
        main(
            [
                "run",
                "--dataset",
                "tiny:10",
                "--output",
                str(tmp_path),
                "--mode",
                "draft",
            ]
        )
        == 0
    )
    assert {f"{i}.json" for i in range(10)} <= read(tmp_path).keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--mode", "ar", "--use_spec"], "--mode ar contradicts --use_spec (mode lr)"),
        (
            ["--mode", "lr", "--use_spec", "--enable_n_gram"],
            "contradicts --use_spec and --enable_n_gram",
        ),
        (
            ["--enable_n_gram", "--drafter", "draft"],
            "drafter is 'draft', expected 'ngram'",
        ),
        (["--judge_port", "80000"], "expected a number from 1 to 65535"),
        (["--target_gpu_id", "one"], "numbers of CUDA devices"),
        (["--max_depth", "0"], "depth is 0"),
        (["--concurrency", "0"], "concurrency is 0"),
        (["--save_pairs"], "mode is 'ar', expected lr or lr+sd: --save_pairs"),
        (["--protocol", "acceptance"], "use mode lr"),
        (["--start_qid", "5"], "has 3"),
        (["--output", os.devnull + "/x"], "cannot be written"),
        (["--code_seconds", "0", "--use_spec"], "code_seconds is 0"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(
    words: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        RunModels, "load", lambda *_, **__: pytest.fail("models were loaded")
    )
    assert main(["run", "--dataset", "tiny:3", *words]) == 2
    captured = capsys.readouterr()
    assert expected in " ".join(captured.err.split()) and captured.out == ""


def test_unknown_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": "x", "label": 3}\n', encoding="utf-8")
    assert main(["run", "--dataset", str(odd)]) == 2
    assert "text, label" in capsys.readouterr().err


def test_official_defaults() -> None:
    flags = RunCommand()
    assert (flags.dataset, flags.prefix, flags.max_depth, flags.width) == (
        "aime-2024.jsonl",
        "AIME",
        4,
        1,
    )
    assert (
        flags.num_speculative_tokens,
        flags.prompt_lookup_max,
        flags.max_tokens_len,
    ) == (
        6,
        2,
        37000,
    )
    assert (flags.models.target_gpu_id, flags.models.draft_gpu_id) == ("0,1", "2")
    assert RunCommand(use_spec=True, mode="lr+sd").chosen_mode() == "lr+sd"
    with pytest.raises(SettingError):
        RunCommand(enable_n_gram=True, mode="lr").chosen_mode()


def test_the_models_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    chosen, note = RunModels().chosen("aime.jsonl")
    assert (
        chosen.model,
        chosen.draft_model,
        chosen.judge_model,
    ) == OFFICIAL and note is None
    assert chosen.devices() == ("cuda:0", "cuda:2", "cuda:2"), (
        "the judge's default device is not there"
    )
    with pytest.raises(SettingError, match="has 3 CUDA devices"):
        RunModels(draft_gpu_id="7").devices()
    for count, target, draft in (
        (1, [0], 0),
        (2, [0], 1),
        (3, [0, 1], 2),
        (4, [0, 1], 2),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        places = chosen.target_device()
        assert isinstance(places, tuple)
        assert [one.index for one in places] == target, f"{count} GPUs"
        assert chosen.devices()[1] == f"cuda:{draft}"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    alone = chosen.used_in("ar", GenerateOptions(mode="ar")).target_device()
    assert isinstance(alone, tuple) and len(alone) == 2
    assert RunModels().chosen("tiny:5")[0].model == TINY[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen, note = RunModels().chosen("aime.jsonl")
    assert (
        chosen.model,
        chosen.draft_model,
        chosen.judge_model,
    ) == TINY and note is not None


def test_every_model_goes_to_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def load(name: str, *, device: torch.device, dtype: torch.dtype | None) -> CausalLM:
        seen[name] = str(device)
        return load_model(name, device="cpu", dtype=dtype)

    monkeypatch.setattr("lr.reasoner.load_model", load)
    monkeypatch.setattr("lr.engine.verifiers.load_model", load)
    monkeypatch.setattr("lr.model.device.find_device", torch.device)
    monkeypatch.setattr(RunModels, "devices", lambda _: ("cuda:0", "cuda:2", "cuda:3"))
    models, _ = RunModels(placement=Placement(dtype="float32")).chosen("tiny:1")
    models.used_in("lr", GenerateOptions()).load().close()
    assert seen == {
        "tiny-target": "cuda:0",
        "tiny-draft": "cuda:2",
        "tiny-judge": "cuda:3",
    }


def test_sampling_by_family() -> None:
    assert family_sampling("Qwen/Qwen3-32B") == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
    }
    assert family_sampling("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B")["top_k"] == 0
    assert family_sampling("other") == {}
    options = engine_options("lr", "acceptance", GenerateOptions(depth=4, width=3))
    assert (options.schedule, options.depth, options.width) == ("paper", 1, 1)


def test_a_run_says_what_was_left_out_and_not_graded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": "def f():\n", "test": "def check(f):\n    assert f()", "entry_point": "f",
         "task_id": "T/0"},
        {"problem": "How many?", "answer": ""},
        {"question": "Why?"},
    ]  # fmt: skip
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["run", "--dataset", str(data), "--mode", "draft", "--output", str(out)]
    words += ["--model", "tiny-target", "--max_tokens_len", "100"]
    assert main(words) == 2
    assert "--skip_bad_rows" in capsys.readouterr().err
    assert main([*words, "--skip_bad_rows"]) == 0
    notes = capsys.readouterr().err
    assert "1 bad row" in notes and "2 NOT GRADED" in notes
    sample = json.loads((out / "samples.jsonl").read_text(encoding="utf-8"))
    assert sample["task_id"] == "T/0"
    assert main([*words, "--skip_bad_rows", "--run_code"]) == 0
    assert "0/1 right (0%), 1 NOT GRADED" in capsys.readouterr().err
