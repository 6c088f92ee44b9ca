"""What the checks of `gpu_check.py` measure: what there is, what a token costs and
where its time goes; and the list of all checks. On a CPU the times mean nothing. See
`gpu_checks.py`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_checks import (
    Answer,
    Scene,
    Sizes,
    Tell,
    graphs_equal,
    model_equal,
    modes_equal,
    races,
    ranks_equal,
)
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE, Branch
from lr.kvcache.cache import PagedKVCache
from lr.measure.bench.gpu import (
    GOAL,
    GpuPlan,
    bench,
    measure_peaks,
    pass_cost,
    report,
    ways,
)
from lr.measure.bench.report import BenchWay, timed, wait_for
from lr.measure.bench.synthetic import Synthetic
from lr.measure.report import table
from lr.model.attention import AttentionKind, RaggedBatch, Tiles
from lr.model.attention_choice import AttentionNeeds, candidates, equip
from lr.model.device import DeviceMap
from lr.model.graphs import ROWS, recorder_for
from lr.model.layers import Attend
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import GenerateOptions
from lr.rng import Stream
from lr.spec.acceptance import RULES, Draws
from lr.spec.drafters import LookupDrafter
from lr.spec.sampling import draw
from lr.spec.token_sd import Context, Speculation, speculate
from lr.types import SamplingParams

ROOT = Path(__file__).resolve().parents[1]


def machine(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """What there is and what was chosen."""
    said = {"cudnn": torch.backends.cudnn.version(), "python": sys.version.split()[0]}
    if device.type == "cuda":
        said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        said["free"] = f"{torch.cuda.mem_get_info(device)[0] / 2**30:.1f} GiB"
        said["sdpa order"] = str(torch._C._get_sdp_priority_order())
    try:
        import triton

        said["triton"] = triton.__version__
    except ImportError as error:
        said["triton"] = str(error)
    if shutil.which("nvidia-smi"):
        tell(
            subprocess.run(
                ["nvidia-smi"], capture_output=True, text=True, check=False
            ).stdout
        )
    needs, taken = AttentionNeeds(device, sizes.attention, 32, 8, 128), ""
    for name, found in candidates(needs):
        tell(f"attention {name}: {found if isinstance(found, str) else 'works'}")
        taken = taken or ("" if isinstance(found, str) else name)
    said |= {"attention": taken}
    return True, ", ".join(f"{name} {value}" for name, value in said.items())


@torch.inference_mode()
def attention_times(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """Per kind of attention and scene: microseconds of one layer's attention, as a
    ragged batch runs it (host included) and, where rows are recorded, as a decoding
    step replays it.
    """
    needs = AttentionNeeds(device, sizes.attention, 32, 8, 128)
    kinds = {
        name: kind for name, kind in candidates(needs) if not isinstance(kind, str)
    }
    for scene in sizes.scenes:
        found = {
            name: attention_time(kind, needs, scene) for name, kind in kinds.items()
        }
        told = []
        for name, (first, ragged, rows, _) in found.items():
            replayed = "" if rows is None else f", replayed {rows:.0f}"
            told.append(
                f"{name} {ragged:.0f} (the first call {first:.0f} ms){replayed}"
            )
        tell(f"{scene.name}, microseconds a layer: {'; '.join(told)}")
        for name, (*_, kernels) in found.items():
            tell(f"  {name}: {'; '.join(kernels) or 'kernels are listed on CUDA only'}")
    return True, f"{len(sizes.scenes)} scenes, {' and '.join(kinds)}"


def attention_time(
    kind: AttentionKind, needs: AttentionNeeds, scene: Scene
) -> tuple[float, float, float | None, list[str]]:
    """Milliseconds of the first call on a ragged batch, which may compile; microseconds
    of a later one, and of one that is replayed (None: it is not recorded); the longest
    kernels of the former.
    """
    device, size, calls = needs.device, BLOCK_SIZE, 10
    blocks = sum(
        (a + b) // size + 2 for a, b in zip(scene.cached, scene.new, strict=True)
    )
    cache = PagedKVCache(
        num_layers=1, num_kv_heads=needs.num_kv_heads, head_dim=needs.head_dim,
        num_blocks=blocks + 2 * scene.forks, block_size=size, dtype=needs.dtype, device=device,
    )  # fmt: skip
    for memory in (cache.keys, cache.values):
        memory.copy_(torch.randn(memory.shape, device=device))
    tables, counts = (
        [cache.new() for _ in scene.cached],
        [*scene.new, *[1] * scene.forks],
    )
    with cache.append(tables, list(scene.cached)):
        pass
    tables += [cache.fork(tables[0]) for _ in range(scene.forks)]
    with cache.append(tables, counts) as slots:
        tokens = [[0] * count for count in counts]
        batch = RaggedBatch.build(tables, tokens, slots, wanted=counts, device=device)
        shape = len(slots), needs.num_heads + 2 * needs.num_kv_heads, needs.head_dim
        heads = torch.randn(shape, device=device).to(needs.dtype)
        q, k, v = heads.split((needs.num_heads, *[needs.num_kv_heads] * 2), 1)

        def several(attend: Attend) -> Tensor:
            return [attend(0, q, k, v) for _ in range(calls)][-1]

        attend, rows = kind.ragged(batch, cache), None
        started = time.perf_counter()
        attend(0, q, k, v)
        wait_for(device)
        first = 1e3 * (time.perf_counter() - started)
        ragged = 1e6 * timed(partial(several, attend), device) / calls
        kernels = [
            kernel[:70]
            for kernel, *_ in top_kernels(partial(several, attend), device)[:4]
        ]
        if kind.tiles is not None and len(slots) <= ROWS[-1]:
            attend = kind.tiles(Tiles.of(batch, kind.tile), cache)
            replay = recorder_for(device)(partial(several, attend))
            rows = 1e6 * timed(replay, device) / calls
    return first, ragged, rows, kernels


def top_kernels(
    work: Callable[[], object], device: torch.device
) -> list[tuple[str, float, int]]:
    """Names, milliseconds and counts of what ran on the device, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    if device.type != "cuda":
        work()
        return []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        wait_for(device)
    rows = [
        (e.key, e.self_device_time_total / 1e3, e.count) for e in seen.key_averages()
    ]
    return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def long_branch(runner: ModelRunner, length: int) -> Branch:
    """A branch of `length` cached tokens (their keys and values are zero) and one
    uncomputed."""
    branch = runner.open([1] * (length + 1))
    with runner.cache.append([branch.table], [length]):
        pass
    return branch


