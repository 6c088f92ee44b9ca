"""Does everything that has a path of its own on a GPU do there what it does elsewhere? A list of
checks, for `scripts/gpu_check.sh`.

Every check says in a sentence what it found. The same checks run at tiny sizes on the CPU
(`Sizes.twin`), so that CI knows that they work. A check that raises has failed; one that does not
apply (one GPU, no kernel) says so. No network and no weights are needed: models are the tiny
family, which comes with the package, or have random weights. Read next: `gpu_attention.py`,
`roofline.py`.
"""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lr.engine.runner import ModelRunner
from lr.lab.bench.gpu_attention import DISTANCE, SCENES, Scene, check_attention, check_graphs
from lr.model.attention_choice import equip
from lr.model.config import config_json
from lr.model.dummy import SHAPES
from lr.model.parallel.start import spread_over
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.reasoner import Reasoner

QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
)
SMALL_SCENES = (Scene("decode 2", (40, 9), (1, 1)), Scene("mixed", (0, 33, 1), (20, 1, 5), forks=1))


@dataclass(frozen=True)
class Found:
    """What a check found. `ok` None: it does not apply here."""

    name: str
    ok: bool | None
    what: str
    seconds: float

    @property
    def word(self) -> str:
        return {True: "ok", False: "FAILED", None: "skipped"}[self.ok]


@dataclass(frozen=True)
class Sizes:
    """How much is checked. `dtypes`: the precisions of the model that is compared with fp64."""

    scenes: tuple[Scene, ...] = SCENES
    attention: torch.dtype = torch.bfloat16
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    layers: int = 8
    graph_length: int = 1000
    tokens: int = 120

    @classmethod
    def twin(cls) -> Sizes:
        return cls(SMALL_SCENES, torch.float32, (torch.float32, torch.bfloat16), 2, 40, 24)


Answer = tuple[bool | None, str]


def run_checks(device: torch.device, sizes: Sizes) -> Iterator[Found]:
    """Every check in turn, as it is done."""
    checks: list[tuple[str, Callable[[torch.device, Sizes], Answer]]] = [
        ("attention equals fp64", attention_equal),
        ("graphs on and off", graphs_equal),
        ("model equals fp64 on the CPU", model_equal),
        ("all modes, both drivers", modes_equal),
        ("tensor parallelism", ranks_equal),
    ]
    for name, check in checks:
        yield guarded(name, lambda check=check: check(device, sizes))  # type: ignore[misc]


def guarded(name: str, check: Callable[[], Answer]) -> Found:
    """The outcome of a check; an exception is a failure with its last lines."""
    started = time.perf_counter()
    try:
        ok, what = check()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ok, what = (
            False,
            f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",
        )
    return Found(name, ok, what, time.perf_counter() - started)


def attention_equal(device: torch.device, sizes: Sizes) -> Answer:
    """Every kind of attention that works here, in every scene."""
    rows = check_attention(device, sizes.attention, scenes=sizes.scenes, repeats=3)
    done = [row for row in rows if row.ok is not None]
    worst = {
        kind: max(row.off / row.bound for row in done if row.kind == kind)
        for kind in {row.kind for row in done}
    }
    said = ", ".join(f"{kind} {share:.2f} of its bound" for kind, share in sorted(worst.items()))
    left_out = "; ".join(f"no {row.kind}: {row.why}" for row in rows if row.why)
    return all(row.ok for row in done) and bool(
        done
    ), f"{len(sizes.scenes)} scenes; {said}; {left_out}".rstrip("; ")


def graphs_equal(device: torch.device, sizes: Sizes) -> Answer:
    """Decoding with and without recorded graphs."""
    model = small_model(
        device, torch.bfloat16 if device.type == "cuda" else torch.float32, sizes.layers
    )
    equip(model)
    if model.attention.rows is None:
        return None, f"attention {model.attention.name} is not recorded"
    rows = check_graphs(model, length=sizes.graph_length, steps=10)
    said = ", ".join(
        f"{row.rows} rows: {row.plain / row.replayed:.2f} times as fast, off {row.distance:.1e}"
        for row in rows
    )
    failures = {row.failure for row in rows if row.failure}
    return all(
        row.ok for row in rows
    ), f"{rows[0].attention}; {said}{'; ' if failures else ''}{', '.join(failures)}"


