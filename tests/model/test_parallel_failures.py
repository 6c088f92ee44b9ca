"""A rank that dies, hangs or fails ends the run with its number and the reason; nothing
is left behind, and nobody waits for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel_kit import (
    alive,
    children,
    lead,
    pids_of,
    ranks_of,
    shared_memory,
    wait_for,
)

from lr.commands.cli import main
from lr.commands.run import RunTally
from lr.engine.runner import ModelRunner
from lr.measure.report import AnswerRecord
from lr.model.device import Torchrun
from lr.model.ranks import (
    LeaderLM,
    RankLM,
    Ranks,
    WorkerError,
    _join,
    load_parallel,
    spread_over,
    together,
)

CPU = torch.device("cpu")
RUN = "run --dataset tiny:60 --max_tokens_len 120 --mode ar --tensor_parallel 2 --device cpu".split()
LIMIT = 30.0
"""Seconds within which a run must have ended."""
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc"
)


def feed_for_ever(model: LeaderLM, middle: threading.Event | None = None) -> None:
    """`middle` is set when it is well under way."""
    runner = ModelRunner(model, num_blocks=40)
    branch = runner.open([5, 6, 7])
    while True:
        runner.forward([branch])
        branch.append(8)
        if middle is not None and len(branch) > 10:
            middle.set()
        if len(branch) > 500:
            runner.rewind(branch, 3)
            branch.append(9)


def fails_soon(model: LeaderLM, send: signal.Signals, to: int) -> WorkerError:
    """What a run raises when a signal is sent to a rank in its middle."""
    pids, middle = pids_of(model.group), threading.Event()

    def strike() -> None:
        assert middle.wait(LIMIT)
        os.kill(pids[to - 1], send)

    threading.Thread(target=strike).start()
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        feed_for_ever(model, middle)
    assert time.monotonic() - started < LIMIT
    assert wait_for(lambda: not any(map(alive, pids)), 5), (
        "no rank is left, the stopped one included"
    )
    with pytest.raises(WorkerError) as again:
        feed_for_ever(model)
    assert str(again.value) == str(caught.value)
    assert f"rank {to} (process {pids[to - 1]})" in str(caught.value)
    return caught.value


def test_a_rank_that_is_killed_is_named_not_those_that_lost_it() -> None:
    before = shared_memory()
    error = fails_soon(
        load_parallel("tiny-target", spread_over(4, "cpu")), signal.SIGKILL, 2
    )
    assert "was killed by SIGKILL" in str(error)
    assert shared_memory() <= before


@pytest.fixture
def no_aftermath(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks nobody else can be lost, so a hang is one at once."""
    monkeypatch.setattr("lr.model.ranks.AFTERMATH", 0.1)


@pytest.mark.usefixtures("no_aftermath")
def test_a_rank_that_hangs_is_named_and_ended() -> None:
    model = load_parallel("tiny-target", (CPU, CPU), patience=2.0)
    error = fails_soon(model, signal.SIGSTOP, 1)
    assert "hangs" in str(error)


@pytest.mark.usefixtures("no_aftermath")
def test_a_rank_that_does_not_start_is_not_waited_for() -> None:
    """None starts within ten millionths of a second."""
    with pytest.raises(WorkerError, match=r"rank 1 \(process \d+\) hangs"):
        load_parallel("tiny-target", (CPU, CPU), patience=1e-6)


class NeverDone:
    """A CUDA event behind a sum that a lost rank does not join: NCCL's sums only begin
    in Python, and wait on the GPU.
    """

    def record(self, stream: object) -> None:
        assert stream == "the stream of cuda:0"

    def query(self) -> bool:
        return False


@pytest.mark.usefixtures("no_aftermath")
@pytest.mark.parametrize("how", ["hangs", "was killed by SIGKILL"])
def test_a_gpu_that_waits_for_a_lost_rank_is_not_waited_for(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_parallel(
        "tiny-target", (CPU, CPU), patience=2.0 if how == "hangs" else 1000.0
    )
    (pid,), aborted = pids_of(model.group), list[bool]()
    runner = ModelRunner(model, num_blocks=4)
    branch = runner.open([5, 6, 7])
    runner.forward([branch])
    branch.append(8)
    monkeypatch.setattr(torch.cuda, "Event", NeverDone)
    monkeypatch.setattr(torch.cuda, "current_stream", "the stream of {}".format)
    monkeypatch.setattr(
        dist.ProcessGroup, "abort", lambda group: aborted.append(alive(pid))
    )
    monkeypatch.setattr(model.group.ranks, "device", torch.device("cuda", 0))
    if how != "hangs":
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerError, match=rf"rank 1 \(process {pid}\) {how}"):
        runner.forward([branch])
    assert aborted == [False]  # after the others have ended
    assert not dist.is_initialized()