def decoding(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """Each shape at batch 1: milliseconds per token by length, with and without drawing
    it, as a share of the bandwidth limit; waits of the host; kernels of one step; cost
    of a recording.
    """
    peaks, shares = measure_peaks(device, sizes.dtype, small=not sizes.full), []
    sampling = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
    for name in sizes.shapes:
        model = dummy(name, device, sizes)
        started = time.perf_counter()
        runner = ModelRunner(model, num_blocks=room_for(max(sizes.lengths) + 200))
        wait_for(device)
        count = 0 if runner.graphs is None else len(runner.graphs.recorded)
        tell(f"{name}: attention {model.attention.name}, cache and {count} recordings with their "
             f"warm-ups {time.perf_counter() - started:.2f} s")  # fmt: skip
        for length in sizes.lengths:
            branch = long_branch(runner, length)

            def step(runner: ModelRunner = runner, branch: Branch = branch) -> Tensor:
                logits = torch.stack(runner.forward([branch]))
                branch.append(1)
                return logits

            def both(step: Callable[[], Tensor] = step) -> list[int]:
                return draw(step(), sampling, [7])

            forward, drawn = (timed(one, device, sizes.steps) for one in (step, both))
            limit, _ = pass_cost(model.config, model.dtype, [1], [length], 1).limit(
                peaks
            )
            shares.append(f"{name} at {length} {limit / drawn:.2f}")
            tell(f"{name} at {length}: {1e3 * forward:.3f} ms, drawn {1e3 * drawn:.3f} ms, limit "
                 f"{1e3 * limit:.3f} ms, share {limit / drawn:.2f}")  # fmt: skip
            if length == sizes.lengths[0]:
                tell(f"{name}, waits per token: {waits(both, device)}")
                for rule in ("reject", "match"):
                    work = partial(speculative_round, runner, branch, rule, sampling)
                    tell(
                        f"{name}, waits per round of two by {rule}: {waits(work, device)}"
                    )
                found = top_kernels(step, device)[:20]
                rows = [[n[:70], f"{ms:.3f}", str(count)] for n, ms, count in found]
                for line in table([["kernel", "ms", "calls"], *rows]) if rows else ():
                    tell(line)
            runner.close(branch)
        failure = runner.graphs.failure if runner.graphs is not None else None
        if failure:
            return False, failure
        runner.end()
    return True, f"shares of the limit (goal {GOAL}): {', '.join(shares)}"


def speculative_round(
    runner: ModelRunner, one: Branch, rule: str, how: SamplingParams
) -> None:
    """Token-level speculation on a branch, whose tokens repeat, and its fork."""
    branches = [one_more(one), runner.fork(one)]
    speculation = Speculation(LookupDrafter(), RULES[rule](), 4)
    draws = Draws(Stream.root(0), 0)
    speculate(
        runner, how, speculation, [Context(branch, 4, draws) for branch in branches]
    )
    runner.close(branches[1])


def waits(work: Callable[[], object], device: torch.device) -> str:
    """How often the host waits for the device in `work`, when it is done a second
    time."""
    work()
    if device.type != "cuda":
        return "counted on CUDA only"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [
        one for one in seen if "prototype" not in str(one.message)
    ]  # says PyTorch of the mode
    return str(len(found))


@torch.inference_mode()
def ladder(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """One token at a length of 2048, each rung recorded by itself: matrices only; the
    small steps of the layers; attention; all, with the token drawn. The differences say
    where the time goes.
    """
    name, length = sizes.shapes[0], 2048 if sizes.full else 20
    model, record = dummy(name, device, sizes), recorder_for(device)
    runner = ModelRunner(model, num_blocks=room_for(length + 50))
    branch = long_branch(runner, length)
    where = torch.full((1,), length, device=device)
    token, sampling = torch.ones_like(where), SamplingParams(0.6, 0.95, 20)
    x = torch.ones(1, model.config.hidden_size, dtype=model.dtype, device=device)

    def matrices() -> Tensor:
        for layer in model.layers:
            block: Any = layer
            mixed = block.attention.qkv(x)[:, : block.attention.out.weight.shape[1]]
            block.attention.out(mixed)
            block.mlp.down(block.mlp.gate_up(x).chunk(2, -1)[0])
        return model.logits(x)

    rungs = {
        "matrices": record(matrices),
        "and the layers' small steps": record(
            lambda: model.logits(model.trunk(token, where, lambda layer, q, k, v: q))
        ),
        "and attention": lambda: runner.forward([one_more(branch)]),
        "and drawing": lambda: draw(
            torch.stack(runner.forward([one_more(branch)])), sampling, [7]
        ),
    }
    said, before = [], 0.0
    runner.forward([branch])
    for rung, work in rungs.items():
        ms = 1e3 * timed(work, device, sizes.steps)
        said.append(f"{rung} {ms:.3f} (+{ms - before:.3f})")
        tell(f"{name}: {said[-1]} ms")
        before = ms
    return True, f"{name}, ms: {', '.join(said)}"


def one_more(branch: Branch) -> Branch:
    """The same branch with one more uncomputed token."""
    branch.append(1)
    return branch


def rows_cost(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """The large shape: one pass over 1, 5 and 16 rows (4 sequences of 4 tokens) at
    1,000 tokens."""
    if (
        device.type == "cuda"
        and (free := torch.cuda.mem_get_info(device)[0]) < 75 * 2**30
    ):
        return None, f"{free / 2**30:.0f} GiB free, 75 needed"
    model = dummy(sizes.large, device, sizes)
    length = 1000 if sizes.full else 20
    runner = ModelRunner(model, num_blocks=8 * room_for(length + 200))
    seconds = {}
    for what, branches, tokens in (
        ("1 row", 1, 1),
        ("5 rows", 5, 1),
        ("4 x 4 rows", 4, 4),
    ):
        chosen = [long_branch(runner, length) for _ in range(branches)]

        def work(chosen: list[Branch] = chosen, tokens: int = tokens) -> object:
            for branch in chosen:
                branch.extend([1] * (tokens - len(branch.uncomputed)))
            made = runner.forward(chosen, "all")
            for branch in chosen:
                branch.append(1)
            return made

        seconds[what] = timed(work, device, min(sizes.steps, 7))
        tell(f"{sizes.large}, {what}: {1e3 * seconds[what]:.3f} ms")
        for branch in chosen:
            runner.close(branch)
    peaks = measure_peaks(device, sizes.dtype, small=not sizes.full)
    cost = pass_cost(model.config, model.dtype, [1], [length], 1)
    share = cost.limit(peaks)[0] / seconds["1 row"]
    more = {
        what: one / seconds["1 row"] for what, one in seconds.items() if what != "1 row"
    }
    said = ", ".join(f"{what} {one:.2f}" for what, one in more.items())
    return (
        True,
        f"{sizes.large}: share {share:.2f} (goal {GOAL}); {said} (goals 1.15, 1.30)",
    )


def gpu_tests(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """`pytest -m gpu`, but for the test that runs these checks."""
    if not sizes.full:
        return None, "the tests for a GPU need one"
    paths = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.stem != "test_gpu_check"
    ]
    files = [
        str(path)
        for path in paths
        if "@pytest.mark.gpu" in path.read_text(encoding="utf-8")
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    for line in lines[-30:]:
        tell(line)
    return done.returncode == 0, lines[-1]


def timings(
    device: torch.device, sizes: Sizes, tell: Tell = print, *, large: bool = False
) -> Answer:
    """`lr bench gpu` at real shapes, and what it says about the goal: 8B and 1.7B
    without a judge; or 32B, 1.7B and a judge of 7B.
    """
    names: tuple[str, str, str | None]
    names = (
        ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B")
        if large
        else ("Qwen3-8B", "Qwen3-1.7B", None)
    )
    if not sizes.full:
        names = ("tiny-target", "tiny-draft", "tiny-judge" if large else None)
    elif (free := torch.cuda.mem_get_info(device)[0]) < (90 if large else 24) * 2**30:
        return None, f"{free / 2**30:.0f} GiB free, {90 if large else 24} needed"
    options = GenerateOptions(
        mode="lr+sd", driver="overlapped", drafter="ngram", num_speculative_tokens=8, depth=4,
        max_tokens=384 if sizes.full else 24, temperature=0.6, top_p=0.95, top_k=20,
    )  # fmt: skip
    drivers = ("overlapped",) if large else ("lockstep", "overlapped")
    chosen = ways(("ar", "sd", "lr", "lr+sd"), drivers)
    if large:
        more = {"depth": 6}, {"num_speculative_tokens": 4}
        for mode, settings in zip(("lr", "lr+sd"), more, strict=True):
            named = ", ".join(f"{name} {value}" for name, value in settings.items())
            how = {"driver": "overlapped", **settings}
            chosen.append(BenchWay(f"{mode}, overlapped, {named}", mode, how))
    # alpha1: Qwen3 on GSM8K in the paper's Table 1; alpha2 makes its SD speedup
    synthetic = Synthetic(0.5, 0.24, source="Table 1, Qwen3, GSM8K")
    what = options, chosen, synthetic
    plan = GpuPlan(*what, (1, 8)) if sizes.full else GpuPlan(*what, (1,), 20, 8, 2)
    found = bench(names, DeviceMap.of(device), sizes.dtype, plan)
    for line in report(found).splitlines():
        tell(line)
    share = found["passes"][0]["share_of_limit"]
    rates = [
        (row["spread"]["median"], row["predicted_tokens_per_second"])
        for row in found["modes"]
    ]
    ratios = [rate / model for rate, model in rates]
    said = f"{names[0]}, batch 1: {share:.2f} of the bandwidth limit (goal {GOAL}); tokens/s"
    return (
        True,
        f"{said} {min(ratios):.2f} to {max(ratios):.2f} of the model's (goal 0.90 to 1.10)",
    )


def dummy(name: str, device: torch.device, sizes: Sizes) -> CausalLM:
    """A published shape with random weights and the attention that it gets."""
    model = load_model(f"dummy:{name}", device=device, dtype=sizes.dtype)
    equip(model)
    return model


def room_for(tokens: int) -> int:
    """Cache blocks for one sequence."""
    return tokens // BLOCK_SIZE + 2


CHECKS: Mapping[str, tuple[Callable[..., Answer], int]] = {
    "machine": (machine, 60),
    "decoding": (decoding, 120),
    "ladder": (ladder, 60),
    "graphs": (graphs_equal, 60),
    "model": (model_equal, 60),
    "calls": (attention_times, 60),
    "races": (races, 90),
    "modes": (modes_equal, 90),
    "rows": (rows_cost, 90),
    "tests": (gpu_tests, 240),
    "timings 8B": (timings, 120),
    "timings 32B": (partial(timings, large=True), 300),
    "ranks": (ranks_equal, 120),
}
"""By name, the most informative first: the check, and the seconds it may take."""
