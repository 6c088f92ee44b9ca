"""A model, its cache and its branches: where tokens meet tensors.

`forward` computes the uncomputed tokens of many branches (`kvcache/branch.py`) in one
ragged forward. Prefill, decoding and corrections need no separate code: a prompt is
many uncomputed tokens, a decoded token is one, a corrected step is a few. Example:
append 3 tokens to a branch of 10 cached ones; `forward` computes 3 rows and returns the
logits after the last. Then rewind it to 11 tokens: 11 are cached, none is uncomputed.
Read next: `model/qwen.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import torch
from torch import Tensor

from lr.errors import ContextError, ProtocolError
from lr.kvcache.branch import BLOCK_SIZE, Branch, CacheObserver
from lr.kvcache.cache import bytes_per_block
from lr.model.attention import RaggedBatch
from lr.model.graphs import StepGraphs
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions
from lr.spec.runner import fork_longest
from lr.types import require

RESERVE = (
    2 << 30
)  # bytes of a CUDA device that caches leave free for activations and CUDA graphs
ForwardObserver = Callable[
    [int, int, float], None
]  # called after each: branches, tokens, seconds


class ModelRunner:
    """Runs one model on many branches, in its own cache. A model may have several
    runners.

    All branches share `num_blocks` blocks of `block_size` tokens. `vocab_size` cuts the
    logits to the ids that the tokenizer knows: checkpoints pad their vocabularies, each
    differently. Ids from `known_tokens` on, which only the target knows, can be read
    but get probability 0. A forward has at most `max_batch_tokens` rows; longer prompts
    are computed in pieces. Small forwards of a `replayable` model are replayed from
    CUDA graphs, which are kept until `end`.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        vocab_size: int | None = None,
        known_tokens: int | None = None,
        max_batch_tokens: int = 4096,
        observer: ForwardObserver | None = None,
    ) -> None:
        rows = model.config.vocab_size
        require(num_blocks > 0, "num_blocks", num_blocks, "a whole number > 0")
        require(
            max_batch_tokens > 0,
            "max_batch_tokens",
            max_batch_tokens,
            "a whole number > 0",
        )
        self.vocab_size = rows if vocab_size is None else vocab_size
        expected = f"1 to {rows}, the rows of the embedding"
        require(0 < self.vocab_size <= rows, "vocab_size", vocab_size, expected)
        known = self.vocab_size if known_tokens is None else known_tokens
        require(known > 0, "known_tokens", known, "a whole number > 0, or None")
        self.known_tokens = min(known, self.vocab_size)
        self.model, self.max_batch_tokens, self.observer = (
            model,
            max_batch_tokens,
            observer,
        )
        self.kind = model.attention  # stays the same if the model's changes
        self.cache = model.make_cache(
            num_blocks + model.replayable, block_size
        )  # + 1: padding
        self.graphs = StepGraphs(model, self.cache) if model.replayable else None
        self.live: dict[Branch, None] = {}  # the open branches, in the order of opening

    @property
    def failure(self) -> str | None:
        """Why the CUDA graphs could not be recorded, else None."""
        return None if self.graphs is None else self.graphs.failure

    def end(self) -> None:
        """Free the CUDA graphs."""
        if self.graphs is not None:
            self.graphs.close()
            self.graphs = None

    def open(self, tokens: Sequence[int], *, shared: bool = False) -> Branch:
        """A new branch of these tokens (at least one), all uncomputed. Raises
        `ContextError`. `shared`: fork an open branch that begins with them, if any; the
        last stays uncomputed.
        """
        require(
            len(tokens) > 0,
            "the number of tokens to open a branch with",
            0,
            "at least one",
        )
        self._require_fit(tokens, len(tokens))
        whole, size = list(tokens), len(tokens)
        equal = [
            one for one in reversed(self.live) if shared and one.tokens[:size] == whole
        ]
        if equal:  # fork the one with the most computed tokens, of several the latest
            return fork_longest(
                self, [max(equal, key=lambda one: one.table.length)], whole
            )
        return self._opened(Branch(whole, self.cache.new()))

    def fork(self, branch: Branch) -> Branch:
        """A second branch with the same tokens and the same cached blocks; copies no
        K/V."""
        return self._opened(Branch(list(branch.tokens), self.cache.fork(branch.table)))

    def _opened(self, branch: Branch) -> Branch:
        self.live[branch] = None
        return branch

    def rewind(self, branch: Branch, length: int) -> None:
        """Cut a branch to its first `length` tokens, in the cache too."""
        expected = f"0 to {len(branch)}, the branch's length"
        require(0 <= length <= len(branch), "the length to rewind to", length, expected)
        if length < branch.table.length:
            self.cache.truncate(branch.table, length)
        del branch.tokens[length:]

    def close(self, branch: Branch) -> None:
        """Free the blocks of a branch, which must not be used again."""
        self.cache.release(branch.table)
        self.live.pop(branch, None)

    def swap(self, branch: Branch, other: Branch) -> None:
        """Replace the tokens and cache of `branch` by those of `other`, and close
        `other`."""
        if branch is other:
            raise ProtocolError(f"{branch!r} cannot be swapped with itself.")
        self.cache.observer.replaced(branch.table, other.table)
        self.cache.release(branch.table)
        self.live.pop(other, None)
        branch.tokens, branch.table = other.tokens, other.table

    def tag(self, branch: Branch, node: tuple[int, int, int]) -> None:
        """Tell the cache's observer that the branch holds the prefix of this node."""
        self.cache.observer.tag(branch.table, node)

    def forward(
        self,
        branches: Sequence[Branch],
        logits: Literal["last", "all"] | Sequence[int] = "last",
    ) -> list[Tensor]:
        """Compute the uncomputed tokens of all branches, in one ragged forward if they
        fit in it.

        Returns one tensor per branch. "last": logits [v] after its last token; "all":
        logits [t, v] after each of its t uncomputed tokens; a list: logits [m, v] after
        each of the last m = logits[i] tokens of branch i. Raises `ProtocolError` for a
        branch without uncomputed tokens, and `OutOfBlocks` or `ContextError`; the
        forward that fails changes nothing.
        """
        if not branches:
            return []
        uncomputed = [branch.uncomputed for branch in branches]
        if isinstance(logits, str):
            expected = '"last", "all" or a number of rows per branch'
            require(logits in ("last", "all"), "logits", logits, expected)
            wanted = [1 if logits == "last" else len(tokens) for tokens in uncomputed]
        else:
            wanted, expected = list(logits), f"{len(uncomputed)}, one number per branch"
            require(
                len(wanted) == len(uncomputed),
                "the length of logits",
                len(wanted),
                expected,
            )
        for branch, tokens, count in zip(branches, uncomputed, wanted, strict=True):
            if not tokens:
                raise ProtocolError(
                    f"{branch!r} is all computed already: append tokens first."
                )
            self._require_fit(tokens, len(branch))
            expected = f"1 to {len(tokens)}, the number of uncomputed tokens"
            require(
                1 <= count <= len(tokens), "a number of rows in logits", count, expected
            )
        if sum(map(len, uncomputed)) <= self.max_batch_tokens:
            together = self._forward(branches, uncomputed, wanted)  # [sum of wanted, v]
            return list(together if logits == "last" else together.split(wanted))
        rows = [
            self._in_pieces(branch, m)
            for branch, m in zip(branches, wanted, strict=True)
        ]
        return [row[0] for row in rows] if logits == "last" else rows

    def _in_pieces(self, branch: Branch, wanted: int) -> Tensor:
        """The last `wanted` rows [wanted, v] of one branch. Example: 5 rows of 11
        tokens, at most 4 tokens at a time; pieces of 4, 4 and 3 tokens give their last
        0, 2 and 3 rows.
        """
        pieces = []
        while tokens := branch.uncomputed[: self.max_batch_tokens]:
            later = len(branch.uncomputed) - len(tokens)
            rows = min(len(tokens), max(0, wanted - later))
            pieces.append(self._forward([branch], [tokens], [rows]))
        return torch.cat(pieces)

    @torch.inference_mode()
    def _forward(
        self,
        branches: Sequence[Branch],
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[int],
    ) -> Tensor:
        """Compute tokens[i] on branch i: logits [sum of wanted, v], after its last
        wanted[i]."""
        started = time.perf_counter()
        tables, device = [branch.table for branch in branches], self.model.device
        with self.cache.append(tables, [len(row) for row in tokens]) as slots:
            batch = RaggedBatch.build(
                tables, tokens, slots, wanted=wanted, device=device
            )
            replay = None if self.graphs is None else self.graphs.run
            logits = self.model(batch, self.cache, self.kind, replay)
        rows: Tensor = logits[:, : self.vocab_size]
        if self.known_tokens < self.vocab_size:
            rows[:, self.known_tokens :] = -torch.inf
        if self.observer is not None:
            self.observer(
                len(branches), len(batch.tokens), time.perf_counter() - started
            )
        return rows

    def _require_fit(self, tokens: Sequence[int], length: int) -> None:
        outside = least if (least := min(tokens)) < 0 else max(tokens)
        expected = f"0 to {self.vocab_size - 1}, the ids of the tokenizer"
        require(0 <= outside < self.vocab_size, "a token id", outside, expected)
        if length > (context := self.model.config.max_position_embeddings):
            raise ContextError(
                f"{length} tokens do not fit the model's context of {context}. Shorten the prompt "
                "or lower max_tokens."
            )


