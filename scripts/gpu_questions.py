"""What only a GPU can answer; `gpu_check.py` asks it.

* `compare_attention`: may our attention kernel go? FlashAttention on the pages, called
  by us or through PyTorch's `varlen_attn`, beside our kernel, for the prompts and the
  decoding that lookahead does.
* `compare_rounding`: how often does greedy token-level speculation part from greedy
  decoding, with keys that are divided by the size of the batch, and without?
* `compare_single_row`: what does the kernel for a single row save?
* `compare_memory`: how much more memory does a verifier take that asks the target?

At tiny sizes on the CPU, our kernel runs in Triton's interpreter, or `sdpa` in its
place.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import takewhile
from pkgutil import resolve_name
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from gpu_limits import timed
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE, Branch, blocks_for
from lr.kvcache.cache import PagedKVCache
from lr.measure.report import markdown_table
from lr.model.attention import REFERENCE, SDPA, AttentionKind, RaggedBatch, Tiles
from lr.model.attention_choice import AttentionNeeds, set_attention, trial
from lr.model.graphs import RECORDED_ROWS, recorder_for
from lr.model.layers import Attend
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.types import Role

if TYPE_CHECKING:
    from gpu_check import Here

LAYERS = 8  # on a GPU, each with pages of its own, so that no layer finds them in a GPU's cache
FORMS = {"1 row": (1,), "5 rows": (1,) * 5, "5 x 5 rows": (5,) * 5}
"""New tokens of each sequence of a decoding pass. The sequences are forks."""
INTERPRETED = "TRITON_INTERPRET" in os.environ and find_spec("triton") is not None


# 1. Who is compared


@dataclass(frozen=True)
class Contender:
    """A kind of attention, or why there is none. `activated`: what PyTorch's own
    FlashAttention is replaced by while it runs."""

    name: str
    kind: AttentionKind | str
    activated: str | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """PyTorch's switch is for the whole process, so it is turned back."""
        if self.activated is None:
            yield
            return
        from torch.nn import attention

        attention.activate_flash_attention_impl(self.activated)
        try:
            yield
        finally:
            attention.restore_flash_attention_impl()


def varlen_on_pages(
    q: Tensor, keys: Tensor, values: Tensor, *, cu_seqlens_q: Tensor, max_seqlen_q: int,
    page_table: Tensor, seqused_k: Tensor, causal: bool, num_splits: int | None = None,
) -> Tensor:  # fmt: skip
    """PyTorch's `varlen_attn` with the names of FlashAttention 4."""
    from torch.nn.attention import varlen

    assert causal
    most_keys = page_table.shape[1] * keys.shape[1]
    mixed = varlen.varlen_attn(
        q, keys, values, cu_seqlens_q, None, max_seqlen_q, most_keys,
        window_size=(-1, 0), enable_gqa=True, seqused_k=seqused_k,
        block_table=page_table, num_splits=num_splits,
    )  # fmt: skip
    assert isinstance(mixed, Tensor)
    return mixed


def contenders(*, undivided: bool = False) -> Iterator[Contender]:
    """Our kernel, then all FlashAttention, which is recorded wherever it reads pages.
    `undivided`: only what can leave the keys of a sequence in one piece, which does."""
    from lr.kernels.attention import TRITON
    from lr.kernels.flash import SIGNATURES, Signature, on_gathered_pages, on_pages

    options = {"num_splits": 1} if undivided else {}
    yield Contender("triton", TRITON)
    for signature in SIGNATURES:
        paged = signature.adapter is not on_gathered_pages
        if undivided and not paged:
            continue
        kind: AttentionKind | str
        try:
            call = partial(resolve_name(signature.function), **options)
            kind = replace(signature, decodes=paged).kind(call)
        except Exception as error:  # as in `flash.find`
            kind = f"{type(error).__name__}: {error}"
        yield Contender(signature.package, kind)
    adapter = partial(on_pages, "seqused_k")
    torch_own = Signature("torch", "", adapter, decodes=True)
    num_splits = 1 if undivided else None
    kind = torch_own.kind(partial(varlen_on_pages, num_splits=num_splits))
    for version in (None, "FA3", "FA4"):
        name = f"varlen_attn, {version or 'as it is'}"
        yield Contender(name, kind, version)


