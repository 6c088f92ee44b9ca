"""`lr bench decode`: plain decoding compared with transformers and a bare loop, in ms
per step.

A step is one forward of one token per row and the choice of the next; prefill is not
timed. A test compares the tokens of all greedy contenders. Speed does not depend on
weights: some are random."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.engine.answer import recommended_sampling
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE
from lr.measure.bench.report import Spread, wait_for
from lr.model.codec import Codec
from lr.model.config import ModelConfig
from lr.model.dummy import fill_dummy, shape
from lr.model.layers import DecoderLayer, rotate
from lr.model.qwen import CausalLM
from lr.model.weights import load_model, pieces
from lr.rng import Stream
from lr.spec.segmenters import FixedSegmenter
from lr.spec.write import StepJob, StepWriter, WriterConfig
from lr.tiny import CHECKPOINTS
from lr.tiny.names import tiny_config
from lr.tiny.saving import config_json
from lr.types import Role, SamplingParams

PROMPT_TOKENS = (
    40  # About a tiny question. Large shapes take 8: the bare loop reads them singly.
)
RANDOM_12 = "random-12"
OURS, SAMPLED, BARE, THEIRS = (
    "lr",
    "lr, sampled",
    "bare loop",
    "transformers",
)  # The contenders.
CPU = torch.device("cpu")
SHAPES = {"0.6b-fp32": torch.float32, "0.6b-bf16": torch.bfloat16}
NAMES = (*CHECKPOINTS, RANDOM_12, *SHAPES)


@dataclass(frozen=True)
class Decoded:
    """The total `seconds` of all steps, and the tokens of each row, one per step."""

    seconds: float
    tokens: list[list[int]]


Decoder = Callable[[Sequence[int], int, int], Decoded]
"""(prompt, rows, steps): continues `rows` copies of the prompt in one batch by `steps`
tokens."""


def ours(model: CausalLM, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
    """Greedy decoding by `ModelRunner.forward`, paged and ragged."""
    runner = runner_for(model, rows, len(prompt) + steps)
    branches = [runner.open(prompt) for _ in range(rows)]
    logits = runner.forward(branches)
    started = time.perf_counter()
    for _ in range(steps):
        tokens = torch.stack(logits).argmax(-1).tolist()
        for branch, token in zip(branches, tokens, strict=True):
            branch.append(token)
        logits = runner.forward(branches)
    seconds = time.perf_counter() - started
    return Decoded(seconds, [branch.tokens[len(prompt) :] for branch in branches])


def written_steps(
    runner: ModelRunner,
    sampling: SamplingParams,
    prompt: Sequence[int],
    rows: int,
    steps: int,
) -> Decoded:
    """Decoding as generation does it: a `StepWriter` with keyed sampling and a
    segmenter writes one step of `steps` tokens in each of `rows` sequences, which it
    closes afterwards."""
    branches = [runner.open(prompt[:-1]) for _ in range(rows)]
    runner.forward(branches)
    for branch in branches:
        branch.append(prompt[-1])
    stream = Stream.root(0).fold_in("bench")
    endless = partial(FixedSegmenter, tokens=steps + 1)
    config = WriterConfig(Role.TARGET, sampling, frozenset(), endless)
    writer = StepWriter(config, runner, lambda token: b"")
    jobs = [
        StepJob(branch, i, steps, stream.fold_in(i))
        for i, branch in enumerate(branches)
    ]
    wait_for(runner.model.device)  # a GPU may still be reading the prompts
    started = time.perf_counter()
    written = writer.write(jobs)
    seconds = time.perf_counter() - started
    for branch in branches:
        runner.close(branch)
    return Decoded(seconds, [list(step.tokens) for step in written])


@torch.inference_mode()
def bare(model: CausalLM, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
    """Greedy decoding by `BareLoop`."""
    loop = BareLoop(model, rows, len(prompt) + steps)
    for token in prompt:
        logits = loop.step(torch.full((rows,), token))
    chosen = []
    started = time.perf_counter()
    for _ in range(steps):
        tokens = logits.argmax(-1)
        chosen.append(tokens.tolist())
        logits = loop.step(tokens)
    seconds = time.perf_counter() - started
    return Decoded(seconds, [list(row) for row in zip(*chosen, strict=True)])


class BareLoop:
    """Shows what paging costs: a static cache, as direct as PyTorch allows.

    b rows of at most `length` tokens, all at the same position; no blocks, no ragged
    batch. It computes the same as `CausalLM`, from the same weights."""

    def __init__(self, model: CausalLM, rows: int, length: int) -> None:
        config = model.config
        self.h, self.k, self.d = config.num_heads, config.num_kv_heads, config.head_dim
        self.embedding = model.embedding.weight
        self.head = self.embedding if model.head is None else model.head.weight
        self.norm = model.norm
        self.layers = [
            layer for layer in model.layers if isinstance(layer, DecoderLayer)
        ]
        shape = (config.num_layers, rows, self.k, length, self.d)
        self.keys = torch.zeros(shape, dtype=model.dtype)
        self.values = torch.zeros(shape, dtype=model.dtype)
        self.cos, self.sin = model.rotary(torch.arange(length), model.dtype)
        self.length = 0

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens [b] at the next position; return the logits [b, v] after them."""
        at, b = self.length, len(tokens)
        self.length = end = at + 1
        cos, sin = self.cos[at], self.sin[at]  # [1, d]
        x = self.embedding.index_select(0, tokens)
        for layer, keys, values in zip(
            self.layers, self.keys, self.values, strict=True
        ):
            attention, mlp = layer.attention, layer.mlp
            heads = attention.qkv(layer.attention_norm(x)).view(b, -1, self.d)
            both, v = heads.split_with_sizes((self.h + self.k, self.k), 1)
            if attention.qk_norm is not None:
                both = attention.qk_norm(both)
            q, k = rotate(both, cos, sin).split_with_sizes((self.h, self.k), 1)
            keys[:, :, at], values[:, :, at] = k, v
            past = keys[:, :, :end], values[:, :, :end]
            mixed = F.scaled_dot_product_attention(
                q.unsqueeze(2), *past, enable_gqa=True
            )
            x = x + attention.out(mixed.view(b, -1))
            gate, up = mlp.gate_up(layer.mlp_norm(x)).chunk(2, -1)
            x = x + mlp.down(F.silu(gate) * up)
        return F.linear(self.norm(x), self.head)


