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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from lr.errors import ContextError
from lr.kvcache.branch import BLOCK_SIZE, BlockTable, Branch, CacheObserver
from lr.model.attention import RaggedBatch
from lr.model.graphs import StepGraphs
from lr.model.qwen import CausalLM
from lr.options import GenerateOptions
from lr.spec.sampling import require_finite
from lr.types import require

RESERVE = 2 << 30  # bytes of a GPU that caches leave for activations and CUDA graphs
ForwardObserver = Callable[[int, int, float], None]
"""Is called after each forward: branches, tokens, seconds."""


class ModelRunner:
    """Runs one model on many branches, in its own cache. A model may have several
    runners.

    All branches share `num_blocks` blocks of `block_size` tokens. `vocab_size` cuts the
    logits to the ids that the tokenizer knows: checkpoints pad their vocabularies, each
    differently. Ids from `known_tokens` on, which only the target knows, can be read
    but get probability 0. A forward has at most `max_batch_tokens` rows; longer prompts
    are computed in pieces. Small forwards of a `replayable` model are replayed from
    CUDA graphs, which are kept until `end`; not while hidden states are watched, because
    graphs run no Python.
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
        self.model = model
        self.context = model.config.max_position_embeddings  # tokens, prompt included
        self.max_batch_tokens = max_batch_tokens
        self.observer = observer
        self.vocab_size = vocab_size or model.config.vocab_size  # of the tokenizer
        assert self.vocab_size <= model.config.vocab_size
        self.known_tokens = min(known_tokens or self.vocab_size, self.vocab_size)
        self.num_blocks = num_blocks
        padding = int(model.replayable)  # a block for the padding of CUDA graphs
        self.cache = model.make_cache(num_blocks + padding, block_size)
        self.branches: dict[Branch, None] = {}  # the open ones, the oldest first
        self.layer: str | None = None  # whose hidden states are watched
        self.hidden: list[Tensor] = []  # of the last forward, rows as the logits'
        # CUDA only
        self.graphs = StepGraphs(model, self.cache) if model.replayable else None

    def end(self) -> None:
        """Free the CUDA graphs."""
        if self.graphs is not None:
            self.graphs.close()
            self.graphs = None

    def watch(self, layer: str | None) -> None:
        """From now on keep in `hidden` the states [rows, e] after a layer, "norm" (the
        last) or "layers.12", at the rows of which a forward returns logits; None: no
        more. A target that is split over ranks has them whole on each."""
        names = ["norm", *(f"layers.{i}" for i in range(len(self.model.layers)))]
        expected = f"norm, or layers.0 to {names[-1]} of {self.model.source}"
        require(layer in (None, *names), "layer", layer, expected)
        self.layer = layer

    def open(self, tokens: Sequence[int]) -> Branch:
        """A new branch of these tokens (at least one), all uncomputed."""
        assert len(tokens) > 0
        self._require_ids(tokens)
        return self._opened(tokens, self.cache.new())  # nothing is computed yet

    def fork(self, branch: Branch) -> Branch:
        """A second branch with the same tokens and the same cached blocks; copies no
        K/V."""
        return self._opened(branch.tokens, self.cache.fork(branch.table))

    def _opened(self, tokens: Sequence[int], table: BlockTable) -> Branch:
        branch = Branch(list(tokens), table)
        self.branches[branch] = None
        return branch

    def rewind(self, branch: Branch, length: int) -> None:
        """Cut a branch to its first `length` tokens, in the cache too."""
        assert 0 <= length <= len(branch)
        if length < branch.table.length:  # else only uncomputed tokens are cut
            self.cache.truncate(branch.table, length)
        del branch.tokens[length:]

    def close(self, branch: Branch) -> None:
        """Free the blocks of a branch, which must not be used again."""
        self.branches.pop(branch, None)
        self.cache.release(branch.table)

    def replace(self, branch: Branch, by: Branch) -> None:
        """`branch` continues with the tokens and blocks of `by`, which must not be used
        again; its own blocks are freed."""
        assert branch is not by
        self.cache.observer.replaced(branch.table, by.table)
        self.cache.release(branch.table)
        branch.tokens = by.tokens
        branch.table = by.table
        self.branches.pop(by, None)

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
        each of the last m = logits[i] tokens of branch i. Every branch has
        uncomputed tokens. Raises `OutOfBlocks` or `ContextError`; the forward that fails
        changes nothing.
        """
        if not branches:
            return []
        # 1. What there is to compute, and whether it may be.
        uncomputed = [branch.uncomputed for branch in branches]
        lengths = [len(tokens) for tokens in uncomputed]
        for branch, tokens in zip(branches, uncomputed, strict=True):
            assert tokens, f"{branch!r} is computed; append tokens first"
            self._require_ids(tokens)
            if len(branch) > self.context:
                raise ContextError(
                    f"{len(branch)} tokens do not fit the context of {self.context} of model "
                    f"{self.model.source}. Shorten the prompt or lower max_tokens."
                )
        # 2. Of how many tokens of each branch the logits are wanted.
        if logits == "last":
            num_rows = [1] * len(branches)
        elif logits == "all":
            num_rows = lengths
        else:
            num_rows = [int(count) for count in logits]
        pairs = zip(num_rows, lengths, strict=True)
        assert all(1 <= count <= length for count, length in pairs)
        # 3. One ragged forward; a long prompt alone, in pieces.
        self.hidden = []
        if sum(lengths) <= self.max_batch_tokens:
            rows = self._forward(branches, uncomputed, num_rows)  # [sum of num_rows, v]
        else:
            pieces = map(self._in_pieces, branches, num_rows)
            rows = torch.cat([*chain.from_iterable(pieces)])
        return list(rows if logits == "last" else rows.split(num_rows))

    def _in_pieces(self, branch: Branch, num_rows: int) -> Iterator[Tensor]:
        """The last `num_rows` rows [num_rows, v] of one branch, piece by piece. Example:
        5 rows of 11 tokens, at most 4 tokens at a time; pieces of 4, 4 and 3 tokens
        give their last 0, 2 and 3 rows.
        """
        while tokens := branch.uncomputed[: self.max_batch_tokens]:
            later = len(branch.uncomputed) - len(tokens)  # in the pieces to come
            rows = min(len(tokens), max(0, num_rows - later))
            yield self._forward([branch], [tokens], [rows])

    @torch.inference_mode()
    def _forward(
        self,
        branches: Sequence[Branch],
        tokens: Sequence[Sequence[int]],
        num_rows: Sequence[int],
    ) -> Tensor:
        """Compute tokens[i] on branch i: logits [sum of num_rows, v], those after its
        last num_rows[i]."""
        started = time.perf_counter()
        tables = [branch.table for branch in branches]
        # Inside `append` the tables already include the new tokens. An error in the
        # forward undoes that.
        with self.cache.append(tables, [len(row) for row in tokens]) as slots:
            batch = RaggedBatch.build(
                tables, tokens, slots, wanted=num_rows, device=self.model.device
            )
            logits = None
            if self.layer is not None:
                logits = self._watched(batch, self.layer)
            elif self.graphs is not None:
                logits = self.graphs.run(batch)
            if logits is None:  # no graph is so large
                logits = self.model(batch, self.cache)
        rows: Tensor = logits[:, : self.vocab_size]  # without padding, [m, v]
        if self.known_tokens < self.vocab_size:
            rows[:, self.known_tokens :] = -torch.inf  # never drawn by this model
        if rows.is_cpu:  # a GPU would have to be waited for; there `sample` looks
            require_finite(rows, f"model {self.model.source}")
        if self.observer is not None:
            seconds = time.perf_counter() - started
            self.observer(len(branches), len(batch.tokens), seconds)
        return rows

    def _watched(self, batch: RaggedBatch, layer: str) -> Tensor:
        """The logits of a batch; the states after a layer are added to `hidden`."""

        def keep(*call: Any) -> None:  # the last is the module's result [n, e]
            self.hidden.append(call[-1].index_select(0, batch.logit_rows))

        with self.model.get_submodule(layer).register_forward_hook(keep):
            return self.model(batch, self.cache)

    def _require_ids(self, tokens: Sequence[int]) -> None:
        # an id out of range, if any is
        outside = max(tokens) if min(tokens) >= 0 else min(tokens)
        expected = f"0 to {self.vocab_size - 1}, the ids of the tokenizer"
        require(0 <= outside < self.vocab_size, "a token id", outside, expected)


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
    # 1 + W + W² + ...: of the tree of steps
    nodes = options.nodes if options.looks_ahead else 1
    trees = options.speculates and options.drafter == "tree"
    leaves = prod(options.branching) if trees else 1  # paths of the tree of tokens
    path = len(options.branching) // BLOCK_SIZE + 3  # its own blocks
    step = min(options.max_step_tokens, tokens)
    trunk = -(-(tokens + step) // BLOCK_SIZE)  # rounded up
    row = step // BLOCK_SIZE + 3 + path * (leaves - 1)  # the three of the docstring
    return trunk + (3 if reads else 2) * nodes * row  # draft step, target step, reading


@dataclass(eq=False)
class IdleRunners:
    """The runners of one model that nobody uses now. `lend` gives one to a loop, or a
    new one if no cache is large enough; `put_back` returns it. `num_blocks`: blocks of
    16 tokens per cache (None: as needed); see `ModelRunner`.
    """

    model: CausalLM
    vocab_size: int | None = None
    known_tokens: int | None = None
    num_blocks: int | None = None
    idle: list[ModelRunner] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: no idle runner, which may be larger than the
        model."""
        return self.__dict__ | {"idle": []}

    def lend(self, blocks: int, uses: int = 1) -> ModelRunner:
        """A runner with an empty cache of at least `blocks` blocks of 16 tokens for each
        of its uses."""
        # a fixed size goes before what is needed
        blocks = (self.num_blocks or blocks) * uses
        for runner in self.idle:
            if runner.num_blocks >= blocks:  # the first that is large enough
                self.idle.remove(runner)
                return runner
        self.end()  # free their memory before allocating more
        return ModelRunner(
            self.model,
            num_blocks=blocks,
            vocab_size=self.vocab_size,
            known_tokens=self.known_tokens,
        )

    def end(self) -> None:
        """Free the idle runners."""
        for runner in self.idle:
            runner.end()
        self.idle.clear()

    def put_back(self, runner: ModelRunner) -> None:
        """The loop is over. A cache that an error left with blocks in use is not
        reused."""
        runner.observer = None
        runner.watch(None)
        runner.cache.observer = CacheObserver()
        # that of CUDA graphs stays used
        padding = runner.cache.num_blocks - runner.num_blocks
        if runner.cache.pool.num_used == padding and not self.idle:
            runner.cache.pool.restart()  # ids from 0 again: traces are reproducible
            self.idle.append(runner)
        else:
            runner.end()


def room(caches: Sequence[IdleRunners]) -> int | None:
    """How many blocks of 16 tokens each of these caches (one may occur twice) can have
    on CUDA; None without CUDA. On each device they share, in equal numbers of tokens,
    the memory that is free after loading or held by idle caches, less `RESERVE`.
    """
    rooms = []
    on_cuda = [runners for runners in caches if runners.model.device.type == "cuda"]
    for device in {runners.model.device for runners in on_cuda}:
        sharing = [runners for runners in on_cuda if runners.model.device == device]
        # What the driver calls free, and what PyTorch has reserved but not used.
        free = torch.cuda.mem_get_info(device)[0] - RESERVE
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        # a set: no cache counts twice
        idle = {runner.cache for runners in sharing for runner in runners.idle}
        free += sum(cache.keys.nbytes + cache.values.nbytes for cache in idle)
        models = [runners.model for runners in sharing]
        # bytes of K/V per token, all caches together
        token = sum(m.rank_config.cached_per_token * m.dtype.itemsize for m in models)
        rooms.append(max(0, free) // (BLOCK_SIZE * token))
    return min(rooms, default=None)
