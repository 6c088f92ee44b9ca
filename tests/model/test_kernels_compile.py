"""Every Triton kernel compiles for the GPUs that people have, and fits their shared
memory; this needs Triton and its compiler, no GPU.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the package triton is not installed",
)
SHARED = {80: 163, 89: 99, 90: 227}
"""KiB of shared memory that one program may take, by compute capability."""
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
EVERYWHERE = [
    (torch.bfloat16, 80),
    (torch.bfloat16, 90),
    *((dtype, 89) for dtype in TYPES),
]
"""Every type where there is least shared memory, and on all GPUs the type that models
have."""
WARNING = "ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"


def compiled(
    kernel: Any, arguments: dict[str, str], constants: dict[str, Any], sm: int
) -> Any:
    """The kernel for a GPU of that compute capability. `arguments`: their Triton types;
    pointers and strides are multiples of 16, as they are in models.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    options = {
        name: constants.pop(name)
        for name in ("num_warps", "num_stages") & constants.keys()
    }
    if "EARLY" in names:
        constants["EARLY"] = options["launch_pdl"] = sm >= 90
    assert {*arguments, *constants} == set(names)
    changing = {"splits", "split_rows", "table_row", "rows"}
    changing |= {"borders", "owners", "positions", "tables", "slots"}
    even = [
        n
        for n, kind in arguments.items()
        if n not in changing and kind not in ("fp32",)
    ]
    source = ASTSource(
        fn=kernel,
        signature={name: arguments.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)


@pytest.mark.filterwarnings(WARNING)
@pytest.mark.parametrize(
    ("rows", "h", "k", "d", "dtype", "sm"),
    [
        (1, 32, 8, 128, torch.bfloat16, 80),  # Qwen3-8B and 4B, a decoded token
        (1, 32, 8, 128, torch.bfloat16, 90),
        (16, 64, 8, 128, torch.bfloat16, 80),  # Qwen3-32B, a prompt
        (16, 64, 8, 128, torch.bfloat16, 90),
        (
            5,
            28,
            4,
            128,
            torch.float16,
            89,
        ),  # Qwen2.5-7B, the verification of four tokens
        (16, 8, 1, 256, torch.bfloat16, 89),
        (16, 16, 8, 128, torch.float32, 89),
        (1, 8, 4, 256, torch.float32, 89),
    ],
)
def test_attention(
    rows: int, h: int, k: int, d: int, dtype: torch.dtype, sm: int
) -> None:
    from lr.kernels.attention import _combine, _kernel, block_sizes

    data, sizes = TYPES[dtype], block_sizes(rows * h // k, d, dtype)
    arguments = dict.fromkeys(("q", "keys", "values"), data)
    arguments |= {"out": "*fp32", "lses": "*fp32", "positions": "*i64", "scale": "fp32"}
    arguments |= dict.fromkeys(("borders", "owners", "tables"), "*i32")
    arguments |= dict.fromkeys(("q_row", "q_head", "kv_slot", "kv_head"), "i32")
    arguments |= dict.fromkeys(("splits", "split_rows", "table_row"), "i32")
    made = compiled(
        _kernel, arguments, {"H": h, "GROUP": h // k, "D": d, "PAGE": 16, **sizes}, sm
    )
    assert made.asm["cubin"] and made.metadata.shared <= SHARED[sm] * 1024
    arguments = {"out": "*fp32", "lses": "*fp32", "mixed": data, "rows": "i32"}
    constants = {"SPLITS": 64, "D": d, "BLOCK_D": d}
    assert compiled(_combine, arguments, constants, sm).asm["cubin"]


@pytest.mark.filterwarnings(WARNING)
@pytest.mark.parametrize(("dtype", "sm"), EVERYWHERE)
def test_fused(dtype: torch.dtype, sm: int) -> None:
    """The sizes of Qwen3-32B."""
    from lr.kernels.fused import (
        ROW,
        _add_norm,
        _linear,
        _norm_rotate,
        _silu_mul,
        _store,
    )

    data = TYPES[dtype]

    def pointers(*names: str) -> dict[str, str]:
        return dict.fromkeys(names, data)

    rotating = pointers("heads", "weight", "cos", "signed_sin")
    rotating |= {"eps": "fp32", "row_stride": "i32"}
    adding = pointers("x", "y", "weight", "total", "normed") | {"eps": "fp32"}
    storing = pointers("k", "v", "keys", "values") | {"slots": "*i64"}
    storing |= dict.fromkeys(("k_row", "v_row", "kv_slot", "kv_head"), "i32")
    for left_out in ({}, {"weight": None}):
        constants = {"H": 64, "D": 128, "HALF": 64, "num_warps": 1, **left_out}
        arguments = {n: kind for n, kind in rotating.items() if n not in left_out}
        assert compiled(_norm_rotate, arguments, constants, sm).asm["cubin"]
    multiplied = pointers("x", "weight", "scale", "norm", "plus", "out")
    multiplied |= {"n": "i32", "eps": "fp32"}
    for gated, left_out in ((True, ["plus", "scale"]), (False, ["norm", "scale"])):
        arguments = {n: kind for n, kind in multiplied.items() if n not in left_out}
        constants = {"SIZE": 5120, "GATED": gated, **dict.fromkeys(left_out), **ROW}
        assert compiled(_linear, arguments, constants, sm).asm["cubin"]
    arguments = multiplied | {"weight": "*i8"}
    constants = {"SIZE": 5120, "GATED": True, **ROW}
    assert compiled(_linear, arguments, constants, sm).asm["cubin"]
    for kernel, arguments, constants in (
        (_add_norm, adding, {"E": 5120, "BLOCK": 8192, "num_warps": 8}),
        (_silu_mul, pointers("gate_up", "out"), {"WIDTH": 25600, "BLOCK": 1024}),
        (_store, storing, {"SIZE": 1024, "D": 128, "BLOCK": 1024}),
    ):
        assert compiled(kernel, arguments, constants, sm).asm["cubin"]


def test_kernels_go_past_standard_parts_only() -> None:
    """A layer on kernels reads the weights of its parts, so it must notice a part that
    does more than the kernels compute."""
    from lr.kernels.install import readable, standard
    from lr.model.config import ModelConfig
    from lr.model.layers import DecoderLayer, Linear

    config = ModelConfig(31, 24, 40, 1, 2, 1, 16, 64, 1e-6, 1e4, True, True, True)
    layer = DecoderLayer(config, 0)
    assert standard(layer) and readable(layer)
    assert layer.attention.qk_norm is not None
    for part in (layer.mlp, layer.mlp_norm, layer.attention.qk_norm):
        with part.register_forward_hook(lambda *_: None):
            assert not standard(layer)
    with layer.mlp.down.register_forward_hook(lambda *_: None):
        assert standard(layer) and not readable(layer)
    weight = layer.attention.out.weight
    by_rows = weight.data
    weight.data = by_rows.t().contiguous().t()
    assert not readable(layer)
    weight.data = by_rows
    assert readable(layer)

    class Adapted(Linear):
        """Weights that are not all there is."""

    layer.mlp.gate_up = Adapted(24, 80)
    assert standard(layer) and not readable(layer)
