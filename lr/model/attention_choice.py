"""Which kind of attention a model gets: the first that works on its device, in its dtype, with its
heads, and why the others do not.

In order: `varlen` (PyTorch's own FlashAttention on pages), `flash` (the `flash-attn` package),
`sdpa` (PyTorch's fused attention on gathered pages; works everywhere). `reference`, one branch at a
time in plain arithmetic, is taken only when asked for. What is installed is seen by looking
(imports and parameters), whether it works by trying (`attention_probe.py`); no version is compared.
Smaller blocks waste less memory and are cheaper to copy for a fork, so the smallest size that a
kernel takes is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from lr.errors import SettingError
from lr.model.attention import REFERENCE, SDPA, AttentionKind
from lr.model.attention_flash import FlashKernels, flash_attention
from lr.model.attention_probe import AttentionNeeds, probe
from lr.model.attention_varlen import NEEDED, Kernel, varlen_attention
from lr.model.graph_shapes import GraphShapes
from lr.model.qwen import CausalLM

NAMES = ("auto", "varlen", "flash", "sdpa", "reference")
BLOCK_SIZES = (16, 64, 128, 256)
"""What is tried, in this order."""
HALF = (torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
DEVICES = ("cuda",)
GATHERED_PLACES = 1 << 16
"""Rows times tokens of the largest forward that is replayed with attention on gathered pages: 256
MiB at 8 heads of 128 in bf16.
"""


@dataclass(frozen=True)
class Installed:
    """The kernels of this installation: the functions, or a sentence that says why there are none.
    `devices`: where they run.
    """

    varlen: Kernel | str
    flash: FlashKernels | str
    devices: tuple[str, ...] = DEVICES


@dataclass(frozen=True)
class Candidate:
    """One kind of attention, or why it cannot be used (`why` is empty where it can)."""

    name: str
    kind: AttentionKind | None
    why: str = ""


def choose_attention(
    name: str, needs: AttentionNeeds, installed: Installed | None = None
) -> AttentionKind:
    """The kind of that name; "auto": the first that works. Raises SettingError for one that is
    unknown or cannot run there.
    """
    if name not in NAMES:
        raise SettingError(
            f"attention is {name!r}, expected {', '.join(NAMES[:-1])} or {NAMES[-1]}."
        )
    plain = {kind.name: kind for kind in (SDPA, REFERENCE)}
    if name in plain:
        return plain[name]
    tried = []
    for candidate in candidates(needs, installed):
        if candidate.kind is not None and name in ("auto", candidate.name):
            return candidate.kind
        tried.append(candidate)
    why = next(candidate.why for candidate in tried if candidate.name == name)
    raise SettingError(
        f"attention {name!r} cannot be used on {needs.device} with {str(needs.dtype).removeprefix('torch.')}: {why}. "
        "Leave --attention at auto, which takes the first kind that works, or use sdpa, which always does."
    )


def equip(model: CausalLM, name: str = "auto", *, replay: bool = True) -> None:
    """Give a model its kind of attention and, on CUDA with `replay`, the shapes of the forwards
    that are replayed.

    Raises SettingError for a name that is unknown or cannot run there.
    """
    model.attention = kind = choose_attention(name, AttentionNeeds.of(model))
    model.graphs = None
    if replay and kind.rows is not None and model.device.type == "cuda":
        model.graphs = GraphShapes() if kind.strict else GraphShapes(largest=GATHERED_PLACES)


def candidates(needs: AttentionNeeds, installed: Installed | None = None) -> Iterator[Candidate]:
    """The kinds in the order of preference, each tried when it is asked for: the last one always
    works.
    """
    unfit = _unfit(needs, DEVICES if installed is None else installed.devices)
    found = installed or (Installed(unfit, unfit) if unfit else look_around())
    if unfit or isinstance(found.varlen, str):
        yield Candidate("varlen", None, unfit or str(found.varlen))
    else:
        yield _first_that_works(
            "varlen",
            [partial(varlen_attention, found.varlen, active=a) for a in _actives(needs)],
            needs,
        )
    if unfit or isinstance(found.flash, str):
        yield Candidate("flash", None, unfit or str(found.flash))
    else:
        yield _first_that_works("flash", [partial(flash_attention, found.flash)], needs)
    yield Candidate("sdpa", SDPA)


def look_around() -> Installed:
    """What can be imported here, without running any of it."""
    return Installed(_varlen(), _flash())


def _varlen() -> Kernel | str:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen"
    lacking = [name for name in NEEDED if name not in inspect.signature(varlen_attn).parameters]
    if lacking:
        return f"varlen_attn of torch {torch.__version__} has no parameter {', '.join(lacking)}"
    return varlen_attn


def _flash() -> FlashKernels | str:
    try:
        package = importlib.import_module("flash_attn")
        kernels = FlashKernels(package.flash_attn_varlen_func, package.flash_attn_with_kvcache)
    except ModuleNotFoundError:
        return "the package flash-attn is not installed (pip install 'lookahead-reasoning[flash]')"
    except (ImportError, AttributeError) as error:
        return f"the package flash-attn cannot be used: {error}"
    for function in (kernels.varlen, kernels.with_kvcache):
        if "block_table" not in inspect.signature(function).parameters:
            return "the installed flash-attn takes no block_table, which its version 2.5.7 does"
    return kernels


def _unfit(needs: AttentionNeeds, devices: tuple[str, ...]) -> str:
    """What rules FlashAttention out before anything is tried."""
    if needs.device.type not in devices:
        return f"it needs a device of type {' or '.join(devices)}"
    if needs.dtype not in HALF:
        return (
            f"it computes in float16 or bfloat16, not in {str(needs.dtype).removeprefix('torch.')}"
        )
    if needs.head_dim % 8 or needs.head_dim > LARGEST_HEAD:
        return f"it takes heads of a multiple of 8 and at most {LARGEST_HEAD} dimensions, not {needs.head_dim}"
    return ""


def _first_that_works(
    name: str, makers: list[Callable[[int], AttentionKind]], needs: AttentionNeeds
) -> Candidate:
    """The first maker and the smallest block size that pass the probe; else every reason, with the
    first size that met it.
    """
    reasons: dict[str, int] = {}
    for make in makers:
        before = _active()
        for size in BLOCK_SIZES:
            wrong = probe(make(size), needs)
            if wrong is None:
                return Candidate(name, make(size))
            reasons.setdefault(wrong.rstrip("."), size)
        if before is None and _active() is not None:
            torch.nn.attention.restore_flash_attention_impl()
    return Candidate(
        name,
        None,
        "; ".join(f"with blocks of {size}, {reason}" for reason, size in reasons.items()),
    )


def _active() -> str | None:
    """The FlashAttention that somebody has made PyTorch use; None: its own."""
    ask: Callable[[], str | None] | None = getattr(
        torch.nn.attention, "current_flash_attention_impl", None
    )
    return None if ask is None else ask()


def _actives(needs: AttentionNeeds) -> Iterator[str | None]:
    """The FlashAttentions that PyTorch can be made to use: the present one, then those that are
    installed and fit the GPU.

    Activating one is for the whole process and for all of PyTorch's attention; one that works
    stays.
    """
    yield None
    if needs.device.type != "cuda" or not hasattr(
        torch.nn.attention, "activate_flash_attention_impl"
    ):
        return
    major, _ = torch.cuda.get_device_capability(needs.device)
    for version, module, majors in (
        ("FA3", "flash_attn_interface", (9,)),
        ("FA4", "flash_attn.cute", (9, 10)),
    ):
        if major in majors and _importable(module):
            yield version


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