def working(here: Here, tried: Iterator[Contender]) -> Iterator[Contender]:
    """Those that pass a trial here; of others the reason is told."""
    heads = (4, 2, 16) if here.small else (64, 8, 128)
    needs = AttentionNeeds(here.device, here.dtype, heads)
    for contender in tried:
        reason = contender.kind
        if isinstance(reason, AttentionKind):
            try:
                with contender.active():
                    reason = trial(reason, needs)
            except Exception as error:  # of the activation
                reason = f"{type(error).__name__}: {error}"
        if reason:
            here.tell(f"{contender.name}: {reason}")
        else:
            yield contender


def plain_contenders() -> Iterator[Contender]:
    """Where there is neither CUDA nor the interpreter."""
    for kind in (SDPA, REFERENCE):
        yield Contender(kind.name, kind)


# 2. Attention on the pages


def compare_attention(here: Here) -> str:
    """Microseconds of a layer of Qwen3-32B, by attention; prompts as ordinary passes,
    rows from a recording."""
    heads = (4, 2, 16) if here.small else (64, 8, 128)
    prompts = (20,) if here.small else (512, 8192)
    lengths = (20,) if here.small else (1000, 8000, 16000)
    kernels = not here.small or INTERPRETED
    candidates = contenders() if kernels else plain_contenders()
    programs = 16 if here.small else 512  # the interpreter runs them one by one

    # 1. Time each, in each case.
    spent: dict[str, dict[str, float]] = {}
    for contender in working(here, candidates):
        kind = contender.kind
        assert isinstance(kind, AttentionKind)
        cases = spent[contender.name] = {}
        few = patch("lr.kernels.attention.PROGRAMS", programs)
        with contender.active(), few if kernels else nullcontext():
            for length in prompts:
                seconds = layer_seconds(here, kind, heads, 0, (length,))
                cases[f"prompt of {length}"] = seconds
            for length in lengths:
                for form, counts in FORMS.items():
                    seconds = layer_seconds(here, kind, heads, length, counts)
                    cases[f"{form} at {length}"] = seconds

    # 2. The table, and the worst case of each as a share of the first.
    first, *others = spent
    head = ["microseconds a layer", *spent]
    lines = [
        [case, *(f"{1e6 * cases[case]:.1f}" for cases in spent.values())]
        for case in spent[first]
    ]
    for line in markdown_table([head, *lines]):
        here.tell(line)
    worst = []
    for name in others:
        ratios = {case: spent[name][case] / spent[first][case] for case in spent[name]}
        case = max(ratios, key=ratios.__getitem__)
        worst.append(f"{name} at worst {ratios[case]:.2f} ({case})")
    return f"of {first}'s time: {', '.join(worst) or 'nothing beside it works'}"


@torch.inference_mode()
def layer_seconds(
    here: Here,
    kind: AttentionKind,
    heads: tuple[int, int, int],
    cached: int,
    counts: Sequence[int],
) -> float:
    """Seconds of one layer with `counts` new tokens for forks of a sequence of `cached`
    tokens; from a recording if these are few and the kind can be recorded."""
    h, k, d = heads
    # 1. A sequence and its forks.
    needed = blocks_for(cached, BLOCK_SIZE)
    needed += sum(blocks_for(count, BLOCK_SIZE) + 1 for count in counts)
    layers = 1 if here.small else LAYERS
    cache = PagedKVCache(
        num_layers=layers, num_kv_heads=k, head_dim=d, num_blocks=needed + 1,
        block_size=BLOCK_SIZE, dtype=here.dtype, device=here.device,
    )  # fmt: skip
    cache.keys.normal_()
    cache.values.normal_()
    root, padding = cache.new(), cache.new()
    with cache.append([root, padding], [cached, 1]) as [*_, slot]:
        pass
    tables = [root, *(cache.fork(root) for _ in counts[1:])]
    with cache.append(tables, counts) as slots:
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(tables, tokens, slots, counts, device=here.device)

    # 2. The work of all layers.
    recorded = cached > 0 and kind.tiles is not None
    size = sum(counts)
    if recorded:
        assert kind.tiles is not None
        size = min(rows for rows in RECORDED_ROWS if rows >= size)
        context = blocks_for(64 if here.small else 40960, BLOCK_SIZE) + len(counts)
        tiles = padded(Tiles.of(batch, kind.tile), size, context, slot, kind.tile)
        attend: Attend = kind.tiles(tiles, cache)
    else:
        attend = kind.ragged(batch, cache)
    rows = torch.randn(size, h + 2 * k, d, device=here.device).to(here.dtype)
    q, keys, values = rows.split((h, k, k), 1)

    def compute() -> Tensor:
        for layer in range(layers):
            mixed = attend(layer, q, keys, values)
        return mixed

    # 3. Its time.
    work: Callable[[], Tensor] = compute
    if recorded:
        work = recorder_for(here.device)(compute)
    repeats = 1 if here.small else 7
    return timed(work, here.device, repeats, warm_up=1) / layers


