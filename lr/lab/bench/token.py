"""Who answers in `lr bench token`: our modes `ar` and `sd`, and `transformers`' generate, assisted
generation and prompt lookup.

Every contender answers one question at a time, on the same checkpoints in memory, and says how long
it took and how many passes of the target it needed. The time is that of the whole answer as a user
gets it: prompt, cache, and for ours the template, the tokenizer and the text of the steps as well.
Sampling is by temperature alone (no top-k, no top-p) on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lr.lab.bench.contenders import hugging_face_model
from lr.reasoner import Reasoner

MAX_TOKENS = 400
OURS, THEIRS = "lr", "transformers"
KINDS = ("plain", "lookup", "draft model")


@dataclass(frozen=True)
class Answer:
    """One answer: tokens written in `seconds` with `passes` of the target. `rounds` of them had
    drafts, `drafted` in all.

    The numbers add up with `+`.
    """

    seconds: float
    tokens: int
    passes: int
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Answer) -> Answer:
        return Answer(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted (for a tree: of all its nodes)."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / rounds, vLLM's mean acceptance length."""
        return 1 + self.accepted / self.rounds if self.rounds else None


class Answerer(Protocol):
    """A way to answer. `kind` is one of KINDS: rows of one kind are compared with each other."""

    side: str
    name: str
    kind: str

    def answer(self, question: str, temperature: float, seed: int) -> Answer: ...


class Ours:
    """A `Reasoner` with some settings."""

    side = OURS

    def __init__(self, name: str, kind: str, reasoner: Reasoner, **settings: Any) -> None:
        self.name, self.kind, self.reasoner, self.settings = name, kind, reasoner, settings

    def answer(self, question: str, temperature: float, seed: int) -> Answer:
        plain: dict[str, Any] = {
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "max_tokens": MAX_TOKENS,
        }
        started = time.perf_counter()
        result = self.reasoner.generate(question, seed=seed, **plain, **self.settings)
        seconds = time.perf_counter() - started
        stats = result.stats
        rounds = stats.rounds
        return Answer(
            seconds,
            stats.tokens,
            stats.target_passes,
            rounds.count,
            rounds.drafted,
            rounds.accepted,
        )


class Theirs:
    """`generate` of `transformers`. `settings` go to it; `assistant` are settings of the draft
    model's own generation config.

    Passes are counted by a hook on the target. A pass over n new positions had n - 1 drafts; it
    emits its accepted drafts and one token more, so all passes together accepted (tokens - passes).
    """

    side = THEIRS

    def __init__(
        self,
        name: str,
        kind: str,
        reasoner: Reasoner,
        *,
        assistant: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.name, self.kind, self.settings = name, kind, settings
        models, codec = reasoner.models, reasoner.models.codec
        self.codec, self.model = codec, hugging_face_model(models.target)
        self.ends = sorted(codec.eos_ids)
        self.positions: list[int] = []
        self.model.register_forward_hook(self._saw, with_kwargs=True)
        if assistant is not None:
            assert models.draft is not None
            draft = hugging_face_model(models.draft)
            draft.generation_config.update(**assistant)
            self.settings["assistant_model"] = draft

    def answer(self, question: str, temperature: float, seed: int) -> Answer:
        prompt = self.codec.chat(question)
        ids = torch.tensor([prompt])
        torch.manual_seed(seed)
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        self.positions.clear()
        started = time.perf_counter()
        written = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            **(how if temperature > 0 else {"do_sample": False}),
            **self.settings,
        )
        seconds = time.perf_counter() - started
        return counted(seconds, len(prompt), written.shape[1] - len(prompt), self.positions)

    def _saw(
        self, module: object, inputs: tuple[Any, ...], named: Mapping[str, Any], output: object
    ) -> None:
        ids = named["input_ids"] if "input_ids" in named else inputs[0]
        self.positions.append(ids.shape[1])


def counted(seconds: float, prompt: int, tokens: int, positions: list[int]) -> Answer:
    """An answer of `tokens` from the positions of each pass, the first with the whole prompt.

    Example: a prompt of 10, passes over 13, 4 and 1 positions, 6 tokens: 3, 3 and 0 drafts, and 6 -
    3 = 3 of them accepted.
    """
    drafts = [positions[0] - prompt, *(n - 1 for n in positions[1:])]
    return Answer(
        seconds,
        tokens,
        len(positions),
        sum(n > 0 for n in drafts),
        sum(drafts),
        max(0, tokens - len(positions)),
    )


def answerers(reasoner: Reasoner, k: int, branching: tuple[int, ...]) -> list[Answerer]:
    """All rows of the benchmark, `k` drafts per round wherever a number can be set, trees of at
    most k levels.
    """
    plain: dict[str, Any] = {"mode": "sd", "num_speculative_tokens": k}
    draft, tree = plain | {"drafter": "draft"}, plain | {"drafter": "tree", "branching": branching}
    shared = {"acceptance": "match", "coupling": "shared"}
    return [
        Ours("ar", "plain", reasoner, mode="ar"),
        Theirs("generate", "plain", reasoner),
        Ours("n-gram", "lookup", reasoner, **plain, drafter="ngram"),
        Ours("suffix", "lookup", reasoner, **plain, drafter="suffix"),
        Theirs("prompt lookup", "lookup", reasoner, prompt_lookup_num_tokens=k),
        Ours("draft, reject", "draft model", reasoner, **draft, acceptance="reject"),
        Ours("draft, block", "draft model", reasoner, **draft, acceptance="block"),
        Ours("draft, match shared", "draft model", reasoner, **draft, **shared),
        Ours("tree, reject", "draft model", reasoner, **tree, acceptance="reject"),
        Ours("tree, match shared", "draft model", reasoner, **tree, **shared),
        Theirs("assisted, its defaults", "draft model", reasoner, assistant={}),
        Theirs(
            "assisted, constant k",
            "draft model",
            reasoner,
            assistant={
                "num_assistant_tokens": k,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            },
        ),
    ]