def generate(model: Any, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
    """`generate` of a model of transformers, greedy, with its default cache and
    attention."""
    from transformers import LogitsProcessorList

    stamps: list[float] = []

    def stamp(ids: Tensor, scores: Tensor) -> Tensor:
        # called between a forward and the choice that follows it
        stamps.append(time.perf_counter())
        return scores

    ids = torch.tensor([list(prompt)] * rows)
    how = {"do_sample": False, "logits_processor": LogitsProcessorList([stamp])}
    mask = torch.ones_like(ids)
    written = model.generate(ids, attention_mask=mask, max_new_tokens=steps + 1, **how)
    assert len(stamps) == steps + 1
    return Decoded(stamps[-1] - stamps[0], written[:, len(prompt) : -1].tolist())


def hugging_face_model(model: CausalLM) -> Any:
    """The transformers model that shares the weights of `model`; nothing is copied."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    described = config_json(model.config)
    named, parts = dict(model.named_parameters()), pieces(model.config)
    weights = {p.key: named[p.parameter][p.first : p.first + p.shape[0]] for p in parts}
    kind = getattr(transformers, described["architectures"][0])
    config = transformers.AutoConfig.for_model(**described)
    made = kind.from_pretrained(
        None, config=config, state_dict=weights, dtype=model.dtype
    )
    # without an end-of-sequence token it takes every step
    made.generation_config = transformers.GenerationConfig()
    return made.eval()


def runner_for(model: CausalLM, rows: int, length: int) -> ModelRunner:
    """A runner whose cache holds `rows` sequences of `length` tokens."""
    return ModelRunner(model, num_blocks=rows * (length // BLOCK_SIZE + 2))


def random_model(
    config: ModelConfig, dtype: torch.dtype, device: torch.device = CPU
) -> CausalLM:
    """A model of that shape with fixed random weights."""
    model = CausalLM.materialised(partial(CausalLM, config), dtype, device)
    fill_dummy(model)
    return model


@dataclass(frozen=True)
class DecodeLane:
    """One contender on one model, with the prompt that it continues."""

    model: str
    contender: str
    decode: Decoder
    prompt: tuple[int, ...]


def contenders(model: CausalLM, sampling: SamplingParams) -> dict[str, Decoder]:
    """All ways to decode with a model, by name; they share its weights."""

    def sampled(prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        runner = runner_for(model, rows, len(prompt) + steps)
        return written_steps(runner, sampling, prompt, rows, steps)

    return {
        OURS: partial(ours, model),
        SAMPLED: sampled,
        BARE: partial(bare, model),
        THEIRS: partial(generate, hugging_face_model(model)),
    }


def lanes(name: str) -> list[DecodeLane]:
    """All contenders on a model of `NAMES`. Raises `CheckpointError` if a tiny model is
    missing."""
    if name in CHECKPOINTS:
        model = load_model(name, dtype=torch.float32)
        sampling = recommended_sampling(Codec.load(name))
    elif name == RANDOM_12:
        model, sampling = (
            random_model(tiny_config(12, 800), torch.float32),
            SamplingParams(0.6),
        )
    else:
        model = random_model(shape("Qwen3-0.6B"), SHAPES[name])
        # the recommendation of Qwen3's generation_config.json
        sampling = SamplingParams(0.6, top_p=0.95, top_k=20)
    length = 8 if name in SHAPES else PROMPT_TOKENS
    # the choice of tokens does not affect speed
    prompt = tuple((7 * i + 3) % model.config.vocab_size for i in range(length))
    found = contenders(model, sampling).items()
    return [DecodeLane(name, contender, decode, prompt) for contender, decode in found]


@dataclass
class Timing:
    """The ms per step of a lane at one batch size, one number per repeat."""

    model: str
    contender: str
    batch: int
    threads: int
    ms: list[float] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.ms)

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together, at the median time."""
        return 1000 * self.batch / self.spread.median

    def relative_to(self, other: Timing) -> Spread:
        """This time over the other, repeat by repeat."""
        return Spread.of_ratios(self.ms, other.ms)


@dataclass(frozen=True)
class DecodePlan:
    """`repeats` of `tokens` steps at each batch size, after `warm_up` untimed steps."""

    batches: tuple[int, ...]
    tokens: int
    repeats: int
    threads: int
    warm_up: int = 3

    @property
    def runs(self) -> int:
        """Calls of `decode` per lane, warm-up included."""
        return len(self.batches) * (self.repeats + 1)


def measure(
    lanes: Sequence[DecodeLane],
    plan: DecodePlan,
    progress: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Time all lanes at every batch size; `progress` is called after each of their
    runs."""
    timings: list[Timing] = []
    for batch in plan.batches:
        row = [
            Timing(lane.model, lane.contender, batch, plan.threads) for lane in lanes
        ]
        for repeat in range(plan.repeats + 1):
            steps = plan.tokens if repeat else plan.warm_up
            for lane, timing in zip(lanes, row, strict=True):
                seconds = lane.decode(lane.prompt, batch, steps).seconds
                timing.ms += [1000 * seconds / steps] if repeat else []
                progress()
        timings += row
    return timings


@dataclass(frozen=True)
class Goal:
    """A goal and its measurement; `met` is None if the run did not measure it."""

    text: str
    measured: str
    met: bool | None


def goals(timings: Sequence[Timing]) -> Iterator[Goal]:
    """All goals of plain decoding: the median of a ratio of times at batch 1, repeat by
    repeat."""
    found = {(t.model, t.contender): t for t in timings if t.batch == 1}
    target, draft = "tiny-target", "tiny-draft"
    at_least_theirs = "batch 1: at least the tokens/s of transformers"
    wanted: list[tuple[str, tuple[str, str], tuple[str, str], Callable[[float], bool]]] = [
        (f"{target}, batch 1: at least 2.5 times the tokens/s of transformers",
         (target, THEIRS), (target, OURS), lambda x: x >= 2.5),
        (f"{target}, batch 1: at most 1.2 times the ms of the bare loop",
         (target, OURS), (target, BARE), lambda x: x <= 1.2),
        *((f"{one}, {at_least_theirs}", (one, THEIRS), (one, OURS), lambda x: x >= 1)
          for one in SHAPES),
        (f"c, ms per token of {draft} over {target}, batch 1, sampling included: at most 0.12",
         (draft, SAMPLED), (target, SAMPLED), lambda x: x <= 0.12),
    ]  # fmt: skip
    for text, upper, lower, good in wanted:
        if upper not in found or lower not in found:
            yield Goal(text, "-", None)
        else:
            times = found[upper].relative_to(found[lower])
            yield Goal(
                text, f"{times.median:.2f} ({times.middle_half})", good(times.median)
            )


def document(timings: Sequence[Timing]) -> dict[str, Any]:
    """Everything that was measured."""
    rows = [
        asdict(t)
        | {"spread": asdict(t.spread), "tokens_per_second": t.tokens_per_second}
        for t in timings
    ]
    return {"timings": rows, "goals": [asdict(goal) for goal in goals(timings)]}
