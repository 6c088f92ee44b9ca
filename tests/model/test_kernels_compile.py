"""Every Triton kernel compiles for the GPUs that people have, and fits their shared
memory and registers; this needs Triton and its compiler, no GPU.
"""

import importlib.util
import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the package triton is not installed",
)
SHARED = {80: 163, 89: 99, 90: 227}
"""KiB of shared memory that one program may take, by compute capability."""
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
WARNING = "ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"


CHANGING = (
    "splits split_rows table_row rows borders owners positions tables slots".split()
)


def compile_for(sm, kernel, arguments, constants):
    """The kernel for a GPU of that compute capability, whose registers suffice.
    `arguments`: their Triton types; pointers and strides are multiples of 16, as they
    are in models.
    """
    import triton
    from triton.backends import nvidia
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, constants = kernel.arg_names, dict(constants)
    chosen = {"num_warps", "num_stages"} & constants.keys()
    options = {name: constants.pop(name) for name in chosen}
    if "EARLY" in names:
        constants["EARLY"] = options["launch_pdl"] = sm >= 90
    arguments = {n: kind for n, kind in arguments.items() if n not in constants}
    assert {*arguments, *constants} == set(names)
    even = [
        name
        for name, kind in arguments.items()
        if name not in CHANGING and kind != "fp32"
    ]
    source = ASTSource(
        fn=kernel,
        signature={name: arguments.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in even},
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    assert kernel.metadata.shared <= SHARED[sm] * 1024
    tool = Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.check_output([tool, "-res-usage", file.name], text=True)
    spilled = int(re.findall(r"STACK:(\d+)", usage)[0])  # bytes of a thread
    assert spilled <= 128, usage
    return kernel


@pytest.mark.filterwarnings(WARNING)
@pytest.mark.parametrize(
    "rows, h, k, d, dtype, sm",
    [
        (1, 32, 8, 128, torch.bfloat16, 80),  # Qwen3-8B and 4B, a decoded token
        (16, 64, 8, 128, torch.bfloat16, 90),  # Qwen3-32B, a prompt
        (5, 28, 4, 128, torch.float16, 89),  # Qwen2.5-7B verifies four tokens
        (16, 8, 1, 256, torch.bfloat16, 89),
        (16, 16, 8, 128, torch.float32, 89),
    ],
)
def test_the_attention_kernel_compiles(rows, h, k, d, dtype, sm):
    from lr.kernels.attention import _combine, _kernel, block_sizes

    data = TYPES[dtype]
    arguments = dict.fromkeys(("q", "keys", "values"), data)
    arguments |= {"out": "*fp32", "lses": "*fp32", "positions": "*i64", "scale": "fp32"}
    arguments |= dict.fromkeys(("borders", "owners", "tables"), "*i32")
    arguments |= dict.fromkeys("q_row q_head kv_slot kv_head".split(), "i32")
    arguments |= dict.fromkeys(("splits", "split_rows", "table_row"), "i32")
    sizes = block_sizes(rows * h // k, d, dtype)
    constants = {"H": h, "GROUP": h // k, "D": d, "PAGE": 16, **sizes}
    compile_for(sm, _kernel, arguments, constants)
    arguments = {"out": "*fp32", "lses": "*fp32", "mixed": data, "rows": "i32"}
    compile_for(sm, _combine, arguments, {"SPLITS": 64, "D": d, "BLOCK_D": d})


@pytest.mark.filterwarnings(WARNING)
@pytest.mark.parametrize(
    "dtype, sm",
    [
        (torch.bfloat16, 80),
        (torch.bfloat16, 90),
        (torch.float16, 89),
        (torch.float32, 89),
    ],
)
def test_the_fused_kernels_compile(dtype, sm):
    """The sizes of Qwen3-32B; None: an argument that may be left out."""
    from lr.kernels import fused

    def check(kernel, pointers, others, **constants):
        arguments = dict.fromkeys(pointers.split(), TYPES[dtype]) | others
        compile_for(sm, kernel, arguments, constants)

    eps = {"eps": "fp32"}
    rotate = {"H": 64, "D": 128, "HALF": 64, "num_warps": 1}
    for weight in ({}, {"weight": None}):
        pointers, others = "heads weight cos signed_sin", eps | {"row_stride": "i32"}
        check(fused._norm_rotate, pointers, others, **rotate, **weight)
    multiply, width = fused._linear, eps | {"n": "i32"}
    pointers, sizes = "x weight norm plus out", {"SIZE": 5120, **fused.ROW_LAUNCH}
    check(multiply, pointers, width, GATED=True, plus=None, **sizes)
    check(multiply, pointers, width, GATED=False, norm=None, **sizes)
    add, norm = {"E": 5120, "BLOCK": 8192, "num_warps": 8}, "x y weight total normed"
    check(fused._add_norm, norm, eps, **add)
    check(fused._silu_mul, "gate_up out", {}, WIDTH=25600, BLOCK=1024)
    strides = dict.fromkeys("k_row v_row kv_slot kv_head".split(), "i32")
    others = strides | {"slots": "*i64"}
    check(fused._store, "k v keys values", others, SIZE=1024, D=128, BLOCK=1024)
