"""`lr bench token`: token-level speculation compared with transformers, in tokens per
second.

Each contender answers one question at a time, with the same checkpoints in memory. The
time is that of the whole call. Both sides sample by temperature alone. Rows show
quartiles over problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from lr.measure.bench.decode import OURS, THEIRS, hugging_face_model
from lr.measure.bench.report import Spread, acceptance_of, in_turn
from lr.reasoner import Reasoner
from lr.tiny.language import Split, problem
from lr.trace import Stats, TokenRounds

MAX_TOKENS = 400


@dataclass(frozen=True)
class Answerer:
    """A way to answer. Only rows of one `kind` (plain, lookup, draft model) are
    compared."""

    side: str
    name: str
    kind: str
    answer: Callable[[str, float, int], Stats]  # From question, temperature and seed.


def ours(
    reasoner: Reasoner,
    settings: Mapping[str, Any],
    question: str,
    temperature: float,
    seed: int,
) -> Stats:
    """Answer with a `Reasoner` and these settings; the time is that of the whole
    call."""
    pure: dict[str, Any] = {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
    }
    started = time.perf_counter()
    result = reasoner.generate(
        question, seed=seed, max_tokens=MAX_TOKENS, **pure, **settings
    )
    return replace(result.stats, seconds=time.perf_counter() - started)


def theirs(
    reasoner: Reasoner, *, assistant: Mapping[str, Any] | None = None, **settings: Any
) -> Callable[[str, float, int], Stats]:
    """`generate` of transformers. `settings` go to it, `assistant` to the draft model's
    config.

    A hook on the target counts passes. A pass over n new positions had n - 1 drafts and
    emits its accepted drafts and one more token. So all passes together accepted tokens
    - passes drafts."""
    models = reasoner.models
    codec, model = models.codec, hugging_face_model(models.target)
    ends, positions = sorted(codec.eos_ids), list[int]()

    def saw(
        module: object, inputs: tuple[Any, ...], named: Mapping[str, Any], _: object
    ) -> None:
        ids = named["input_ids"] if "input_ids" in named else inputs[0]
        positions.append(ids.shape[1])

    model.register_forward_hook(saw, with_kwargs=True)
    if assistant is not None:
        assert models.draft is not None
        settings["assistant_model"] = hugging_face_model(models.draft)
        settings["assistant_model"].generation_config.update(**assistant)

    def answer(question: str, temperature: float, seed: int) -> Stats:
        prompt = codec.chat(question)
        ids = torch.tensor([prompt])
        torch.manual_seed(seed)
        sampled = {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
        }
        how: dict[str, Any] = sampled if temperature > 0 else {"do_sample": False}
        how |= {
            "max_new_tokens": MAX_TOKENS,
            "eos_token_id": ends,
            "pad_token_id": ends[0],
        }
        positions.clear()
        started = time.perf_counter()
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), **how, **settings
        )
        seconds = time.perf_counter() - started
        return counted(seconds, len(prompt), written.shape[1] - len(prompt), positions)

    return answer


def counted(seconds: float, prompt: int, tokens: int, positions: list[int]) -> Stats:
    """Statistics of an answer from the `positions` of each pass; the first includes the
    prompt. Example: a prompt of 10, passes over 13, 4 and 1 positions, 6 tokens: 3, 3
    and 0 drafts, of which 6 - 3 = 3 were accepted."""
    drafts = [positions[0] - prompt, *(n - 1 for n in positions[1:])]
    passes, count = len(positions), sum(n > 0 for n in drafts)
    rounds = TokenRounds((count,), sum(drafts), accepted=max(0, tokens - passes))
    return Stats(seconds, tokens=tokens, target_passes=passes, rounds=rounds)


def answerers(reasoner: Reasoner, k: int, branching: tuple[int, ...]) -> list[Answerer]:
    """All contenders, with `k` drafts per round where possible; trees have at most k
    levels."""
    plain: dict[str, Any] = {"mode": "sd", "num_speculative_tokens": k}
    draft, tree = (
        plain | {"drafter": "draft"},
        plain | {"drafter": "tree", "branching": branching},
    )
    shared = {"acceptance": "match", "coupling": "shared"}
    constant = {
        "num_assistant_tokens": k,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }

    def mine(name: str, kind: str, **settings: Any) -> Answerer:
        return Answerer(OURS, name, kind, partial(ours, reasoner, settings))

    def other(name: str, kind: str, **settings: Any) -> Answerer:
        return Answerer(THEIRS, name, kind, theirs(reasoner, **settings))

    return [
        mine("ar", "plain", mode="ar"),
        other("generate", "plain"),
        mine("n-gram", "lookup", **plain, drafter="ngram"),
        mine("suffix", "lookup", **plain, drafter="suffix"),
        other("prompt lookup", "lookup", prompt_lookup_num_tokens=k),
        mine("draft, reject", "draft model", **draft, acceptance="reject"),
        mine("draft, block", "draft model", **draft, acceptance="block"),
        mine("draft, match shared", "draft model", **draft, **shared),
        mine("tree, reject", "draft model", **tree, acceptance="reject"),
        mine("tree, match shared", "draft model", **tree, **shared),
        other("assisted, its defaults", "draft model", assistant={}),
        other("assisted, constant k", "draft model", assistant=constant),
    ]


@dataclass(frozen=True)
class TokenRow:
    """One contender at one temperature. `to_plain`: its tokens/s over those of our
    plain decoding. `peer`, `to_peer` (None for transformers): their fastest of the same
    kind, tokens/s over its."""

    side: str
    name: str
    kind: str
    temperature: float
    rates: tuple[float, ...]
    total: Stats
    rate: Spread
    to_plain: Spread
    peer: str | None
    to_peer: Spread | None

    @property
    def behind(self) -> bool:
        """Whether the peer is at least as fast."""
        return self.to_peer is not None and self.to_peer.median <= 1

    def figures(self) -> dict[str, Any]:
        length = self.total.rounds.mean_acceptance_length
        return asdict(self) | acceptance_of(self.total) | {"acceptance_length": length}


def measure(
    contenders: Sequence[Answerer],
    temperatures: Sequence[float],
    problems: int,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> list[TokenRow]:
    """Run all contenders on held-out problems 0, 1, ... at every temperature, problem n
    with seed `seed + n`. Problem number `problems` is the warm-up. Calls `progress`
    after each answer."""

    def ask(contender: Answerer, temperature: float, number: int) -> Stats:
        question = problem(Split.TEST, number).question
        answer = contender.answer(question, temperature, seed + number)
        progress()
        return answer

    made = {t: [(one, list[Stats]()) for one in contenders] for t in temperatures}
    for t in made:
        for one in contenders:
            ask(one, t, problems)
    for number in range(problems):
        for t, lanes in made.items():
            for one, answers in in_turn(lanes, number):
                answers.append(ask(one, t, number))
    return [
        row
        for t, lanes in made.items()
        for row in rows(contenders, t, [a for _, a in lanes])
    ]


def rows(
    contenders: Sequence[Answerer],
    temperature: float,
    answers: Sequence[Sequence[Stats]],
) -> list[TokenRow]:
    """The rows of one temperature; the first contender is our plain decoding."""
    rates = [tuple(one.tokens / one.seconds for one in mine) for mine in answers]
    made = []
    for one, mine, some in zip(contenders, rates, answers, strict=True):
        peer, to_peer = None, None
        if one.side == OURS:
            rivals = [
                i
                for i, c in enumerate(contenders)
                if (c.side, c.kind) == (THEIRS, one.kind)
            ]
            best = max(rivals, key=lambda i: median(rates[i]))
            peer, to_peer = contenders[best].name, Spread.of_ratios(mine, rates[best])
        names, total = (one.side, one.name, one.kind, temperature), sum(some, Stats())
        spreads = Spread.of(mine), Spread.of_ratios(mine, rates[0])
        made.append(TokenRow(*names, mine, total, *spreads, peer, to_peer))
    return made
