"""What the draft's worker shares with this process, and that it answers alike all the same."""

from __future__ import annotations

import torch

from lr import Reasoner
from lr.engine.engine import Models
from lr.engine.load import draft_worker
from lr.engine.worker import DraftWorker
from lr.model.codec import Codec
from lr.model.device import DeviceMap
from lr.model.qwen import CausalLM
from lr.model.weights import load_model


def worker(model: CausalLM, device: str) -> DraftWorker:
    codec, where = Codec.load("tiny-draft"), torch.device(device)
    map_ = DeviceMap((where,), torch.device("cpu") if device == "cpu" else where, where)
    models = Models(codec, model, model, codec.vocab_size, None)
    return draft_worker("tiny-draft", models, map_)


def test_a_thread_shares_the_weights_a_process_loads_its_own() -> None:
    model = load_model("tiny-draft", dtype=torch.float32)
    shared = worker(model, "cuda:0")
    assert shared.as_thread and shared.load()[0].model is model
    apart = worker(model, "cpu")
    other = apart.load()[0].model
    assert not apart.as_thread and other is not model
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_a_worker_thread_on_the_same_weights_answers_as_lockstep_does() -> None:
    """What one GPU for both does, on the CPU: the thread and the target's loop use one model
    object at the same time.
    """
    with Reasoner("tiny-target", "tiny-draft", "oracle") as reasoner:
        models = reasoner.models
        assert isinstance(models.draft, CausalLM) and models.worker is not None
        thread = worker(models.draft, "cuda:0")
        models.worker.load, models.worker.as_thread = thread.load, True
        question = (
            "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many "
            "coins does Ben have?"
        )
        settings = {"mode": "lr+sd", "drafter": "draft", "max_tokens": 120}
        one = reasoner.generate(question, driver="overlapped", **settings)
        assert one.tokens == reasoner.generate(question, driver="lockstep", **settings).tokens
