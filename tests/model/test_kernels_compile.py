"""Every Triton kernel compiles for the GPUs that people have, and fits their shared
memory and registers; this needs Triton and its compiler, no GPU.
"""

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch
from attention_kit import needs_triton

pytestmark = needs_triton
SHARED = {80: 163, 89: 99, 90: 227}
"""KiB of shared memory that one program may take, by compute capability."""
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
WARNING = "ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"


CHANGING = (
    "splits split_rows table_row rows borders owners positions tables slots".split()
)


def compile_for(sm, kernel, signature, constants):
    """The kernel for a GPU of that compute capability, whose registers suffice.
    `signature`: name and Triton type of each argument; pointers and strides are
    multiples of 16, as they are in models.
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
    arguments = dict(argument.split(":") for argument in signature.split())
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
    signature = (
        f"q:{data} keys:{data} values:{data} out:*fp32 lses:*fp32 positions:*i64 "
        "scale:fp32 borders:*i32 owners:*i32 tables:*i32 q_row:i32 q_head:i32 "
        "kv_slot:i32 kv_head:i32 splits:i32 split_rows:i32 table_row:i32"
    )
    sizes = block_sizes(rows * h // k, d, dtype)
    constants = {"H": h, "GROUP": h // k, "D": d, "PAGE": 16, **sizes}
    compile_for(sm, _kernel, signature, constants)
    signature = f"out:*fp32 lses:*fp32 mixed:{data} rows:i32"
    compile_for(sm, _combine, signature, {"SPLITS": 64, "D": d, "BLOCK_D": d})


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

    def check(kernel, signature, **constants):
        """The type of the data is written as T."""
        compile_for(sm, kernel, signature.replace("T", TYPES[dtype]), constants)

    rotate = {"H": 64, "D": 128, "HALF": 64, "num_warps": 1}
    heads = "heads:T weight:T cos:T signed_sin:T eps:fp32 row_stride:i32"
    check(fused._norm_rotate, heads, **rotate)
    check(fused._norm_rotate, heads, weight=None, **rotate)
    sizes = {"SIZE": 5120, **fused.ROW_LAUNCH}
    row = "x:T weight:T norm:T plus:T out:T eps:fp32 n:i32"
    check(fused._linear, row, GATED=True, plus=None, **sizes)
    check(fused._linear, row, GATED=False, norm=None, **sizes)
    sums = "x:T y:T weight:T total:T normed:T eps:fp32"
    check(fused._add_norm, sums, E=5120, BLOCK=8192, num_warps=8)
    check(fused._silu_mul, "gate_up:T out:T", WIDTH=25600, BLOCK=1024)
    cached = "k:T v:T keys:T values:T k_row:i32 v_row:i32 kv_slot:i32 kv_head:i32"
    check(fused._store, f"{cached} slots:*i64", SIZE=1024, D=128, BLOCK=1024)
