"""The checks of `gpu_check.py`: does everything that has a path of its own on a GPU do
there what it does elsewhere?

Each check takes a device, sizes and `tell`, which writes a finding at once, and returns
whether it passed (None: it does not apply here) and a sentence. No network and no
weights are needed: models are the tiny family, which comes with the package, or have
random weights. `Sizes.small()` runs the same checks on a CPU, where their times mean
nothing.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE, Branch
from lr.measure.bench.report import timed
from lr.model.attention_choice import equip
from lr.model.dummy import SHAPES, random_model
from lr.model.qwen import CausalLM
from lr.model.ranks import load_parallel, spread_over
from lr.reasoner import Reasoner
from lr.trace import Warned

Tell = Callable[[str], None]
QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
DISTANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 0.01,
    torch.bfloat16: 0.05,
}
"""Largest distance (total variation) between the next-token distributions of one model,
computed in two ways in that dtype. Tokens are compared in fp64 only: in bfloat16 two
correct ways part at the first near-tie."""


@dataclass(frozen=True)
class Scene:
    """A batch: by sequence, tokens that are cached and new. `forks` of the first join
    it."""

    name: str
    cached: tuple[int, ...]
    new: tuple[int, ...]
    forks: int = 0


SCENES = (
    Scene("decode 1 at 2048", (2048,), (1,)),
    Scene(
        "decode 8 at 300 to 3000",
        (300, 700, 1100, 1500, 1900, 2300, 2700, 3000),
        (1,) * 8,
    ),
    Scene("verify 8 x 5 at 1000", (1000,) * 8, (5,) * 8),
    Scene("7 forks at 2000", (2000,), (1,), forks=7),
    Scene("prompt of 1024", (0,), (1024,)),
    Scene("mixed", (0, 513, 90, 1), (200, 1, 7, 33), forks=2),
)
SMALL_SCENES = (
    Scene("decode 2", (40, 9), (1, 1)),
    Scene("mixed", (0, 33, 1), (20, 1, 5), forks=1),
)


@dataclass(frozen=True)
class Sizes:
    """How much is checked. `dtypes`: of the model that is compared with fp64."""

    scenes: tuple[Scene, ...] = SCENES
    attention: torch.dtype = torch.bfloat16
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    layers: int = 8
    graph_length: int = 1000
    tokens: int = 120
    shapes: tuple[str, ...] = ("Qwen3-8B", "Qwen3-1.7B")
    lengths: tuple[int, ...] = (512, 2048, 8192, 30000)
    large: str = "Qwen3-32B"
    answers: int = 80
    steps: int = 20
    full: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """Of the models that are timed."""
        return torch.bfloat16 if self.full else torch.float32

    @classmethod
    def small(cls) -> Sizes:
        """For a CPU."""
        tiny = {
            "shapes": ("tiny-draft",),
            "lengths": (20,),
            "large": "tiny-draft",
            "answers": 5,
        }
        how: dict[str, Any] = {
            **tiny,
            "layers": 2,
            "graph_length": 40,
            "tokens": 24,
            "steps": 2,
        }
        return cls(SMALL_SCENES, torch.float32, full=False, **how)


Answer = tuple[bool | None, str]


def graphs_equal(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """Decoding with and without recorded CUDA graphs: distributions, and time."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return replays_equal(small_model(device, dtype, sizes.layers), sizes)


def replays_equal(model: CausalLM, sizes: Sizes) -> Answer:
    """What `graphs_equal` says of this model."""
    equip(model)
    if not model.replayable:
        return (
            None,
            f"attention {model.attention.name} is not recorded on {model.device.type}",
        )
    said, fine = [], True
    for rows in (1, 4, 8):
        (plain, _), (replayed, failure) = (
            _decoded(model, rows, sizes.graph_length, graphs=graphs)
            for graphs in (False, True)
        )
        pairs = zip(plain[0], replayed[0], strict=True)
        off = max(0.5 * float((a - b).abs().sum(-1).max()) for a, b in pairs)
        fine &= failure is None and off <= DISTANCE[model.dtype]
        times = plain[1] / replayed[1]
        said.append(failure or f"{rows} rows: {times:.2f} times as fast, off {off:.1e}")
    return fine, f"{model.attention.name}; {', '.join(said)}"


