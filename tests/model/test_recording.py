"""CUDA graphs are recorded when a runner is made, so never while another model runs.
The recorder is the twin without CUDA.
"""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from attention_kit import TILES

from lr.model.graphs import RECORDED_ROWS, recorder_for
from lr.model.qwen import CausalLM
from lr.reasoner import Reasoner
from lr.types import Role

QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)


@pytest.fixture
def events(monkeypatch):
    """What is recorded and what runs, in order; all models are replayed from now on. A
    recording takes its time."""
    events = []

    def record(compute):
        events.append("recording")
        time.sleep(0.002)
        events.append("recorded")

        def replay():
            events.append("forward")
            return compute()

        return replay

    def equip(model, name, *, graphs):
        model.attention = TILES

    monkeypatch.setattr("lr.model.graphs.recorder_for", lambda device: record)
    monkeypatch.setattr("lr.engine.loading.equip", equip)
    monkeypatch.setattr(CausalLM, "replayable", True)
    # The draft's worker is a thread, as where one GPU has both models.
    monkeypatch.setattr("lr.engine.engine.is_one_gpu", lambda draft, target: True)
    return events


def small_reasoner():
    return Reasoner("tiny-draft", "tiny-draft", "exact", dtype=torch.float64)


def test_nothing_is_recorded_while_a_model_runs(events):
    """The target waits until the draft's thread has recorded. The second answer records
    nothing."""
    short = {"max_tokens": 20, "max_step_tokens": 20, "acceptance": "match"}
    ahead = {"mode": "lr+sd", "drafter": "draft", "driver": "overlapped", "depth": 1}
    with small_reasoner() as reasoner:
        plain = reasoner.generate(QUESTION, mode="ar", **short)
        for runners in reasoner.engine.runners.values():
            runners.end()
        for recordings in (3, 0):
            events.clear()
            answer = reasoner.generate(QUESTION, **short, **ahead)
            assert answer.tokens == plain.tokens
            first = 2 * len(RECORDED_ROWS) * recordings
            assert events[:first] == ["recording", "recorded"] * (first // 2)
            assert set(events[first:]) == {"forward"}


class FakeGraphs:
    """CUDA's part in recording, without CUDA: its calls in order. `broken`: those that
    raise. `open`: the pool for which the allocator thinks that it records."""

    def __init__(self, patch):
        self.calls = []
        self.open = None
        self.broken = ()
        stream = SimpleNamespace(wait_stream=lambda other: None)
        patch.setattr("lr.model.graphs.recording_stream", lambda device: stream)
        fakes = {
            "CUDAGraph": lambda: self,
            "graph_pool_handle": lambda: (0, 7),
            "current_stream": lambda device: stream,
            "current_device": lambda: 1,  # in `_abandon`
            "device": nullcontext,
            "stream": nullcontext,
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        for name, fake in (
            ("_cuda_clearCublasWorkspaces", lambda: self.calls.append("clear")),
            ("_cuda_endAllocateToPool", self.end_allocate),
        ):
            patch.setattr(torch._C, name, fake, raising=False)

    def call(self, name):
        self.calls.append(name)
        if name in self.broken:
            raise RuntimeError(f"{name}: failed")

    def capture_begin(self, pool, capture_error_mode):
        self.open = pool
        self.call("begin")

    def capture_end(self):
        self.call("end")  # where it raises, older PyTorch leaves the pool open
        self.open = None

    def end_allocate(self, device, pool):
        if self.open != pool:
            raise RuntimeError("nothing is recorded into this pool")
        self.open = None

    def compute(self):
        self.call("warm" if self.open is None else "recorded")
        return torch.ones(1)


BROKEN = [("recorded", "end"), ("recorded",), ("end",), ("begin", "end")]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_recording_that_fails_is_ended_and_says_why(broken, monkeypatch):
    """The first error is raised, and the allocator is told that nothing is recorded any
    more. cuBLAS forgets its workspaces before and after a recording, so that no two
    graphs share one."""
    fake = FakeGraphs(monkeypatch)
    record = recorder_for(torch.device("cuda"))
    fake.broken = broken
    with pytest.raises(RuntimeError, match=f"^{broken[0]}: "):
        record(fake.compute)
    assert fake.open is None
    fake.broken = ()
    record(fake.compute)
    assert fake.calls[-6:] == "warm clear begin recorded end clear".split()


def test_close_gives_up_all_graphs(events):
    """Those of the draft's thread too. Asked again, they answer as before."""
    options = {"mode": "lr", "driver": "overlapped", "max_tokens": 20}
    with small_reasoner() as reasoner:
        engine, worker = reasoner.engine, reasoner.engine.worker
        first = reasoner.generate(QUESTION, **options)
        late = time.monotonic() + 10
        while not worker.load()[0].idle and time.monotonic() < late:
            time.sleep(0.01)  # the thread hears it soon
        runners = [*worker.load()[0].idle, *engine.runners[Role.TARGET].idle]
        assert len(runners) == 2 and all(runner.graphs for runner in runners)
        reasoner.close()
        assert not any(runner.graphs for runner in runners)
        assert not worker.load()[0].idle
        assert reasoner.generate(QUESTION, **options).tokens == first.tokens