def padded(tiles: Tiles, size: int, pages: int, slot: int, tile: int) -> Tiles:
    """The tiles as a recording of `size` rows has them (`graphs.py`): with empty ones,
    with rows that write to `slot`, and with block tables as wide as the context."""
    n = len(tiles.positions)
    m = len(tiles.owners)
    blocks = tiles.blocks.new_zeros(size, pages)
    blocks[: len(tiles.blocks), : tiles.blocks.shape[1]] = tiles.blocks
    return Tiles(
        torch.cat((tiles.positions, tiles.positions.new_zeros(size - n))),
        torch.cat((tiles.slots, tiles.slots.new_full((size - n,), slot))),
        torch.cat((tiles.borders, tiles.borders.new_full((size - m,), n))),
        torch.cat((tiles.owners, tiles.owners.new_zeros(size - m))),
        blocks,
        min(tile, size),
    )


# 3. Rows that do not depend on their neighbours

QUESTIONS = (
    "How many positive divisors has 360?",
    "A train takes 3 hours for 210 miles. How long does it take for 350 miles?",
    "What is the sum of all primes below 30?",
    "Ann has 7 coins, and Ben 3 more. How many have they together?",
    "In how many ways can 5 people stand in a row?",
    "What is the remainder of 2 to the power of 100 divided by 7?",
)


