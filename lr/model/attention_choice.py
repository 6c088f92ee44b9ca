"""Chooses the attention of a model: the first kind that works, with the reason why
others do not.

The order is `triton` (our own kernel), then `sdpa` (PyTorch's fused attention on
gathered pages, which works everywhere). `reference`, plain arithmetic for one sequence
at a time, is used only by request. A kind is tested by importing it and by comparing a
small batch with the reference in fp64, not by its version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lr.errors import SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.kvcache.cache import PagedKVCache
from lr.model.attention import (
    REFERENCE,
    SDPA,
    AttentionKind,
    RaggedBatch,
    RowPages,
    without_cudnn,
)
from lr.model.config import ModelConfig
from lr.model.graphs import recorder_for
from lr.model.layers import Attend, DecoderLayer, Rotary
from lr.model.qwen import CausalLM
from lr.types import require

NAMES = ("auto", "triton", "sdpa", "reference")
ROUNDINGS = 4
"""Roundings of the dtype by which an output row may be off, relative to its size. A
wrong page is off by more than the row; a mask that is wrong for one key in 260, by 16
in bfloat16 on average."""


@dataclass(frozen=True)
class AttentionNeeds:
    """What a kind must support: a model's device, dtype and heads (those of one
    rank)."""

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int


def choose_attention(name: str, needs: AttentionNeeds) -> AttentionKind:
    """The kind `name`; "auto": the first that works. Raises SettingError."""
    require(name in NAMES, "attention", name, f"{', '.join(NAMES[:-1])} or {NAMES[-1]}")
    if name in ("sdpa", "reference"):
        return SDPA if name == "sdpa" else REFERENCE
    found = dict(candidates(needs))["triton"]
    if isinstance(found, AttentionKind):
        return found
    if name == "auto":
        return SDPA
    raise SettingError(
        f"attention {name!r} cannot be used on {needs.device} with "
        f"{str(needs.dtype).removeprefix('torch.')}: {found}. Leave --attention at auto, which "
        "takes the first kind that works, or use sdpa, which always works."
    )


def equip(model: CausalLM, name: str = "auto", *, graphs: bool = True) -> None:
    """Set a model's attention, the fused kernels of its layers (with `triton`), and
    whether it may decode from CUDA graphs. Raises SettingError.
    """
    heads = (model.part.num_heads, model.part.num_kv_heads, model.part.head_dim)
    needs = AttentionNeeds(model.device, model.dtype, *heads)
    model.attention, model.graphs = choose_attention(name, needs), graphs
    without_cudnn(
        model.device
    )  # for any kind: an encoder, for example, uses PyTorch's too
    use_kernels(model, model.attention.name == "triton" and find_kernels(needs) == "")


def use_kernels(model: CausalLM, wanted: bool) -> None:
    """Run the model's layers on Triton kernels, or on plain PyTorch again."""
    if wanted or "forward" in vars(model.norm):
        from lr.kernels.install import install, remove

        (install if wanted else remove)(model.layers, model.norm)


def candidates(needs: AttentionNeeds) -> Iterator[tuple[str, AttentionKind | str]]:
    """Names in order of preference, each with the kind or the reason why it cannot be
    used."""
    found = find_triton(needs)
    yield "triton", found if isinstance(found, str) else probe(found, needs) or found
    yield "sdpa", SDPA


def find_triton(needs: AttentionNeeds) -> AttentionKind | str:
    """Our own kernel, not tried yet, or why it cannot run this model."""
    if needs.device.type != "cuda":
        return "it needs a device of type cuda"
    if needs.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it computes in 16 or 32 bits, not in {str(needs.dtype).removeprefix('torch.')}"
    try:
        from lr.kernels.attention import TRITON
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    return TRITON


