"""Rank 0's model and cache: for the rest of the house a `CausalLM` and a `PagedKVCache`, which tell
the followers what they do.

A pass has two orders: `Feed` (tokens, slots, block tables: the hidden states) and `Logits`. What
the cache did in between, blocks zeroed or copied, is put on the queue and goes out with the next of
them; forks, releases and truncations are book-keeping of the leader alone, because a follower is
told the blocks of every branch it is to read. Worked example: two forks share block 5 and each gets
a token. The leader's cache copies block 5 to 6, which queues Prepare(fresh=(), copies=((5, 6),));
the message of the pass is then [Prepare, Feed(slots=(23, 25), blocks=([5], [6]), ...)].
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lr.errors import ProtocolError
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import AttentionBackend
from lr.model.batch import RaggedBatch
from lr.model.parallel.network import RankLM
from lr.model.parallel.orders import DropCache, Feed, NewCache, Prepare
from lr.model.parallel.team import Team


class LeaderCache(PagedKVCache):
    """The cache of rank 0's KV heads; the followers' caches do what it does."""

    def __init__(self, team: Team, number: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.team, self.number = team, number
        weakref.finalize(self, team.later, DropCache(number)).atexit = False

    def prepare(self, fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        super().prepare(fresh, copies)
        self.team.later(Prepare(self.number, tuple(fresh), tuple(copies)))


class LeaderLM(RankLM):
    """A model that is spread over a team. To be used through a cache that it has made: `hidden` and
    `logits`, or `forward`.
    """

    team: Team
    number: int

    def lead(self, team: Team, number: int) -> None:
        """Belong to a team, whose followers have the other parts under this number."""
        self.team, self.number = team, number

    def close(self) -> None:
        """End the team, with all its models."""
        self.team.close()

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """A cache for the KV heads of all ranks. Raises `SettingError` for a size below 1."""
        number = self.team.number()
        cache = LeaderCache(self.team, number, **self.cache_sizes(num_blocks, block_size))
        self.team.later(NewCache(self.number, number, num_blocks, block_size))
        return cache

    def forward(
        self, batch: RaggedBatch, cache: PagedKVCache, backend: AttentionBackend | None = None
    ) -> Tensor:
        """As that of `CausalLM`; all ranks take part. Raises `WorkerError`."""
        if not isinstance(cache, LeaderCache):
            raise ProtocolError(
                "a tensor-parallel model needs a cache that its own make_cache has made."
            )
        known = self.attention.name if backend is None else backend
        with self.team.together(_feed(self.number, batch, cache.number, known)):
            return super().forward(batch, cache, backend)


def _feed(number: int, batch: RaggedBatch, cache: int, backend: str | AttentionBackend) -> Feed:
    """The order for a batch. Block ids go as arrays, which are sent as bytes: a long context has
    thousands of them.
    """
    return Feed(
        number,
        cache,
        batch.tokens.tolist(),
        batch.slots.tolist(),
        batch.counts,
        batch.lengths,
        [array("i", table.blocks) for table in batch.tables],
        None if batch.logit_rows is None else batch.logit_rows.tolist(),
        backend,
    )