def _decoded(
    model: CausalLM, rows: int, length: int, *, graphs: bool
) -> tuple[tuple[list[Tensor], float], str | None]:
    """Distributions of three steps [rows, v], seconds per step, and why nothing was
    recorded."""
    vocabulary, steps = model.config.vocab_size, 10
    prompts = [
        [(7 * i + 3 * j + 1) % vocabulary for i in range(length)] for j in range(rows)
    ]
    blocks = rows * ((length + 2 * steps) // BLOCK_SIZE + 2)
    model.graphs = graphs
    runner = ModelRunner(model, num_blocks=blocks)
    branches = [runner.open(prompt) for prompt in prompts]
    runner.forward(branches)

    def step() -> list[Tensor]:
        for branch in branches:
            branch.append(len(branch) % vocabulary)
        return runner.forward(branches)

    made = [torch.stack(step()).float().softmax(-1) for _ in range(3)]
    seconds, failure = timed(step, model.device, steps), None
    if runner.graphs is not None and (
        runner.graphs.failure or not runner.graphs.recorded
    ):
        failure = runner.graphs.failure or "nothing was recorded"
    return (made, seconds), failure


def model_equal(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """A ragged batch with forks: distributions against the same weights in fp64 on the
    CPU."""
    said, fine, cpu = [], True, torch.device("cpu")
    for dtype in sizes.dtypes:
        model, exact = (
            small_model(cpu, one, sizes.layers) for one in (dtype, torch.float64)
        )
        exact.load_state_dict(model.state_dict())
        model = model.to(device)
        equip(model)
        pairs = zip(ragged(model), ragged(exact), strict=True)
        off = max(
            0.5 * float((a.cpu().double() - b).abs().sum(-1).max()) for a, b in pairs
        )
        fine &= off <= DISTANCE[dtype]
        name = str(dtype).removeprefix("torch.")
        said.append(f"{name}: off {off:.1e}, bound {DISTANCE[dtype]:g}")
    return fine, "; ".join(said)


def ragged(model: CausalLM) -> list[Tensor]:
    """Distributions [rows, v]: three prompts; then a fork, a rewound branch, a chunk,
    together."""
    runner = ModelRunner(model, num_blocks=64)
    prompts = [
        [(5 * i + j) % 250 for i in range(length)]
        for j, length in enumerate((90, 17, 3))
    ]
    branches: list[Branch] = [runner.open(prompt) for prompt in prompts]
    first = runner.forward(branches)
    fork = runner.fork(branches[0])
    fork.append(7)
    runner.rewind(branches[1], 9)
    branches[1].extend([1, 2, 3, 4])
    branches[2].append(11)
    logits = [torch.stack(first), *runner.forward([fork, *branches[1:]], logits="all")]
    return [one.float().softmax(-1) for one in logits]


def modes_equal(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """fp64, exact verification, rule match: every mode emits the tokens of plain
    decoding."""
    settings: dict[str, Any] = {
        "acceptance": "match",
        "max_tokens": sizes.tokens,
        "temperature": 0.6,
    }
    names = "tiny-target", "tiny-draft", "exact"
    with Reasoner(*names, device=device, dtype=torch.float64) as reasoner:
        plain = reasoner.generate(QUESTION, mode="ar", **settings).tokens
        wrong = [
            f"{mode} {driver}"
            for driver in ("lockstep", "overlapped")
            for mode in ("sd", "lr", "lr+sd")
            if reasoner.generate(QUESTION, mode=mode, driver=driver, **settings).tokens
            != plain
        ]
    same = f"{len(plain)} tokens, the same in 6 ways"
    return not wrong, f"other tokens in {', '.join(wrong)}" if wrong else same


def ranks_equal(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """fp64: the target spread over two ranks emits what it emits on one device. On CUDA
    also in fp32: replayed by both ranks together, its distributions are those without
    graphs.
    """
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        return None, "one GPU here"
    answers = []
    for places in (device, spread_over(2, device)):
        with Reasoner(verifier="exact", device=places, dtype=torch.float64) as reasoner:
            made = reasoner.generate(QUESTION, mode="lr", max_tokens=sizes.tokens)
            answers.append(made.tokens)
    same = answers[0] == answers[1]
    said = f"2 ranks, {len(answers[0])} tokens, {'the same' if same else 'other ones'}"
    if device.type != "cuda":
        return same, said
    model = load_parallel("tiny-target", spread_over(2, device), torch.float32)
    try:
        replayed, how = replays_equal(model, sizes)
    finally:
        model.close()
    return same and replayed is not False, f"{said}; {how}"


def races(device: torch.device, sizes: Sizes, tell: Tell = print) -> Answer:
    """Many short answers of mixed modes in one process, drafts in a thread beside,
    garbage collected at odd moments: nothing fails, and equal questions get equal
    answers.
    """
    chance, modes = random.Random(0), ("ar", "lr", "sd", "lr+sd", "ar", "lr+sd", "lr")
    plain, warned = None, set[str]()
    with Reasoner(verifier="oracle", device=device, dtype=torch.float32) as reasoner:
        for number in range(sizes.answers):
            mode = modes[number % len(modes)]
            driver = "overlapped" if number % 2 else "lockstep"
            drafter = "draft" if number % 3 else "ngram"
            how: dict[str, Any] = {"mode": mode, "driver": driver, "drafter": drafter}
            run = reasoner.run(QUESTION, max_tokens=40 + number % 7, **how)
            for _ in run:
                if chance.random() < 0.3:
                    gc.collect()
            warned |= {e.what for _, e in run.trace.events if isinstance(e, Warned)}
            if mode == "ar":
                tokens = run.result.tokens[:40]
                plain = plain or tokens
                if tokens != plain:
                    return False, f"answer {number} differs from the first plain one"
            if number % 10 == 9 or number + 1 == sizes.answers:
                tell(f"{number + 1} answers")
    return not warned, "; ".join(
        sorted(warned)
    ) or f"{sizes.answers} answers, nothing failed"


def small_model(device: torch.device, dtype: torch.dtype, layers: int) -> CausalLM:
    """Qwen3-0.6B's heads, few layers, a small vocabulary, random weights."""
    small = replace(
        SHAPES["Qwen3-0.6B"], num_layers=layers, vocab_size=2048, hidden_size=256
    )
    return random_model(small, dtype, device)