@torch.inference_mode()
def find_kernels(needs: AttentionNeeds) -> str:
    """Why the kernels of the layers fail on a small layer; "" if they work. Raises
    nothing."""
    try:
        from lr.kernels.install import layer_forward

        heads = (needs.num_heads, needs.num_kv_heads, needs.head_dim)
        config = ModelConfig(8, 200, 300, 1, *heads, 8, 1e-6, 1e4, True, True, True)
        layer = DecoderLayer(config, 0)
        noise = torch.Generator().manual_seed(0)
        for weight in layer.parameters():
            weight.normal_(0, 0.1, generator=noise)
        layer = layer.to(needs.device, needs.dtype)
        angles = Rotary(config)(torch.arange(3), needs.dtype)
        rows = torch.randn(3, 200, generator=noise)
        given = [each.to(needs.device, needs.dtype) for each in (rows, *angles)]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return q + k.sum(1, True) + v.sum(1, True)

        def distance(rows: int) -> float:
            x, cos, signed_sin = (each[:rows] for each in given)
            new = layer_forward(layer, x, cos, signed_sin, attend).double()
            plain: Tensor = layer(x, cos, signed_sin, attend).double()
            return float((new - plain).norm() / plain.norm())

        off = max(distance(3), distance(1))
    except Exception as error:  # a kernel that does not fit may raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    right = off <= ROUNDINGS * torch.finfo(needs.dtype).eps
    return "" if right else f"wrong result: off by {off:.2g}"


def probe(kind: AttentionKind, needs: AttentionNeeds) -> str:
    """Why `kind` fails, in a few words; "" if it works. Runs a sequence, its fork and a
    prompt in one forward; on CUDA, rows are recorded in a graph. Raises nothing.
    """
    bound = ROUNDINGS * torch.finfo(needs.dtype).eps
    try:
        found = distances(kind, needs, (BLOCK_SIZE + 3, 5), (2, 3), forks=1)
        alone = distances(
            kind, needs, (BLOCK_SIZE + 3,), (1,)
        )  # its kernels start early
    except Exception as error:  # a kernel that does not fit may raise anything
        return f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[
            0
        ]
    for name, off in (*found.items(), *alone.items()):
        if not off <= bound:  # true for NaN, too
            return f"wrong result ({name}): off by {off:.2g} of the row's size, not {bound:.2g}"
    return ""


@torch.inference_mode()
def distances(
    kind: AttentionKind,
    needs: AttentionNeeds,
    cached: Sequence[int],
    new: Sequence[int],
    forks: int = 0,
) -> dict[str, float]:
    """The distance of the worst output row from the reference in fp64, relative to the
    row's size, for each function of `kind`: "ragged" and, if it exists, "rows".

    In the batch, sequence i has cached[i] tokens and new[i] new ones; `forks` forks of
    the first have one new token each. The sequences grow alternately, so that their
    blocks are interleaved.
    """
    h, k, size = needs.num_heads, needs.num_kv_heads, BLOCK_SIZE
    blocks = (
        sum((a + b) // size + 2 for a, b in zip(cached, new, strict=True)) + 2 * forks
    )
    sizes: dict[str, Any] = {
        "num_kv_heads": k,
        "head_dim": needs.head_dim,
        "device": needs.device,
    }
    sizes |= {"num_layers": 1, "num_blocks": blocks, "block_size": size}
    cache, exact = (
        PagedKVCache(dtype=dtype, **sizes) for dtype in (needs.dtype, torch.float64)
    )
    tables = [cache.new() for _ in cached]
    for done in range(0, max(cached), size):
        with cache.append(
            tables, [max(0, min(count - done, size)) for count in cached]
        ):
            pass
    tables += [cache.fork(tables[0]) for _ in range(forks)]
    counts = [*new, *[1] * forks]
    with cache.append(tables, counts) as slots:
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(
            tables, tokens, slots, wanted=counts, device=needs.device
        )
        noise = torch.Generator(needs.device).manual_seed(0)
        for memory, copy in ((cache.keys, exact.keys), (cache.values, exact.values)):
            copy.copy_(memory.normal_(generator=noise))
        shape = len(slots), h + 2 * k, needs.head_dim
        heads = torch.randn(shape, generator=noise, device=needs.device).to(needs.dtype)

        def mixed(attend: Attend, dtype: torch.dtype) -> Tensor:
            q, keys, values = heads.to(dtype).split(
                (h, k, k), 1
            )  # views, as a layer makes them
            return attend(0, q, keys, values).flatten(1).double()

        expected = mixed(REFERENCE.ragged(batch, exact), torch.float64)
        found = {"ragged": mixed(kind.ragged(batch, cache), needs.dtype)}
        if kind.rows is not None:
            record = recorder_for(needs.device)
            attend = kind.rows(RowPages.of(batch), cache)
            replay = record(
                partial(mixed, attend, needs.dtype)
            )  # must outlive its result
            found["rows"] = replay()
        return {
            name: float(((one - expected).norm(dim=1) / expected.norm(dim=1)).max())
            for name, one in found.items()
        }
