"""Time plain decoding and token-level speculation next to transformers' `generate`,
prompt lookup and assisted generation, on the same checkpoints and prompts.

    python scripts/peers/decode.py --problems 2 --batches 1 4
    python scripts/peers/decode.py --model DIR --draft_model DIR --dataset gsm8k.jsonl

All contenders write whole answers to the same prompts, the prompt's pass included, at
temperature 0, so in float32 they write the same tokens. In a batch all rows have the
same prompt. Each question is answered in every way in turn, and ratios are taken
question by question, so a drift of the machine's speed affects all alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import tyro

from lr.commands import show
from lr.commands.options import ModelChoice
from lr.errors import LRError
from lr.measure.datasets import ask, load_items
from lr.measure.machine import conditions
from lr.measure.store import write_json
from lr.measure.ways import in_turn
from lr.model.files import resolve
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.tiny.names import speaks_tiny

PLAIN = "lr"
Answerer = Callable[[str, int], list[list[int]]]
"""(question, rows) -> the tokens of the answer in each row."""


@dataclass
class Contender:
    """One way to answer; the rates are tokens per second, one per question and
    repeat. `one_row`: it takes no batch (assisted generation of transformers)."""

    name: str
    answer: Answerer
    one_row: bool = False
    rates: list[float] = field(default_factory=list)


def our_answerer(reasoner: Reasoner, options: GenerateOptions) -> Answerer:
    """Answers with the engine, `rows` questions at a time."""

    def answer(question: str, rows: int) -> list[list[int]]:
        answers = [reasoner.run(question, options) for _ in range(rows)]
        for _ in reasoner.engine.serve(answers, rows):
            pass
        return [list(answer.result.tokens) for answer in answers]

    return answer


def their_model(name: str, like: torch.nn.Module) -> Any:
    """The transformers model of a checkpoint, with the dtype and device of ours."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path = resolve(name)
    weights = next(like.parameters())
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=weights.dtype)
    return model.to(weights.device).eval()


def their_answerer(
    model: Any, reasoner: Reasoner, tokens: int, **settings: Any
) -> Answerer:
    """Answers with `generate` of transformers."""
    from transformers import GenerationConfig

    codec = reasoner.codec
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=sorted(codec.eos_ids),
        pad_token_id=min(codec.eos_ids),
        **settings.pop("config", {}),
    )

    def answer(question: str, rows: int) -> list[list[int]]:
        prompt = list(codec.chat(question))
        ids = torch.tensor([prompt] * rows, device=model.device)
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            **settings,
        )
        answers: list[list[int]] = written[:, len(prompt) :].tolist()
        return answers

    return answer


def contenders(
    reasoner: Reasoner, target: str, draft: str | None, tokens: int, k: int
) -> list[Contender]:
    """All ways to answer, plain decoding first; those with a draft model if there is
    one."""

    def ours(name: str, **settings: Any) -> Contender:
        options = GenerateOptions(
            temperature=0.0, max_tokens=tokens, num_speculative_tokens=k, **settings
        )
        return Contender(name, our_answerer(reasoner, options))

    def theirs(name: str, *, one_row: bool = True, **settings: Any) -> Contender:
        return Contender(
            name, their_answerer(model, reasoner, tokens, **settings), one_row
        )

    engine = reasoner.engine
    model = their_model(target, engine.target_model)
    lookup = {"prompt_lookup_num_tokens": k}
    ways = [
        ours(PLAIN, mode="ar"),
        theirs("transformers", one_row=False),
        ours("lr, sd, n-gram", mode="sd", drafter="ngram"),
        theirs("transformers, prompt lookup", config=lookup),
    ]
    if draft is not None and engine.draft_model is not None:
        helper = their_model(draft, engine.draft_model)
        helper.generation_config.num_assistant_tokens = k
        helper.generation_config.num_assistant_tokens_schedule = "constant"
        ways.append(ours("lr, sd, draft", mode="sd", drafter="draft"))
        ways.append(theirs("transformers, assisted", assistant_model=helper))
    return ways


def measure(
    ways: Sequence[Contender],
    questions: Sequence[str],
    rows: int,
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Answer every question in every way, `repeats` times after a warm-up, and add to
    the rates. Another way begins each time, so drifts of the machine cancel."""
    for way in ways:
        way.rates.clear()
        way.answer(questions[0], rows)
        progress()
    for repeat in range(repeats):
        for number, question in enumerate(questions):
            for way in in_turn(ways, repeat + number):
                started = time.perf_counter()
                answers = way.answer(question, rows)
                seconds = time.perf_counter() - started
                way.rates.append(sum(map(len, answers)) / seconds)
                progress()


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of at least two values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"


def rows_of(ways: Sequence[Contender]) -> list[tuple[str, Spread, Spread]]:
    """Per way its name, its tokens per second, and their ratio to plain decoding,
    question by question."""
    rows = []
    for way in ways:
        pairs = zip(way.rates, ways[0].rates, strict=True)
        ratios = [rate / plain for rate, plain in pairs]
        rows.append((way.name, Spread.of(way.rates), Spread.of(ratios)))
    return rows


@dataclass(frozen=True)
class Decode:
    """Time plain decoding and token-level speculation against transformers' generate,
    prompt lookup and assisted generation, on the same checkpoints."""

    models: ModelChoice = field(default_factory=ModelChoice)
    dataset: str = "tiny:1000"  # Where the questions are from; as for lr run.
    problems: int = 4  # How many questions.
    repeats: int = 3  # How often each is answered in every way, after a warm-up.
    batches: tuple[int, ...] = (1,)
    """Batch sizes: so many rows with the same question at once."""
    tokens: int = 128  # Longest answer.
    k: int = 4  # Tokens that are drafted ahead, on both sides.
    json: Path | None = None  # Also write every figure to this file.

    def run(self) -> None:
        show.require_at_least(self, problems=1, repeats=2, batches=1, tokens=1, k=1)
        show.require_files(json=self.json)
        target = self.models.model
        draft = self.models.draft()
        out = show.console()
        items = load_items(self.dataset)[: self.problems]
        with self.models.load(needs_draft=draft is not None) as reasoner:
            content: dict[str, Any] = {"conditions": conditions()}
            facts = content["conditions"].items()
            out.print(", ".join(f"{name} {value}" for name, value in facts))
            bare = speaks_tiny(reasoner.codec)
            questions = [ask(item, bare=bare) for item in items]
            ways = contenders(reasoner, target, draft, self.tokens, self.k)
            total = len(ways) * (1 + self.repeats * len(questions))
            for rows in self.batches:
                able = [way for way in ways if rows == 1 or not way.one_row]
                with show.progress(f"{rows} row(s)", total) as advance:
                    measure(able, questions, rows, self.repeats, advance)
                lines = rows_of(able)
                title = f"{target}, {rows} row(s), temperature 0"
                out.print(show.table(("way", "tokens/s", "/ lr"), lines, title=title))
                content[f"batch {rows}"] = [
                    {"way": name, "rate": asdict(rate), "ratio": asdict(ratio)}
                    for name, rate, ratio in lines
                ]
        write_json(content, self.json)


def main(words: Sequence[str] | None = None) -> int:
    """Read the flags and time; what the user can mend is one message."""
    command = tyro.cli(
        Decode, args=words, use_underscores=True, config=(tyro.conf.OmitArgPrefixes,)
    )
    try:
        command.run()
    except LRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