def model_equal(device: torch.device, sizes: Sizes) -> Answer:
    """A ragged batch with forks: next-token distributions against the same weights in fp64 on the
    CPU.
    """
    said, fine = [], True
    for dtype in sizes.dtypes:
        model = small_model(torch.device("cpu"), dtype, sizes.layers)
        exact = small_model(torch.device("cpu"), torch.float64, sizes.layers)
        exact.load_state_dict(model.state_dict())
        model = model.to(device)
        equip(model)
        off = max(
            0.5 * float((a.cpu().double() - b).abs().sum(-1).max())
            for a, b in zip(ragged(model), ragged(exact), strict=True)
        )
        bound = DISTANCE[dtype]
        fine &= off <= bound
        said.append(f"{str(dtype).removeprefix('torch.')}: off {off:.1e}, bound {bound:g}")
    return fine, "; ".join(said)


def ragged(model: CausalLM) -> list[torch.Tensor]:
    """Distributions [rows, v] of three prompts of different lengths, then of a fork, a rewound
    branch and a chunk behind a cache.
    """
    runner = ModelRunner(model, num_blocks=64)
    prompts = [[(5 * i + j) % 250 for i in range(length)] for j, length in enumerate((90, 17, 3))]
    branches = [runner.open(prompt) for prompt in prompts]
    first = runner.feed(branches)
    fork = runner.fork(branches[0])
    fork.append(7)
    runner.rewind(branches[1], 9)
    branches[1].extend([1, 2, 3, 4])
    branches[2].append(11)
    laws = [torch.stack(first), *runner.feed([fork, *branches[1:]], logits="all")]
    return [law.float().softmax(-1) for law in laws]


def modes_equal(device: torch.device, sizes: Sizes) -> Answer:
    """In fp64, with exact verification and the matching rule, every mode emits what plain decoding
    emits, with either driver.
    """
    with Reasoner(
        "tiny-target", "tiny-draft", "exact", device=device, dtype=torch.float64
    ) as reasoner:
        settings: dict[str, Any] = {
            "acceptance": "match",
            "max_tokens": sizes.tokens,
            "temperature": 0.6,
        }
        plain = reasoner.generate(QUESTION, mode="ar", **settings).tokens
        wrong = [
            f"{mode} {driver}"
            for driver in ("lockstep", "overlapped")
            for mode in ("sd", "lr", "lr+sd")
            if reasoner.generate(QUESTION, mode=mode, driver=driver, **settings).tokens != plain
        ]
        worker = "none" if reasoner.models.worker is None else reasoner.models.worker.where.value
    said = (
        f"{len(plain)} tokens, the same in 6 ways"
        if not wrong
        else f"other tokens in {', '.join(wrong)}"
    )
    return not wrong, f"{said}; the draft's worker is a {worker}"


def ranks_equal(device: torch.device, sizes: Sizes) -> Answer:
    """The target over two ranks emits what it emits on one device (fp64)."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        return None, "one GPU here"
    settings: dict[str, Any] = {"mode": "lr", "max_tokens": sizes.tokens}
    with Reasoner(verifier="exact", device=device, dtype=torch.float64) as alone:
        expected = alone.generate(QUESTION, **settings).tokens
    with Reasoner(verifier="exact", device=spread_over(2, device), dtype=torch.float64) as spread:
        found = spread.generate(QUESTION, **settings).tokens
    return (
        found == expected,
        f"2 ranks, {len(found)} tokens, {'the same' if found == expected else 'other ones'}",
    )


def small_model(device: torch.device, dtype: torch.dtype, layers: int) -> CausalLM:
    """A model of Qwen3-0.6B's heads, few layers and a small vocabulary, with random weights."""
    stated = config_json(SHAPES["Qwen3-0.6B"]) | {
        "num_hidden_layers": layers,
        "vocab_size": 2048,
        "hidden_size": 256,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(stated), encoding="utf-8")
        return load_model(f"dummy:{folder}", device=device, dtype=dtype)
