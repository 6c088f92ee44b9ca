"""Many answers in the making, served by common forwards: the tests of recorded answers
in a quarter of the time.

Each answer has its own thread, runner and cache, and does all that it does alone, but
for one thing: where it asks a model for a forward, it waits until every answer waits,
and then one pass through the layers serves all, each with the attention over its own
cache. One thread runs at a time. In fp64 the tokens do not depend on the company
(`tests/engine/test_serving.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Condition
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionKind, RaggedBatch
from lr.model.qwen import CausalLM

Answer = TypeVar("Answer")


@dataclass
class Asked:
    """A forward that an answer waits for."""

    model: CausalLM
    batch: RaggedBatch
    cache: PagedKVCache
    attention: AttentionKind | None
    logits: Tensor | None = None


def with_shared_forwards(
    models: Iterable[CausalLM], jobs: Sequence[Callable[[], Answer]]
) -> list[Answer]:
    """The results of the jobs, in whose forwards of `models` as many as possible take
    part."""
    turn, waiting, live = Condition(), list[Asked](), len(jobs)

    def serve_if_all_wait() -> None:
        if len(waiting) < live:
            return
        for model in {asked.model for asked in waiting}:
            forward([asked for asked in waiting if asked.model is model])
        waiting.clear()
        turn.notify_all()

    def wait(
        model: CausalLM,
        batch: RaggedBatch,
        cache: PagedKVCache,
        attention: AttentionKind | None = None,
        replay: None = None,
    ) -> Tensor:
        asked = Asked(model, batch, cache, attention)
        waiting.append(asked)
        serve_if_all_wait()
        turn.wait_for(lambda: asked.logits is not None)
        assert asked.logits is not None
        return asked.logits

    def run(job: Callable[[], Answer]) -> Answer:
        nonlocal live
        with turn:
            try:
                return job()
            finally:
                live -= 1
                serve_if_all_wait()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(jobs)) as pool:
        for model in models:
            patch.setattr(model, "forward", partial(wait, model))
        return list(pool.map(run, jobs))


@torch.inference_mode()
def forward(asked: Sequence[Asked]) -> None:
    """One pass of a model for several batches, each with its own cache."""
    model, batches = asked[0].model, [one.batch for one in asked]
    sizes = [len(batch.tokens) for batch in batches]
    looks = [
        (one.attention or model.attention).ragged(one.batch, one.cache) for one in asked
    ]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(looks, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
        return torch.cat([look(layer, *part) for look, *part in parts])

    positions = torch.cat([batch.positions for batch in batches])
    hidden = model.trunk(
        torch.cat([batch.tokens for batch in batches]), positions, attend
    )
    rows, start = [], 0
    for batch, size in zip(batches, sizes, strict=True):
        chosen = torch.arange(size) if batch.logit_rows is None else batch.logit_rows
        rows.append(chosen + start)
        start += size
    logits = model.logits(hidden[torch.cat(rows)]).split(
        [len(chosen) for chosen in rows]
    )
    for one, theirs in zip(asked, logits, strict=True):
        one.logits = theirs
