"""Chooses the attention of a model: the first kind that works, with the reason why
others do not.

The order is `flash` (FlashAttention 4, 3 or 2, if a package is installed), `triton` (our
own kernels), `sdpa` (PyTorch's fused attention on gathered pages, which works everywhere).
`reference`, plain arithmetic for one sequence at a time, is used only by request. With
the first two, the layers run on fused kernels as well. A kind is judged by a trial, not
by its version.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.model.attention import REFERENCE, SDPA, AttentionKind, RaggedBatch
from lr.model.config import ModelConfig
from lr.model.graphs import StepGraphs
from lr.model.qwen import CausalLM
from lr.types import require

ATTENTION_NAMES = ("auto", "flash", "triton", "sdpa", "reference")
PLAIN_ATTENTION = {"sdpa": SDPA, "reference": REFERENCE}  # they work everywhere
ROUNDINGS = 6
"""Roundings of the dtype by which a row of a trial may be off, relative to its size. In
bfloat16, what is right is off by at most 3, a mask that is wrong for one key in 40 by 9
or more (on a CPU)."""


@dataclass(frozen=True)
class AttentionNeeds:
    """What a kind must support: a model's device, dtype and heads (those of one
    rank)."""

    device: torch.device
    dtype: torch.dtype
    heads: tuple[int, int, int]  # query heads, KV heads, size of a head


def equip(model: CausalLM, name: str = "auto", *, graphs: bool = True) -> None:
    """Set a model's attention, the kernels of its layers that go with it, and whether
    it may decode from CUDA graphs. Raises SettingError.
    """
    config = model.rank_config
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    needs = AttentionNeeds(model.device, model.dtype, heads)
    model.graphs = graphs
    set_attention(model, choose_attention(name, needs))


def set_attention(model: CausalLM, kind: AttentionKind) -> None:
    """Use this attention, with the kernels that go with it and without others."""
    model.attention = kind
    for module in (*model.layers, model.norm):
        module.__dict__.pop("forward", None)  # what another kind has installed
    if kind.install is not None:
        kind.install(model.layers, model.norm)


def choose_attention(name: str, needs: AttentionNeeds) -> AttentionKind:
    """The first kind that goes by `name` and works. Raises SettingError."""
    expected = f"one of {', '.join(ATTENTION_NAMES)}"
    require(name in ATTENTION_NAMES, "attention", name, expected)
    reasons = []
    for label, kind in candidates(needs, name):
        if not isinstance(kind, str):  # else the reason why not
            return kind
        reasons.append(f"{label}: {kind}")
    raise SettingError(
        f"attention {name!r} cannot be used on {needs.device} with {needs.dtype}. "
        f"{'; '.join(reasons)}. Leave --attention at auto, or use sdpa, which always "
        "works."
    )


def candidates(
    needs: AttentionNeeds, name: str = "auto"
) -> Iterator[tuple[str, AttentionKind | str]]:
    """All that goes by a name ("auto": by any), in order of preference: a label, and the
    kind if a trial says that it works, else the reason why not."""
    for each in ATTENTION_NAMES[1:-1] if name == "auto" else (name,):
        for label, kind in find_kinds(each, needs):
            if isinstance(kind, str) or each in PLAIN_ATTENTION:
                yield label, kind
            else:
                yield label, trial(kind, needs) or kind


def find_kinds(
    name: str, needs: AttentionNeeds
) -> Iterable[tuple[str, AttentionKind | str]]:
    """What goes by a name, before any trial; for `flash`, each package by itself. The
    only function that imports `lr.kernels`."""
    if name in PLAIN_ATTENTION:
        return [(name, PLAIN_ATTENTION[name])]
    if needs.device.type != "cuda":
        return [(name, "it needs a device of type cuda")]
    if needs.dtype is torch.float64:
        return [(name, "it does not compute in float64")]
    try:
        if name == "flash":
            from lr.kernels.flash import find

            return find()
        from lr.kernels.attention import TRITON
    except ImportError as error:  # of Triton, on which both are built
        return [(name, f"{type(error).__name__}: {error}")]
    return [(name, TRITON)]


@torch.inference_mode()
def trial(kind: AttentionKind, needs: AttentionNeeds) -> str:
    """Why a kind fails on a small model with these heads, in a few words; "" if it
    works. A package that does not fit this GPU or this PyTorch is found here. Raises
    nothing.
    """
    try:
        config = ModelConfig(
            8, 200, 300, 1, *needs.heads, 512, 1e-6, 1e4, True, True, True
        )
        model = CausalLM(config)
        noise = torch.Generator().manual_seed(0)  # the same model on every machine
        for weight in model.parameters():
            weight.normal_(0, 0.3, generator=noise)
        model.to(needs.device, needs.dtype)
        expected = answers(model, REFERENCE)
        # [rows], relative
        distance = (answers(model, kind) - expected).norm(dim=1) / expected.norm(dim=1)
    except Exception as error:  # a kernel that does not fit may raise anything
        reason = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        return reason.splitlines()[0]
    worst = float(distance.max())
    bound = max(ROUNDINGS * torch.finfo(needs.dtype).eps, 1e-4)
    if worst <= bound:  # false for NaN
        return ""
    return f"wrong result: off by {worst:.2g} of a row's size, not {bound:.2g}"


def answers(model: CausalLM, kind: AttentionKind) -> Tensor:
    """The logits of a prompt, of three tokens after it and of one more, with this
    attention; the last two from a recording if the kind can be recorded."""
    set_attention(model, kind)
    cache = model.make_cache(4, BLOCK_SIZE)  # 64 tokens
    graphs = StepGraphs(model, cache, rows=(1, 4)) if kind.tiles else None
    table = cache.new()
    rows = []
    for count in (37, 3, 1):  # a prompt, a chunk after a cache, one token
        with cache.append([table], [count]) as slots:
            tokens = [[(3 * i) % 8 for i in range(count)]]
            batch = RaggedBatch.build(
                [table], tokens, slots, wanted=[count], device=model.device
            )
            logits = None if graphs is None else graphs.run(batch)
            rows.append(model(batch, cache) if logits is None else logits)
    return torch.cat(rows).double()  # [41, v]
