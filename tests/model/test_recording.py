"""CUDA graphs are recorded when a runner is made, so never while another model runs;
and an answer says what could not be recorded. The recorder is the twin without CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attention_kit import TILES as KIT
from torch import Tensor

from lr.engine.runner import Runners
from lr.engine.verifiers import asked_model
from lr.model.device import DeviceMap
from lr.model.graphs import ROWS, Recorder, recorder_for
from lr.model.qwen import CausalLM
from lr.reasoner import Reasoner
from lr.trace import Warned

QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)


class Diary:
    """What was recorded and what ran, in order. A recording takes its time."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def recorder(self, device: torch.device) -> Recorder:
        return self.record

    def record(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.seen.append("recording")
        time.sleep(0.002)
        self.seen.append("recorded")

        def replay() -> Tensor:
            self.seen.append("forward")
            return compute()

        return replay


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    """All models are replayed from now on."""
    made = Diary()
    monkeypatch.setattr("lr.model.graphs.recorder_for", made.recorder)
    monkeypatch.setattr(CausalLM, "replayable", True)
    return made


def small_reasoner(verifier: str, judge: str | None = None) -> Reasoner:
    """Its draft's worker is a thread, as on one GPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeviceMap, "shares_gpu", True)
        how = {"judge": judge, "dtype": torch.float64}
        made = Reasoner("tiny-draft", "tiny-draft", verifier, **how)  # type: ignore[arg-type]
    for model in made.engine.models.values():
        model.attention = KIT
    return made


@pytest.fixture
def reasoner() -> Iterator[Reasoner]:
    with small_reasoner("exact") as made:
        yield made


def test_graphs_are_recorded_once_for_a_runner(
    reasoner: Reasoner, diary: Diary
) -> None:
    """A runner that is lent again has its graphs; a larger one records anew."""
    model = reasoner.engine.target
    runners = Runners(model)
    runner = runners.lend(4)
    assert len(diary.seen) == 2 * len(ROWS)
    runners.take_back(runner)
    assert runners.lend(3) is runner
    assert len(diary.seen) == 2 * len(ROWS)
    runners.take_back(runner)
    assert runners.lend(9) is not runner
    assert len(diary.seen) == 4 * len(ROWS)
    asked_model(model, reasoner.codec, 4)
    assert len(diary.seen) == 6 * len(ROWS)


@pytest.mark.parametrize("drafter", ["ngram", "draft"])
def test_nothing_is_recorded_while_a_model_runs(
    reasoner: Reasoner, diary: Diary, drafter: str
) -> None:
    """The target waits until the draft's thread has recorded. The second answer records
    nothing."""

    short = {"max_tokens": 20, "max_step_tokens": 20, "acceptance": "match"}

    def answer(**how: Any) -> tuple[int, ...]:
        return reasoner.generate(QUESTION, **how, **short).tokens

    expected = answer(mode="ar")
    reasoner.engine.forget_caches()
    diary.seen.clear()
    how = {"mode": "lr+sd", "drafter": drafter, "driver": "overlapped", "depth": 1}
    first = answer(**how)
    runners = 2 + (drafter == "draft")
    both = ["recording", "recorded"] * len(ROWS) * runners
    assert diary.seen[: len(both)] == both
    assert set(diary.seen[len(both) :]) == {"forward"}
    diary.seen.clear()
    assert answer(**how) == first
    assert set(diary.seen) == {"forward"}
    assert first == expected


@pytest.mark.parametrize(
    ("how", "slower"),
    [
        ({"mode": "ar"}, {"target"}),
        ({"mode": "lr", "driver": "lockstep"}, {"target", "draft", "judge"}),
        ({"mode": "lr", "driver": "overlapped"}, {"target", "draft", "judge"}),
    ],
)
def test_an_answer_says_whose_graphs_were_not_recorded(
    how: dict[str, Any], slower: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft's worker's and the judge's too, whose runner was made when it was
    loaded."""

    def fails(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("out of memory")

    def equipped(model: CausalLM, name: str, *, graphs: bool) -> None:
        model.attention = KIT

    monkeypatch.setattr("lr.model.graphs.recorder_for", lambda device: fails)
    monkeypatch.setattr(CausalLM, "replayable", True)
    monkeypatch.setattr("lr.engine.loading.equip", equipped)
    warned = pytest.warns(RuntimeWarning, match="decoding will be slower")
    with warned, small_reasoner("judge", "tiny-judge") as reasoner:
        trace = reasoner.generate(QUESTION, max_tokens=12, **how).trace
    said = [event.what for _, event in trace.events if isinstance(event, Warned)]
    assert sorted(said) == [
        f"{one}: recording 128 rows failed: out of memory" for one in sorted(slower)
    ]


SPOILT = "operation failed due to a previous error during capture"


class FakeGraphs:
    """CUDA's part in recording, without CUDA. What happened, in order; `broken`: the
    calls that raise.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *broken: str) -> None:
        self.seen: list[str] = []
        self.open: tuple[int, int] | None = (
            None  # the pool that the allocator thinks is recorded
        )
        self.broken = broken
        stream = SimpleNamespace(wait_stream=lambda other: None)
        patch.setattr("lr.model.graphs.recording_stream", lambda index: stream)
        clear = lambda: self.seen.append("clear")  # noqa: E731
        patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
        patch.setattr(torch.cuda, "current_stream", lambda device: stream)
        patch.setattr(torch.cuda, "current_device", lambda: 1)
        patch.setattr(torch.cuda, "device", nullcontext)
        patch.setattr(torch.cuda, "stream", nullcontext)
        patch.setattr(
            torch._C, "_cuda_endAllocateToPool", self.end_allocate, raising=False
        )

    def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
        self.open = pool
        self._do("begin")

    def capture_end(self) -> None:
        self._do(
            "end"
        )  # where it raises, older versions of PyTorch leave the pool open
        self.open = None

    def end_allocate(self, device: int, pool: tuple[int, int]) -> None:
        assert device == 1
        if self.open != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open = None

    def _do(self, what: str) -> None:
        self.seen.append(what)
        if what in self.broken:
            raise RuntimeError(f"{what}: {SPOILT}")

    def compute(self) -> Tensor:
        self._do("compute" if self.open is None else "recorded")
        return torch.ones(1)


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (
            ("recorded", "end"),
            "recorded",
        ),  # a kernel that cannot be recorded spoils the end too
        (("recorded",), "recorded"),
        (("end",), "end"),
        (("begin", "end"), "begin"),
    ],
)
def test_a_recording_that_fails_is_ended_and_says_why(
    broken: tuple[str, ...], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is raised, and the allocator is told that nothing is recorded any
    more. cuBLAS forgets its workspaces before and after a recording, so that no two
    graphs share one."""
    fake = FakeGraphs(monkeypatch, *broken)
    record = recorder_for(torch.device("cuda"))
    with pytest.raises(RuntimeError, match=f"^{first}: "):
        record(fake.compute)
    assert fake.open is None
    fake.broken = ()
    record(fake.compute)
    assert fake.seen[-6:] == ["compute", "clear", "begin", "recorded", "end", "clear"]
    fake.broken = broken
    monkeypatch.delattr(
        torch._C, "_cuda_endAllocateToPool"
    )  # where it has another name
    with pytest.raises(RuntimeError, match=f"^{first}: "):
        record(fake.compute)


@pytest.mark.parametrize("verifier", ["judge", "score:4"])
def test_close_gives_up_all_graphs(
    verifier: str, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the draft's thread too, and of who asks the target or a judge. Asked
    again, they answer as before.
    """

    def equipped(model: CausalLM, name: str, *, graphs: bool) -> None:
        model.attention = KIT

    monkeypatch.setattr("lr.engine.loading.equip", equipped)
    judge = "tiny-judge" if verifier == "judge" else None
    how: dict[str, Any] = {"mode": "lr", "driver": "overlapped", "max_tokens": 20}
    with small_reasoner(verifier, judge) as reasoner:
        engine, worker = reasoner.engine, reasoner.engine.worker
        assert worker is not None
        first = reasoner.generate(QUESTION, **how)
        late = time.monotonic() + 10
        while (
            not worker.load()[0].idle and time.monotonic() < late
        ):  # the thread hears it soon
            time.sleep(0.01)
        asker = engine.judge or engine.target
        runners = [*asker.asked, *worker.load()[0].idle]
        runners += [one for each in engine.runners.values() for one in each.idle]
        graphs = [runner.graphs for runner in runners]
        assert len(graphs) == 3 and all(one.recorded for one in graphs)
        reasoner.close()
        assert not any(one.recorded for one in graphs)
        assert not worker.load()[0].idle
        again = reasoner.generate(QUESTION, **how)
    assert again.tokens == first.tokens
    assert [step.verdict for step in again.steps] == [
        step.verdict for step in first.steps
    ]
