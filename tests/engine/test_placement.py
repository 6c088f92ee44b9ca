"""Where models run, and what that makes of the draft's worker. No GPU is needed to decide."""

from __future__ import annotations

import pytest
import torch

from lr import Reasoner
from lr.engine.launch import Where
from lr.engine.placement import Layout, draft_worker
from lr.errors import SettingError
from lr.model.weights import load_model


def layout(target: str, draft: str, judge: str = "cpu") -> Layout:
    return Layout(
        tuple(map(torch.device, target.split())), torch.device(draft), torch.device(judge)
    )


@pytest.mark.parametrize(
    ("target", "draft", "worker"),
    [
        ("cuda:0 cuda:1", "cuda:2", Where.PROCESS),  # the paper's
        ("cuda:0", "cuda:0", Where.THREAD),
        ("cuda", "cuda:0", Where.THREAD),
        ("cuda:0 cuda:1", "cuda:1", Where.THREAD),
        ("cuda:0", "cuda:1", Where.PROCESS),
        ("cuda:0", "cpu", Where.PROCESS),
        ("cpu", "cpu", Where.PROCESS),
        ("mps", "mps", Where.PROCESS),
    ],
)
def test_a_shared_gpu_makes_the_worker_a_thread(target: str, draft: str, worker: Where) -> None:
    assert layout(target, draft).worker is worker


def test_layouts_are_checked() -> None:
    assert Layout.of("cpu") == layout("cpu", "cpu")
    assert Layout.of("cpu", {"draft": torch.device("cpu")}).draft == torch.device("cpu")
    with pytest.raises(SettingError, match="device is 'nowhere'"):
        Layout.of("cpu", {"judge": "nowhere"})


def test_a_thread_shares_the_weights_a_process_loads_its_own() -> None:
    model = load_model("tiny-draft", dtype=torch.float32)
    shared = draft_worker(layout("cuda:0", "cuda:0"), model, "tiny-draft", torch.float32, (b"x",))
    assert shared.where is Where.THREAD and shared.load().model is model
    apart = draft_worker(layout("cpu", "cpu"), model, "tiny-draft", torch.float32, (b"x",))
    other = apart.load().model
    assert apart.where is Where.PROCESS and other is not model
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_a_worker_thread_on_the_same_weights_answers_as_lockstep_does() -> None:
    """What one GPU for both does, on the CPU: the thread and the target's driver use one model
    object at the same time.
    """
    with Reasoner("tiny-target", "tiny-draft", "oracle") as reasoner:
        models = reasoner.models
        assert models.draft is not None
        tokens = tuple(map(models.codec.token_bytes, range(models.codec.vocab_size)))
        worker = draft_worker(
            layout("cuda:0", "cuda:0"), models.draft, "tiny-draft", torch.float32, tokens
        )
        assert models.worker is not None
        models.worker.load, models.worker.where = worker.load, worker.where
        question = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
        settings = {"mode": "lr+sd", "drafter": "draft", "max_tokens": 120}
        one = reasoner.generate(question, driver="overlapped", **settings)
        assert one.tokens == reasoner.generate(question, driver="lockstep", **settings).tokens
