"""Mistakes that one makes while writing a variant, made on purpose: none is silent,
each message names the extension point and says what was expected. An exception in a
part keeps its type and traceback and gets a note that names the extension point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from reasoner_kit import write_checkpoint

from lr.errors import LRError
from lr.reasoner import Reasoner
from lr.spec.acceptance import EMPTY, AcceptanceRule, Outcome, Proposal, RejectRule
from lr.spec.protocol import WAIT, SchedulerConfig
from lr.spec.token_sd import Drafter
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.spec.verifiers.named import RandomVerifier
from lr.types import Coupling, Role, Verdict

QUESTION = "How many coins does Ann have?"
HOW: dict[str, Any] = {
    "segmenter": "fixed",
    "segment_tokens": 4,
    "max_tokens": 20,
    "temperature": 1.0,
    "depth": 1,
}
YES = Verdict(True, "yes")
ALWAYS = RandomVerifier(1.0, requires=Requires.NOTHING)


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reasoner]:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_checkpoint(folder / "target", seed=1, layers=2)
    draft = write_checkpoint(folder / "draft", seed=2)
    with Reasoner(target, draft, "exact") as made:
        yield made


def part(
    method: str, does: Callable[..., Any], base: type = object, **members: Any
) -> Any:
    """An object with one method, which does this."""
    return type(
        "Mine", (base,), {method: lambda self, *given: does(*given), **members}
    )()


def fail(*_: Any) -> Any:
    raise KeyError("a slip")


def judging(does: Callable[..., Any], **members: Any) -> Variant:
    return Variant(part("judge", does, Verifier, **{"name": "mine", **members}))


def early(does: Callable[..., Any], needs: Any = Requires.NOTHING) -> Variant:
    mine = part(
        "judge_early",
        does,
        RandomVerifier.__mro__[1],
        name="mine",
        early_requires=needs,
    )
    type(mine).judge = lambda self, pairs: [YES for _ in pairs]
    return Variant(mine)


def each(value: Any) -> Callable[..., Any]:
    return lambda pairs: [value for _ in pairs]


def routing(value: Any) -> Variant:
    return Variant(router=part("who_writes", lambda index, previous: value))


def deciding(value: Any) -> Variant:
    return Variant(controller=part("depth", lambda stats: value))


def widening(value: Any, **members: Any) -> Variant:
    width = {"width": lambda self, stats: value, **members}
    return Variant(controller=part("depth", lambda stats: 1, **width))


def cutting(value: Any) -> Variant:
    return Variant(segmenter=lambda token_bytes: part("feed", lambda token: value))


def choosing(does: Callable[..., Any], verifier: Verifier = ALWAYS) -> Variant:
    return Variant(verifier, chooser=part("choose", does))


def proposing(value: Any) -> Variant:
    return Variant(proposer=part("propose", lambda tokens, width: value))


NEVER = RandomVerifier(0.0, requires=Requires.NOTHING)


def correcting(begin: Any = (), keep: Any = True) -> Variant:
    corrector = part("begin", lambda correction: begin, keep=lambda self, *_: keep)
    return Variant(NEVER, corrector=corrector)


def drafting(value: Callable[..., Any], **members: Any) -> Variant:
    mine = part("propose", value, Drafter, **{"name": "mine", **members})
    return Variant(drafter=lambda runner, sampling: mine)


def chain(*tokens: int, q: Any = None) -> Callable[..., Any]:
    return lambda contexts, k: [
        Proposal.chain(tokens, q) if context.limit >= len(tokens) else EMPTY
        for context in contexts
    ]


def rows(*numbers: float) -> Callable[..., Any]:
    """Proposals of one token with a row of q that begins with these numbers."""

    def propose(contexts: Sequence[Any], k: int) -> list[Proposal]:
        q = torch.zeros(1, WIDTH[0], dtype=torch.float64)
        q[0, : len(numbers)] = torch.tensor(numbers)
        return chain(0, q=q)(contexts, k)

    return propose


WIDTH = [0]
"""The size of the vocabulary, once a reasoner is there."""


def ruling(does: Callable[..., Any], **members: Any) -> Variant:
    said = {"name": "mine", "lossless": False, "trees": False, **members}
    return Variant(
        rule=part("outcomes", does, AcceptanceRule, **said),
        drafter=lambda runner, sampling: part(
            "propose", chain(5, 6), Drafter, name="mine"
        ),
    )


def one(probability: float = 1.0, nodes: tuple[int, ...] = (), law: Any = None) -> Any:
    return lambda p, proposal: [
        Outcome(
            probability,
            nodes,
            lambda: p[0] if law is None else law(p[0]),
            untouched=False,
        )
    ]


SD = {"mode": "sd", "num_speculative_tokens": 2}
Case = tuple[Callable[[], Any], str] | tuple[Callable[[], Any], str, dict[str, Any]]

MISTAKES: dict[str, Case] = {
    # the verifier
    "verdicts: None": (
        lambda: judging(lambda pairs: None),
        "verifier.*judge returned None.*list",
    ),
    "verdicts: too few": (
        lambda: judging(lambda pairs: []),
        "verifier.*list of 1 verdicts",
    ),
    "verdicts: too many": (
        lambda: judging(lambda p: [YES] * 9),
        "verifier.*list of 1 verdicts",
    ),
    "verdicts: a tuple": (
        lambda: judging(lambda pairs: (YES,)),
        "verifier.*list of 1 verdicts",
    ),
    "verdicts: a generator": (
        lambda: judging(lambda p: (YES for _ in p)),
        "verifier.*list of",
    ),
    "verdicts: booleans": (
        lambda: judging(each(True)),
        "verifier.*returned True.*Verdict",
    ),
    "verdicts: None inside": (
        lambda: judging(each(None)),
        "verifier.*returned None.*Verdict",
    ),
    "aligned is 1": (
        lambda: judging(each(Verdict(1, "x"))),
        "verifier.*aligned is True or False",
    ),
    "aligned is of NumPy": (
        lambda: judging(each(Verdict(np.True_, "x"))),
        "verifier.*aligned is True or False",
    ),
    "aligned is a tensor": (
        lambda: judging(each(Verdict(torch.tensor(True), "x"))),
        "verifier.*aligned is True",
    ),
    "score is a tensor": (
        lambda: judging(each(Verdict(True, "x", torch.tensor(1.0)))),
        "verifier.*score is a float",
    ),
    "why is missing": (
        lambda: judging(each(Verdict(True, None))),
        "verifier.*why a text",
    ),
    "requires is a text": (
        lambda: judging(each(YES), requires="logits"),
        "requires = 'logits'.*Req",
    ),
    "requires is a tuple": (
        lambda: judging(each(YES), requires=()),
        "requires = .*expected a Req",
    ),
    "name is missing": (
        lambda: Variant(part("judge", each(YES), Verifier)),
        "verifier.*has no name",
    ),
    "judge is missing": (
        lambda: Variant(part("jugde", each(YES), Verifier)),
        "verifier.*no method judge",
    ),
    "judge raises": (lambda: judging(fail), "note:verifier"),
    "judge takes no pairs": (lambda: judging(lambda: [YES]), "note:verifier"),
    "judge reads what it did not require": (
        lambda: judging(lambda pairs: [Verdict(p.logprobs[0] > 0, "x") for p in pairs]),
        "note:verifier",
    ),
    "judge compares without a target": (
        lambda: judging(
            lambda p: [Verdict(bool(x.target_step), "") for x in p],
            requires=Requires.NOTHING,
        ),
        "requires.*must include Requires.TARGET_STEP",
    ),
    "a class for a verifier": (
        lambda: Variant(RandomVerifier),
        "verifier is <class.*an instance",
    ),
    "a name for a verifier": (
        lambda: Variant("judge"),
        "verifier is 'judge'.*expected an object",
    ),
    "fallible is a text": (
        lambda: judging(each(YES), fallible="yes"),
        "fallible = 'yes'.*bool",
    ),
    "early verdicts: too few": (
        lambda: early(lambda pairs: []),
        "verifier.*judge_early returned",
    ),
    "early verdicts: booleans": (
        lambda: early(each(True)),
        "verifier.*judge_early returned True",
    ),
    "early with the target's step": (
        lambda: early(each(None), Requires.TARGET_STEP),
        "early_requires.*without TARGET_STEP",
    ),
    # the variant
    "the class Variant": (lambda: Variant, "variant is <class.*make one of the class"),
    "a dict": (
        lambda: {"verifier": ALWAYS},
        "variant is .*expected a lr.spec.variant.Variant",
    ),
    "a verifier as variant": (lambda: ALWAYS, "expected a lr.spec.variant.Variant"),
    "an unknown setting": (
        lambda: Variant(settings={"deepth": 2}),
        "Variant.settings is 'deepth'",
    ),
    "mode ar": (
        lambda: Variant(ALWAYS),
        "no use of the variant's verifier",
        {"mode": "ar"},
    ),
    "mode sd": (lambda: routing(Role.DRAFT), "no use of the variant's router", SD),
    "a rule in mode lr": (
        lambda: Variant(rule=RejectRule()),
        "no use of the variant's rule",
    ),
    "the page": (
        lambda: routing(Role.DRAFT),
        "no custom router.*scheduler",
        {"engine": "page"},
    ),
    # the router
    "router: a text": (
        lambda: routing("draft"),
        "router.*returned 'draft'.*Role.DRAFT or",
    ),
    "router: True": (lambda: routing(True), "router.*returned True.*Role.DRAFT or"),
    "router: None": (lambda: routing(None), "router.*returned None.*Role.DRAFT or"),
    "router: a class": (
        lambda: Variant(router=type(part("who_writes", fail))),
        "router is the class",
    ),
    "router: no method": (
        lambda: Variant(router=object()),
        "router is.*no method who_writes",
    ),
    "router: raises": (lambda: Variant(router=part("who_writes", fail)), "note:router"),
    "router: takes one": (
        lambda: Variant(router=part("who_writes", lambda i: i)),
        "note:router",
    ),
    # the controller
    "depth is 2.5": (lambda: deciding(2.5), "controller.*returned 2.5.*whole number"),
    "depth is a text": (
        lambda: deciding("2"),
        "controller.*returned '2'.*whole number",
    ),
    "depth is None": (
        lambda: deciding(None),
        "controller.*returned None.*whole number",
    ),
    "depth is True": (
        lambda: deciding(True),
        "controller.*returned True.*whole number",
    ),
    "depth is of NumPy": (
        lambda: deciding(np.int64(2)),
        "controller.*int64.*whole number",
    ),
    "width is 0": (lambda: widening(0), "controller.*width returned 0.*>= 1"),
    "width is 1.5": (
        lambda: widening(1.5),
        r"controller.*width returned 1\.5.*whole number",
    ),
    "width is a text": (
        lambda: widening("2"),
        "controller.*width returned '2'.*whole number",
    ),
    "width is True": (
        lambda: widening(True),
        "controller.*width returned True.*whole number",
    ),
    "entropies is a text": (
        lambda: widening(1, entropies="yes"),
        "controller.*entropies = 'yes'.*True or False",
    ),
    "controller: no method": (
        lambda: Variant(controller=object()),
        "controller is.*the method depth",
    ),
    "controller: raises": (
        lambda: Variant(controller=part("depth", fail)),
        "note:controller",
    ),
    "controller: makes None": (
        lambda: Variant(controller=lambda q: None),
        "controller.*depth.stats",
    ),
    # the segmenter
    "segmenter: no function": (
        lambda: Variant(segmenter=7),
        "segmenter is 7, expected a class",
    ),
    "segmenter: makes None": (
        lambda: Variant(segmenter=lambda b: None),
        "segmenter.*feed.token",
    ),
    "segmenter: no feed": (
        lambda: Variant(segmenter=lambda b: object()),
        "segmenter.*feed.token",
    ),
    "segmenter: takes nothing": (
        lambda: Variant(segmenter=lambda: None),
        "note:segmenter",
    ),
    "feed: None": (lambda: cutting(None), "segmenter.*returned None.*True if the step"),
    "feed: 1": (lambda: cutting(1), "segmenter.*returned 1; expected True"),
    "feed: raises": (
        lambda: Variant(segmenter=lambda b: part("feed", fail)),
        "note:segmenter",
    ),
    "maker raises": (lambda: Variant(segmenter=fail), "note:segmenter"),
    # the schedule
    "schedule: an object": (
        lambda: Variant(schedule=SchedulerConfig(None)),
        "schedule is.*the class, not an object",
    ),
    "schedule: a name": (
        lambda: Variant(schedule="sync"),
        "schedule is 'sync', expected a subclass",
    ),
    # the chooser
    "chooser: too large": (
        lambda: choosing(lambda place: 3),
        "chooser.*returned 3; expected the num",
    ),
    "chooser: True": (
        lambda: choosing(lambda place: True),
        "chooser.*returned True; expected",
    ),
    "chooser: a text": (
        lambda: choosing(lambda place: "0"),
        "chooser.*returned '0'; expected",
    ),
    "chooser: a rejected one": (
        lambda: choosing(lambda p: 0, NEVER),
        "chooser.*aligned alternative",
    ),
    "chooser: waits for nothing": (
        lambda: choosing(lambda p: WAIT),
        "chooser.*WAIT while more",
    ),
    "chooser: raises": (lambda: choosing(fail), "note:chooser"),
    "chooser: a class": (lambda: Variant(chooser=type(ALWAYS)), "chooser is the class"),
    "chooser: no method": (
        lambda: Variant(chooser=object()),
        "chooser is.*no method choose",
    ),
    # the proposer
    "proposer: None": (
        lambda: proposing(None),
        "proposer.*returned None; expected at most 1",
    ),
    "proposer: too many": (
        lambda: proposing([None, None]),
        "proposer.*expected at most 1 entries",
    ),
    "proposer: text": (lambda: proposing(["a step"]), "proposer.*token ids of a step"),
    "proposer: floats": (
        lambda: proposing([[1.0, 2.0]]),
        "proposer.*token ids of a step",
    ),
    "proposer: negative": (lambda: proposing([[-1]]), "proposer.*token ids of a step"),
    "proposer: no such token": (
        lambda: proposing([[10**6] * 9]),
        "variant's proposer is 1000000, expected a token id",
    ),
    "proposer: raises": (
        lambda: Variant(proposer=part("propose", fail)),
        "note:proposer",
    ),
    # the corrector
    "corrector: invents": (
        lambda: correcting((1, 1)),
        "corrector began with.*rejected draft steps",
    ),
    "corrector: None": (
        lambda: correcting(None),
        "corrector.*begin returned None; expected token",
    ),
    "corrector: keeps maybe": (
        lambda: correcting((), 1),
        "corrector.*keep returned 1; expected True",
    ),
    "corrector: compares": (
        lambda: Variant(corrector=correcting().corrector),
        "corrector.*needs no target step",
    ),
    "corrector: no keep": (
        lambda: Variant(NEVER, corrector=part("begin", fail)),
        "no method keep",
    ),
    # may_follow
    "may_follow: None": (
        lambda: Variant(may_follow=lambda *_: None),
        "may_follow.*returned None",
        {"depth": 2},
    ),
    "may_follow: an object": (
        lambda: Variant(may_follow=7),
        "may_follow is 7, expected a function",
    ),
    "may_follow: raises": (
        lambda: Variant(may_follow=fail),
        "note:may_follow",
        {"depth": 2},
    ),
    # the token drafter
    "drafter: an object": (
        lambda: Variant(drafter=7),
        "drafter is 7, expected a class or",
        SD,
    ),
    "drafter: makes None": (
        lambda: Variant(drafter=lambda r, s: None),
        "drafter.*propose",
        SD,
    ),
    "drafter: no forget": (
        lambda: Variant(
            drafter=lambda r, s: part(
                "propose",
                chain(1),
                name="m",
                trees=False,
                coupling=Coupling.INDEPENDENT,
            )
        ),
        "drafter.*'forget'. are missing",
        SD,
    ),
    "drafter: no name": (
        lambda: Variant(drafter=lambda r, s: part("propose", chain(1), Drafter)),
        "drafter.*'name'. are missing",
        SD,
    ),
    "drafter: takes nothing": (
        lambda: Variant(drafter=lambda: None),
        "note:drafter",
        SD,
    ),
    "proposals: None": (
        lambda: drafting(lambda c, k: None),
        "drafter.*list of 1 Proposals",
        SD,
    ),
    "proposals: too few": (
        lambda: drafting(lambda c, k: []),
        "drafter.*list of 1 Proposals",
        SD,
    ),
    "proposals: ids": (
        lambda: drafting(lambda c, k: [[1, 2]]),
        "drafter.*list of 1 Proposals",
        SD,
    ),
    "proposals: too deep": (
        lambda: drafting(chain(1, 2, 3)),
        "drafter.*at most min.*2 deep",
        SD,
    ),
    "proposals: a tree": (
        lambda: drafting(lambda c, k: [Proposal((1, 2), (-1, -1)) for _ in c]),
        "drafter.*chains: trees is False",
        SD,
    ),
    "proposals: wrong parents": (
        lambda: drafting(lambda c, k: [Proposal((1,), (0,)) for _ in c]),
        "parents .0,.; expected",
        SD,
    ),
    "proposals: no such token": (lambda: drafting(chain(10**6)), "1000000", SD),
    "proposals: negative": (
        lambda: drafting(chain(-5)),
        "a token id is -5|-5.*not all within",
        SD,
    ),
    "q: wrong shape": (
        lambda: drafting(chain(1, q=torch.ones(3, 4))),
        "q has shape .3, 4.",
        SD,
    ),
    "q: wrong width": (
        lambda: drafting(chain(1, q=torch.tensor([[0.5, 0.5]]))),
        "q speaks of 2 tokens",
        SD,
    ),
    "q: sums to 3": (
        lambda: drafting(rows(3.0)),
        "drafter.*rows are distributions",
        SD,
    ),
    "q: negative": (
        lambda: drafting(rows(2.0, -1.0)),
        "drafter.*rows are distributions",
        SD,
    ),
    "drafter: raises": (lambda: drafting(fail), "note:drafter", SD),
    "drafter: changes the context": (
        lambda: drafting(lambda c, k: [c[0].tokens.append(1) or EMPTY for _ in c]),
        "drafter.*changed context",
        SD,
    ),
    # the token rule
    "rule: an object": (lambda: Variant(rule=object()), "rule is.*AcceptanceRule", SD),
    "rule: a class": (
        lambda: Variant(rule=RejectRule),
        "rule is.*an object of a subclass",
        SD,
    ),
    "rule: no name": (
        lambda: ruling(one(), name=None),
        "rule.*has no name; expected a str",
        SD,
    ),
    "rule: no flag": (
        lambda: ruling(one(), lossless=None),
        "rule.*has no lossless",
        SD,
    ),
    "outcomes: None": (lambda: ruling(lambda p, x: None), "rule.*list of Outcomes", SD),
    "outcomes: none": (lambda: ruling(lambda p, x: []), "rule.*at least one", SD),
    "outcomes: sum 0.2": (lambda: ruling(one(0.2)), "rule.*sum to 1", SD),
    "outcomes: sum 3": (lambda: ruling(one(3.0)), "rule.*sum to 1", SD),
    "outcomes: no path": (
        lambda: ruling(one(1.0, (1,))),
        "rule.*a path from the root",
        SD,
    ),
    "outcomes: no such node": (
        lambda: ruling(one(1.0, (9,))),
        "rule.*a path from the root",
        SD,
    ),
    "law: negative": (lambda: ruling(one(law=lambda p: -p)), "rule.*not negative", SD),
    "law: zero": (lambda: ruling(one(law=lambda p: 0 * p)), "rule.*with sum 1", SD),
    "law: short": (lambda: ruling(one(law=lambda p: p[:3])), "rule.*of shape", SD),
    "outcomes: raises": (lambda: ruling(fail), "note:rule", SD),
    "a tree for a rule of chains": (
        lambda: Variant(
            drafter=lambda r, s: part("propose", fail, Drafter, name="m", trees=True),
            rule=ruling(one()).rule,
        ),
        "verifies chains only",
        SD,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_extension_point(
    reasoner: Reasoner, name: str
) -> None:
    make, said, *options = MISTAKES[name]
    WIDTH[0] = reasoner.codec.vocab_size
    how = {**HOW, **(options[0] if options else {})}
    if not said.startswith("note:"):
        with pytest.raises(LRError, match=f"(?s){said}"):
            reasoner.generate(QUESTION, variant=make(), **how)
        return
    with pytest.raises((KeyError, TypeError)) as caught:
        reasoner.generate(QUESTION, variant=make(), **how)
    assert not isinstance(caught.value, LRError)
    assert f"in the variant's {said.removeprefix('note:')}" in caught.value.__notes__[0]


HARMLESS: dict[str, Callable[[], Variant]] = {
    "a verifier of length 0": lambda: judging(each(YES), __len__=lambda self: 0),
    "a score that is not a number": lambda: judging(
        each(Verdict(True, "x", float("nan")))
    ),
    "a depth that is clipped": lambda: deciding(99),
    "a negative depth": lambda: deciding(-3),
    "steps that never end": lambda: cutting(False),
    "steps of one token": lambda: cutting(True),
    "no proposals": lambda: proposing([]),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_runs(reasoner: Reasoner, name: str) -> None:
    result = reasoner.generate(QUESTION, variant=HARMLESS[name](), **HOW)
    assert result.tokens
    if name == "a verifier of length 0":  # it is used, not taken for none
        assert result.stats.accepted > 0


OPTIONS = ("mode ar", "mode sd", "a rule in mode lr", "the page")
MADE_BEFORE = {"verifier": 20, "variant": 7, "router": 7, "controller": 7, "segmenter": 8,
               "drafter": 18, "rule": 11}  # fmt: skip
"""How many mistakes in each part were made in the first version of these extension
points; 40 were silent."""


def part_of(name: str, made: object) -> str:
    """The part in which a mistake is."""
    if (
        name in OPTIONS
        or not isinstance(made, Variant)
        or made == Variant(settings=made.settings)
    ):
        return "variant"
    if made.rule is not None:
        return "rule"
    names = [
        one.name for one in fields(Variant) if one.name not in ("settings", "costs")
    ]
    parts = [one for one in names if getattr(made, one) is not None]
    return next(one for one in parts if one != "verifier" or len(parts) == 1)


def test_there_are_as_many_in_each_part_as_were_made_before() -> None:
    makers = {name: case[0] for name, case in MISTAKES.items()} | HARMLESS
    counted = Counter(part_of(name, make()) for name, make in makers.items())
    assert {
        part: least for part, least in MADE_BEFORE.items() if counted[part] < least
    } == {}
    assert len(MISTAKES) + len(HARMLESS) >= 78