def test_nccl_ends_other_ranks_but_never_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its watchdog is told so where the group is made, and nobody else hears it."""
    name, seen = "TORCH_NCCL_ASYNC_ERROR_HANDLING", list[tuple[str, str | None]]()
    monkeypatch.setenv(name, "1")  # as torchrun does
    before = dict(os.environ)

    def new_group(backend: str, **how: object) -> None:
        seen.append((backend, os.environ[name]))

    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(Ranks, "tell", lambda self, message: (True, 1, 5.0))
    for rank in (0, 1):
        _join(Ranks(rank, 2, CPU), Torchrun(rank, 2, rank), None)
        assert dict(os.environ) == before
    assert seen == [("nccl", "0"), ("gloo", "1"), ("nccl", "1"), ("gloo", "1")]


def test_a_rank_that_fails_says_why(tmp_path: Path) -> None:
    """Here: a checkpoint that it does not find, as it may be on several machines."""
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    (pid,) = pids_of(model.group)
    why = r"rank 1 \(process \d+\) failed: there is no checkpoint '[^']*elsewhere'"
    with (
        pytest.raises(WorkerError, match=why),
        model.group.together("load", 99, str(tmp_path / "elsewhere"), None),
    ):
        together(dist.barrier)
    assert wait_for(lambda: not alive(pid), 5)
    with pytest.raises(WorkerError, match="elsewhere"):
        model.group.load("tiny-draft")


def test_an_interrupted_pass_ends_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook: the ranks would be out of step, and say so instead of
    waiting for each other.
    """
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    (pid,) = pids_of(model.group)
    monkeypatch.setattr(RankLM, "trunk", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        feed_for_ever(model)
    with pytest.raises(WorkerError, match="interrupted"):
        feed_for_ever(model)
    assert wait_for(lambda: not alive(pid), 5)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def lr(*words: str, torchrun: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The command line, in a process group of its own."""
    starter = (
        [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(torchrun),
        ]
        if torchrun
        else []
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, *starter, "-m", "lr", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        yield run
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def test_the_command_line_when_a_rank_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first answer is there; in this process, whose ranks start quickly."""
    before, add, killed = shared_memory(), RunTally.add, []

    def kill(tally: RunTally, done: AnswerRecord) -> None:
        add(tally, done)
        killed.extend(one.pid for one in active_children() if one.name == "lr rank 1")
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(RunTally, "add", kill)
    assert main([*RUN, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"error: rank 1 (process {killed[0]}) was killed by SIGKILL" in said.replace(
        "\n", " "
    )
    assert "Traceback" not in said and len(killed) == 1 and not alive(killed[0])
    assert "1 of 60 answers" in said and [
        path.name for path in tmp_path.glob("[0-9]*")
    ] == ["0.json"]
    assert shared_memory() <= before


@needs_proc
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    with lr(*RUN, "--output", str(tmp_path)) as run:
        begun = lambda: run.poll() is not None or any(tmp_path.glob("[0-9]*.json"))  # noqa: E731
        assert wait_for(begun, 60) and len(ranks_of(run.pid)) == 1
        others = children(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=LIMIT)
        assert run.returncode == 130
        assert "interrupted" in said
        assert "Traceback" not in said
        assert wait_for(lambda: not any(map(alive, others)), 5)


def test_ranks_end_when_their_leader_is_killed() -> None:
    ours, theirs = multiprocessing.Pipe()
    leader = multiprocessing.get_context("spawn").Process(target=lead, args=(theirs,))
    leader.start()
    (rank,) = ours.recv()
    assert alive(rank)
    leader.kill()
    leader.join()
    assert wait_for(lambda: not alive(rank), LIMIT)


@pytest.mark.usefixtures("whole_targets")
def test_torchrun_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    question = (
        "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins "
        "does Ben have?"
    )
    flags = "--mode ar --device cpu --dtype float64 --max_tokens 6"
    words = ["generate", question, *flags.split()]
    assert main(words) == 0
    alone = capsys.readouterr().out
    with lr(*words, torchrun=2) as run:
        answer, said = run.communicate(timeout=90)
    assert run.returncode == 0, said
    assert answer.strip() == alone.strip() != ""


def test_the_command_line_refuses_what_cannot_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        main(["generate", "How many?", "--tensor_parallel", "3", "--device", "cpu"])
        == 2
    )
    said = capsys.readouterr().err
    assert said.startswith(
        "error: tensor_parallel is 3. It must divide this model's query heads (4) and MLP width"
    )
    assert (
        main(["generate", "How many?", "--tensor_parallel", "0", "--device", "cpu"])
        == 2
    )
    assert "tensor_parallel is 0" in capsys.readouterr().err
    place = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert main(["info"]) == 2
    assert "without torchrun" in capsys.readouterr().err
    assert (
        main(["generate", "How many?", "--tensor_parallel", "4", "--device", "cpu"])
        == 2
    )
    assert "torchrun has started 2 processes" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "first")
    assert main(["info"]) == 2
    assert "RANK='first'" in capsys.readouterr().err