def compare_rounding(here: Here, model_name: str | None = None) -> str:
    """How many greedy answers of `sd` part from those of `ar`, and after how many
    tokens. The same tokens are read by passes of other numbers of rows, so their
    products and sums may be rounded differently."""
    name = model_name or ("tiny-target" if here.small else "dummy:Qwen3-8B")
    tokens = 12 if here.small else 200
    questions = QUESTIONS[:2] if here.small else QUESTIONS
    counted = []
    with Reasoner(name, device=str(here.device), dtype=here.dtype) as reasoner:
        engine = reasoner.engine
        for label, kind, patches in rounding_ways(here):
            # 1. This attention, and no recording of another.
            engine.runners[Role.TARGET].end()
            set_attention(engine.target_model, kind)
            with patches:
                # 2. Where the answers part.
                lengths = []
                for question in questions:
                    plain, speculated = (
                        reasoner.run(
                            question, mode=mode, temperature=0.0, max_tokens=tokens
                        )
                        .finish()
                        .tokens
                        for mode in ("ar", "sd")
                    )
                    if plain != speculated:
                        lengths.append(shared_length(plain, speculated))
                engine.runners[Role.TARGET].end()
            here.tell(f"{label}: {len(lengths)} of {len(questions)} part, at {lengths}")
            counted.append(f"{label} {len(lengths)}")
    return f"{name}, answers of {len(questions)} that part: {', '.join(counted)}"


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens two answers share."""
    pairs = zip(left, right, strict=False)
    shared = takewhile(lambda pair: pair[0] == pair[1], pairs)
    return sum(1 for _ in shared)


def rounding_ways(
    here: Here,
) -> Iterator[tuple[str, AttentionKind, AbstractContextManager[object]]]:
    """Attention with divided keys and in one piece, and the latter without our kernel
    for a single row, whose sums no other number of rows has."""
    if here.small:
        for contender in plain_contenders():
            assert isinstance(contender.kind, AttentionKind)
            yield contender.name, contender.kind, nullcontext()
        return
    from lr.kernels.attention import TRITON

    yield "triton", TRITON, nullcontext()
    yield "triton in one piece", TRITON, patch("lr.kernels.attention.PROGRAMS", 1)
    for contender in working(here, contenders(undivided=True)):
        assert isinstance(contender.kind, AttentionKind)
        if contender.activated is None:
            name = f"{contender.name} in one piece, products by cuBLAS alone"
            yield name, contender.kind, one_piece()


@contextmanager
def one_piece() -> Iterator[None]:
    """Our kernel does not divide keys, and a single row is multiplied as others are."""
    with patch("lr.kernels.attention.PROGRAMS", 1), no_single_row():
        yield


# 4. The kernel for a single row


def no_single_row() -> AbstractContextManager[object]:
    """Layers multiply a single row as they multiply several."""
    return patch("lr.kernels.install.readable", lambda layer: False)


def compare_single_row(here: Here) -> str:
    """One pass over one row, with the kernel for it and without."""
    names = ("tiny-target",)
    if not here.small:
        large = ("Qwen3-32B",) if here.free_gib > 72 else ()
        names = ("Qwen3-0.6B", "Qwen3-8B", *large)
    length = 20 if here.small else 1000
    findings = []
    for name in names:
        model = load_model(f"dummy:{name}", device=here.device, dtype=here.dtype)
        kind = SDPA
        if not here.small:
            from lr.kernels.attention import TRITON as kind
        times = []
        for patches in (nullcontext(), no_single_row()):
            with patches:
                set_attention(model, kind)
                runner = ModelRunner(model, num_blocks=length // BLOCK_SIZE + 20)
                branch = long_branch(runner, length)
                work = partial(one_pass, runner, [branch], 1)
                times.append(1e3 * timed(work, here.device))
                runner.end()
        findings.append(f"{name} {times[0]:.2f} ms with it, {times[1]:.2f} without")
        del model, runner, branch, work
    return "; ".join(findings)


def long_branch(runner: ModelRunner, length: int) -> Branch:
    """A branch of `length` cached tokens, whose keys and values are zero."""
    branch = runner.open([1] * length)
    with runner.cache.append([branch.table], [length]):
        pass
    return branch


def one_pass(runner: ModelRunner, branches: Sequence[Branch], tokens: int) -> object:
    """A pass over so many new tokens of each branch, which are forgotten again."""
    for branch in branches:
        branch.extend([1] * tokens)
    logits = runner.forward(branches, "all")
    for branch in branches:
        runner.rewind(branch, len(branch) - tokens)
    return logits


# 5. Memory


def compare_memory(here: Here) -> str:
    """The most memory of a short answer, with a verifier that computes nothing and with
    two that ask the target."""
    names = ("tiny-target", "tiny-draft")
    if not here.small:
        names = ("dummy:Qwen3-8B", "dummy:Qwen3-0.6B")
    peaks = {}
    for verifier in ("never", "likelihood:-0.5", "score"):
        if not here.small:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(here.device)
        with Reasoner(
            *names, verifier, device=str(here.device), dtype=here.dtype
        ) as reasoner:
            reasoner.run(QUESTIONS[0], mode="lr", max_tokens=64).finish()
        peaks[verifier] = peak_bytes(here) / 2**30
        here.tell(f"{verifier}: {peaks[verifier]:.2f} GiB")
    more = [f"{name} {peak - peaks['never']:+.2f}" for name, peak in peaks.items()]
    return f"GiB beside verifier never, {names[0]}: {', '.join(more[1:])}"


def peak_bytes(here: Here) -> int:
    """On the CPU of the whole process, where it never falls."""
    if here.device.type == "cuda":
        return torch.cuda.max_memory_reserved(here.device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
