"""A model, its cache, and branches: the one place where tokens meet tensors.

A `Branch` is a token list and a block table. Tokens of the list that are not in the cache yet are
*pending*; `feed` pushes whatever is pending on many branches through the model in one ragged
forward. So there is no separate prefill, decode, correction or bonus: a prompt is a branch with
many pending tokens, a decoded token is one more, a corrected step is a few. Example: a branch of 10
tokens, all cached; append 3 tokens, feed: one forward of 3 rows, and the logits after the last.
Rewind it to 11 tokens: 11 are cached and nothing is pending. Read next: `spec/write.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lr.errors import ContextError, ProtocolError
from lr.kvcache.branch import Branch
from lr.model.attention import AttentionBackend
from lr.model.batch import RaggedBatch
from lr.model.graphs import StepGraphs
from lr.model.qwen import CausalLM
from lr.types import require

ForwardObserver = Callable[[int, int, float], None]
"""Called after every forward with the number of branches, the number of tokens and the seconds it
took.
"""


class Reading(NamedTuple):
    """What a model makes of r tokens: logits [r, v] after each of them, and the hidden states [r,
    e] they are made from.
    """

    logits: Tensor
    hidden: Tensor


class ModelRunner:
    """Runs one model over many branches. Several runners, of the same or of different models, live
    side by side.

    `num_blocks` blocks of `block_size` tokens are the memory for all branches together.
    `vocab_size` cuts the logits to the ids that the tokenizer knows (checkpoints pad their
    vocabulary, draft and target not always alike); ids from `known_tokens` on, which the target
    knows and this model does not, can be fed but have probability 0. `max_batch_tokens` bounds the
    rows of one forward; longer prompts go in pieces. `observer` hears of every forward. `backend`
    and `block_size` are those of the model's kind of attention where they are not given; a model
    with `graphs` replays forwards of these shapes, if the backend is its own.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        num_blocks: int,
        block_size: int | None = None,
        vocab_size: int | None = None,
        known_tokens: int | None = None,
        max_batch_tokens: int = 4096,
        backend: AttentionBackend | None = None,
        observer: ForwardObserver | None = None,
    ) -> None:
        config = model.config
        require(num_blocks > 0, "num_blocks", num_blocks, "a whole number > 0")
        require(max_batch_tokens > 0, "max_batch_tokens", max_batch_tokens, "a whole number > 0")
        self.vocab_size = config.vocab_size if vocab_size is None else vocab_size
        require(
            0 < self.vocab_size <= config.vocab_size,
            "vocab_size",
            vocab_size,
            f"1 to {config.vocab_size}, the rows of the embedding",
        )
        proper = known_tokens is None or known_tokens > 0
        require(
            proper, "known_tokens", known_tokens, "a whole number > 0, or None (all of vocab_size)"
        )
        self.known_tokens = (
            self.vocab_size if known_tokens is None else min(known_tokens, self.vocab_size)
        )
        self.model = model
        self.max_batch_tokens = max_batch_tokens
        attention = model.attention
        if backend is None:
            attention.check_block_size(attention.block_size if block_size is None else block_size)
        self.backend = attention.ragged if backend is None else backend
        self.observer = observer
        replays = backend is None and model.graphs is not None and attention.rows is not None
        self.cache = model.make_cache(
            num_blocks + replays, attention.block_size if block_size is None else block_size
        )
        self.graphs: StepGraphs | None = None
        if replays:  # its inert rows have the block that was added
            self.graphs = StepGraphs.of(model, self.cache)

    @property
    def context(self) -> int:
        """The longest sequence the model can hold, in tokens."""
        return self.model.config.max_position_embeddings

    @torch.inference_mode()
    def prepare(self, rows: int, length: int) -> None:
        """Do beforehand what the first forwards of `rows` branches, that grow to `length` tokens,
        would spend time on: recording graphs.
        """
        if self.graphs is not None:
            self.graphs.prepare(rows, length)

    def open(self, tokens: Sequence[int]) -> Branch:
        """A new branch that begins with `tokens` (at least one), all pending. Raises `ContextError`
        if they do not fit the model.
        """
        require(len(tokens) > 0, "the number of tokens to open a branch with", 0, "at least one")
        self._require_tokens(tokens)
        self._require_context(len(tokens))
        return Branch(list(tokens), self.cache.new())

    def fork(self, branch: Branch) -> Branch:
        """A branch with the same tokens that shares all of the cache; no K/V is copied."""
        return Branch(list(branch.tokens), self.cache.fork(branch.table))

    def rewind(self, branch: Branch, length: int) -> None:
        """Forget the tokens of a branch from `length` on, and what the cache holds of them."""
        require(
            0 <= length <= len(branch.tokens),
            "the length to rewind to",
            length,
            f"0 to {len(branch.tokens)}, the branch's length",
        )
        if length < branch.table.length:
            self.cache.truncate(branch.table, length)
        del branch.tokens[length:]

    def close(self, branch: Branch) -> None:
        """Give the blocks of a branch back. It cannot be used afterwards."""
        self.cache.release(branch.table)

    def become(self, branch: Branch, other: Branch) -> None:
        """Let `branch` go on as `other`, with its tokens and its cache; `other` is closed. Nothing
        is copied.
        """
        if branch is other:
            raise ProtocolError(f"{branch!r} cannot become itself.")
        if self.cache.observer is not None:
            self.cache.observer.replaced(branch.table, other.table)
        self.cache.release(branch.table)
        branch.tokens, branch.table = other.tokens, other.table

    def belongs(self, branch: Branch, node: tuple[int, int, int]) -> None:
        """Tell whoever watches the cache that a branch holds the prefix of this node. Changes
        nothing.
        """
        if self.cache.observer is not None:
            self.cache.observer.belongs(branch.table, node)

    def feed(
        self, branches: Sequence[Branch], logits: Literal["last", "all"] | Sequence[int] = "last"
    ) -> list[Tensor]:
        """Push the pending tokens of every branch through the model, in one ragged forward (several
        if they exceed `max_batch_tokens`).

        Returns one tensor per branch: "last": logits [v] of the token after its last one; "all":
        logits [t, v] after each of its t pending tokens; a list of numbers: logits [r, v] after
        each of the last r of branch i, r = logits[i]. Raises `OutOfBlocks` or `ContextError` with
        nothing changed by the failing forward; a branch without pending tokens is a
        `ProtocolError`.
        """
        if not branches:
            return []
        pending = self._checked(branches)
        wanted = _wanted(logits, pending)
        if sum(map(len, pending)) > self.max_batch_tokens:
            rows = [
                self._feed_in_pieces(branch, count).logits
                for branch, count in zip(branches, wanted, strict=True)
            ]
        elif logits == "last":
            return list(self._forward(branches, pending, wanted).logits)
        else:
            rows = list(self._forward(branches, pending, wanted).logits.split(wanted))
        return [row[0] for row in rows] if logits == "last" else rows

    def read(self, branches: Sequence[Branch]) -> list[Reading]:
        """As `feed` with logits "all", and with the hidden states from which the logits were
        made.
        """
        if not branches:
            return []
        pending = self._checked(branches)
        if sum(map(len, pending)) > self.max_batch_tokens:
            return [
                self._feed_in_pieces(branch, len(row))
                for branch, row in zip(branches, pending, strict=True)
            ]
        lengths = [len(row) for row in pending]
        logits, hidden = self._forward(branches, pending, lengths)
        return [
            Reading(*both)
            for both in zip(logits.split(lengths), hidden.split(lengths), strict=True)
        ]

    def _checked(self, branches: Sequence[Branch]) -> list[list[int]]:
        """What is pending on every branch, found to be something that can be fed."""
        pending = [branch.pending for branch in branches]
        for branch, tokens in zip(branches, pending, strict=True):
            if not tokens:
                raise ProtocolError(
                    f"nothing is pending on {branch!r}: append tokens before feeding it."
                )
            self._require_tokens(tokens)
            self._require_context(len(branch))
        return pending

    def _feed_in_pieces(self, branch: Branch, wanted: int) -> Reading:
        """The last `wanted` rows of one branch, fed at most `max_batch_tokens` tokens at a time.

        Example: 11 pending tokens, pieces of 4, 5 rows wanted: pieces of 4, 4 and 3 tokens give
        their last 0, 2 and 3 rows.
        """
        pieces = []
        while tokens := branch.pending[: self.max_batch_tokens]:
            behind = len(branch.pending) - len(tokens)
            pieces.append(
                self._forward([branch], [tokens], [min(len(tokens), max(0, wanted - behind))])
            )
        return Reading(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))

    @torch.inference_mode()
    def _forward(
        self, branches: Sequence[Branch], tokens: Sequence[Sequence[int]], wanted: Sequence[int]
    ) -> Reading:
        """One forward of `tokens[i]`, the first pending tokens of branch i; rows [sum of wanted]
        after the last wanted[i] of each.
        """
        started = time.perf_counter()
        tables = [branch.table for branch in branches]
        with self.cache.append(tables, [len(row) for row in tokens]) as slots:
            batch = RaggedBatch.build(
                tables, tokens, slots, wanted=wanted, device=self.model.device
            )
            replayed = None if self.graphs is None else self.graphs.run(batch)
            if replayed is None:
                hidden = self.model.hidden(batch, self.cache, self.backend)
                logits = self.model.logits(hidden)
            else:
                hidden, logits = replayed
            rows = logits[:, : self.vocab_size]
        if self.known_tokens < self.vocab_size:
            rows[:, self.known_tokens :] = -torch.inf
        if self.observer is not None:
            self.observer(len(branches), len(batch.tokens), time.perf_counter() - started)
        return Reading(rows, hidden)

    def _require_tokens(self, tokens: Sequence[int]) -> None:
        for outside in (min(tokens), max(tokens)):
            expected = f"0 to {self.vocab_size - 1}, the ids of the tokenizer"
            require(0 <= outside < self.vocab_size, "a token id", outside, expected)

    def _require_context(self, length: int) -> None:
        if length > self.context:
            raise ContextError(
                f"{length} tokens do not fit the model's context of {self.context}. Shorten the prompt or lower max_tokens."
            )


def _wanted(
    logits: Literal["last", "all"] | Sequence[int], pending: Sequence[Sequence[int]]
) -> list[int]:
    """How many rows of logits each branch gets."""
    if isinstance(logits, str):
        require(
            logits in ("last", "all"),
            "logits",
            logits,
            '"last", "all" or a number of rows per branch',
        )
        return [1 if logits == "last" else len(tokens) for tokens in pending]
    require(
        len(logits) == len(pending),
        "the length of logits",
        len(logits),
        f"{len(pending)}, one number per branch",
    )
    for count, tokens in zip(logits, pending, strict=True):
        require(
            1 <= count <= len(tokens),
            "a number of rows in logits",
            count,
            f"1 to {len(tokens)}, what is pending",
        )
    return list(logits)