def num_kv_blocks_needed(
    options: GenerateOptions, tokens: int, *, reads: bool = False
) -> int:
    """Cache blocks per model that always suffice for prompt and answer of together
    `tokens` tokens.

    They are one trunk for the longest answer, which all branches share, and two steps
    per node: the draft step that leads to it and the step written after it. Each step
    takes its own tokens, a copy of a shared block, a block that it does not fill, and
    one for a few tokens that two branches both compute (`fork_longest`). Each further
    path of a token tree takes a copied block and its own. `reads`: the target reads
    draft steps for the verifier, on further branches. Example: plain decoding of 1000
    tokens, steps of at most 100: 69 blocks (1100 / 16) and 2 * 9.
    """
    nodes = options.nodes if options.looks_ahead else 1
    trees = options.speculates and options.drafter == "tree"
    leaves = prod(options.branching) if trees else 1
    path = len(options.branching) // BLOCK_SIZE + 3
    step = min(options.max_step_tokens, tokens)
    trunk = -(-(tokens + step) // BLOCK_SIZE)
    row = step // BLOCK_SIZE + 3 + path * (leaves - 1)
    return trunk + (3 if reads else 2) * nodes * row


@dataclass(eq=False)
class Runners:
    """The runners of one model. Each serves one loop at a time, then others if its
    cache is large enough. `num_blocks`: blocks of 16 tokens per cache (None: as
    needed); see `ModelRunner`.
    """

    model: CausalLM
    vocab_size: int | None = None
    known_tokens: int | None = None
    num_blocks: int | None = None
    idle: list[ModelRunner] = field(default_factory=list)

    def lend(self, blocks: int) -> ModelRunner:
        """A runner with an empty cache of at least `blocks` blocks of 16 tokens."""
        wanted = self.num_blocks or blocks
        for at, runner in enumerate(self.idle):
            replays = runner.graphs is not None
            fits = (
                runner.kind is self.model.attention and replays == self.model.replayable
            )
            if (
                fits and runner.cache.pool.num_blocks - replays >= wanted
            ):  # one is for padding
                return self.idle.pop(at)
            del runner  # otherwise its cache would outlive `end`
        self.end()  # free their memory before allocating more
        rows, known = self.vocab_size, self.known_tokens
        return ModelRunner(
            self.model, num_blocks=wanted, vocab_size=rows, known_tokens=known
        )

    def end(self) -> None:
        """Free the idle runners."""
        for runner in self.idle:
            runner.end()
        self.idle.clear()

    def take_back(self, runner: ModelRunner) -> None:
        """Take a runner back. A cache that an error left with blocks in use is not
        reused."""
        runner.observer, runner.cache.observer = None, CacheObserver()
        padding = runner.graphs is not None  # holds one block
        # a draft that writes steps and proposes tokens has two runners
        if runner.cache.pool.num_used == padding and len(self.idle) < 2:
            runner.cache.pool.restart()
            self.idle.append(runner)
        else:
            runner.end()


def room(caches: Sequence[Runners]) -> int | None:
    """How many blocks of 16 tokens each of these caches (one may occur twice) can have
    on CUDA; None without CUDA. On each device they share, in equal numbers of tokens,
    the memory that is free after loading or held by idle caches, less `RESERVE`.
    """
    found = []
    for device in {
        one.model.device for one in caches if one.model.device.type == "cuda"
    }:
        here = [one for one in caches if one.model.device == device]
        each = [
            bytes_per_block(**one.model.cache_shape, block_size=BLOCK_SIZE)
            for one in here
        ]
        free = torch.cuda.mem_get_info(device)[0] - RESERVE
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        idle = {runner.cache for one in here for runner in one.idle}
        free += sum(cache.keys.nbytes + cache.values.nbytes for cache in idle)
        found.append(max(0, free) // sum(each))
    return min(found, default=None)
