"""A variant's own events: in the trace, in its file, again when it is replayed, in
words in the stepper, and on the player's page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from lr.commands.cli import main
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.acceptance import EMPTY, Outcome, Proposal, RejectRule
from lr.spec.ask import VariantError
from lr.spec.protocol import Draft, silent
from lr.spec.token_sd import Drafter
from lr.spec.variant import Corrector, StepProposer, Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.trace import Noted, TokenRound
from lr.types import Role, Verdict
from lr.variants.choosers import Majority
from lr.variants.kit import check
from lr.variants.loading import load_variant
from lr.watch.player.page import page_data
from lr.watch.stepper.words import say
from lr.watch.trace.file import TraceFile, read_trace
from lr.watch.trace.replay import replay, save_trace
from lr.watch.trace.state import state_at

QUESTION = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
)
HOW: dict[str, Any] = {"max_tokens": 120, "seed": 1}


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner() as made:
        yield made


class Odd(Verifier):
    """Rejects steps of an odd length and says what it saw."""

    name, requires = "odd", Requires.NOTHING

    def __init__(self, seen: object = 0.5) -> None:
        self.seen = seen

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        for pair in pairs:
            pair.note("length", tokens=len(pair.draft.tokens), seen=self.seen)
        return [Verdict(len(pair.draft.tokens) % 2 == 0, "counted") for pair in pairs]


class Twice(Corrector):
    """Has every correction written twice."""

    def keep(self, correction: Any, step: Any, number: float) -> bool:
        correction.note("asked", times=correction.attempt)
        return bool(correction.attempt)


class Short:
    """Looks one step ahead."""

    def depth(self, stats: Any) -> int:
        return 1


def notes(trace: TraceFile) -> dict[str, list[Noted]]:
    found: dict[str, list[Noted]] = {}
    for record in trace.records:
        if isinstance(record.event, Noted):
            found.setdefault(record.event.name, []).append(record.event)
    return found


def test_what_parts_tell_and_decide_is_in_the_file(
    reasoner: Reasoner, tmp_path: Path
) -> None:
    variant = Variant(
        Odd((1, None, "a", float("inf"))),
        chooser=Majority(1),
        corrector=Twice(),
        controller=Short(),
        may_follow=lambda node, step, logprobs: True,
    )
    run = reasoner.run(QUESTION, variant=variant, detailed=True, **HOW)
    run.finish()
    save_trace(tmp_path / "trace.jsonl", run)
    trace = read_trace(tmp_path / "trace.jsonl")
    found = notes(trace)
    assert set(found) == {
        "length",
        "votes",
        "asked",
        "corrector",
        "controller",
        "may_follow",
    }
    assert found["length"][0].fields["seen"] == [1, None, "a", "inf"]
    assert {one.fields["keeps"] for one in found["corrector"]} == {False}
    assert len(found["asked"]) == 2 * len(found["corrector"])
    assert {one.fields["depth"] for one in found["controller"]} == {1}
    assert {one.fields["follows"] for one in found["may_follow"]} == {True}
    again = reasoner.run(QUESTION, variant=variant, detailed=True, **HOW)
    again.finish()
    save_trace(tmp_path / "again.jsonl", again)
    assert notes(read_trace(tmp_path / "again.jsonl")) == found


def test_stepper_and_player_show_them_plainly(
    reasoner: Reasoner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name that no reader knows is shown with its fields."""
    run = reasoner.run(
        QUESTION, variant=Variant(Odd([0.25, True])), detailed=True, **HOW
    )
    run.finish()
    save_trace(tmp_path / "trace.jsonl", run)
    trace = read_trace(tmp_path / "trace.jsonl")
    first = next(record for record in trace.records if record.kind == "note")
    tokens = first.data["fields"]["tokens"]
    sentence = f"the variant's length at {first.data['node']}: tokens {tokens}, seen [0.25, True]"
    assert say(first) == sentence
    assert state_at(trace, first.number + 1).touched == {first.data["node"]}
    page = json.loads(json.dumps(page_data(trace), allow_nan=False))
    assert page["events"][first.number][1:] == ["note", "verifier", "*", sentence.capitalize()[:1]
                                                + sentence[1:]]  # fmt: skip
    assert page["stops"]["note"] > 0
    typed = f"g {first.number + 1}\ni {first.data['node']}\n"
    monkeypatch.setattr("sys.stdin", StringIO(typed))
    assert main(["step", str(tmp_path / "trace.jsonl")]) == 0
    node = capsys.readouterr().out.split(f"node {first.data['node']}: ", 1)[1]
    assert sentence in node


def test_a_named_variant_with_notes_is_replayed(
    reasoner: Reasoner, tmp_path: Path
) -> None:
    variant = load_variant("rsd(weight='clip')", reasoner)
    run = reasoner.run(QUESTION, variant=variant, detailed=True, **HOW)
    run.finish()
    save_trace(tmp_path / "trace.jsonl", run)
    trace = read_trace(tmp_path / "trace.jsonl")
    drawn = notes(trace)["acceptance"]
    assert drawn and all(0 <= one.fields["uniform"] < 1 for one in drawn)
    assert replay(trace) is None


def test_without_a_trace_nothing_is_recorded(reasoner: Reasoner) -> None:
    result = reasoner.generate(QUESTION, variant=Variant(Odd()), **HOW)
    assert not [event for _, event in result.trace.events if isinstance(event, Noted)]


def test_what_a_file_cannot_hold_is_refused(reasoner: Reasoner) -> None:
    with pytest.raises(
        SettingError, match=r"note 'length' has seen = tensor.*\.tolist"
    ):
        reasoner.generate(QUESTION, variant=Variant(Odd(torch.ones(2))), **HOW)


class Opening:
    """The target writes the first step."""

    def who_writes(self, index: int, previous: Any, note: Any = silent) -> Role:
        note("opening", index=index)
        return Role.DRAFT if index else Role.TARGET


class Looking(StepProposer):
    """Looks for a step and finds none."""

    def propose(self, tokens: Sequence[int], width: int, note: Any = silent) -> Any:
        note("looked", at=len(tokens))
        return [None] * width


class Thinking:
    """Looks two steps ahead, in words."""

    def depth(self, stats: Any, note: Any = silent) -> int:
        note("thought", accepted=stats.accepted)
        return 2

    def width(self, stats: Any, note: Any = silent) -> int | None:
        note("thought of width")
        return None


def sure(node: Any, step: Any, logprobs: Any, note: Any = silent) -> bool:
    note("sure", tokens=len(step.tokens))
    return True


def test_a_method_with_a_parameter_note_gets_one(
    reasoner: Reasoner, tmp_path: Path
) -> None:
    variant = Variant(
        router=Opening(), proposer=Looking(), controller=Thinking(), may_follow=sure
    )
    traces = []
    for name in ("a", "b"):
        run = reasoner.run(QUESTION, variant=variant, detailed=True, **HOW)
        result = run.finish()
        save_trace(tmp_path / f"{name}.jsonl", run)
        traces.append(read_trace(tmp_path / f"{name}.jsonl"))
    assert notes(traces[0]) == notes(traces[1])
    assert "the variant's router: step 0, writes target" in map(say, traces[0].records)
    assert page_data(traces[0])["stops"]["note"] > 0
    found = notes(traces[0])
    steps, drafts = (
        len(result.steps),
        [e for _, e in run.trace.events if isinstance(e, Draft)],
    )
    # the router is asked again and again, and heard once about each step
    asked = [one.fields["index"] for one in found["opening"]]
    assert asked == [one.fields["step"] for one in found["router"]] and asked[0] == 0
    writes = {one.fields["step"]: one.fields["writes"] for one in found["router"]}
    assert writes.pop(0) == "target" and set(writes.values()) == {"draft"}
    assert len(found["looked"]) == len(found["proposer"]) == len(drafts) > 0
    assert [one.node for one in found["proposer"]] == [draft.node for draft in drafts]
    assert {str(one.fields) for one in found["proposer"]} == {"{'tokens': [None]}"}
    assert len(found["thought"]) == len(found["thought of width"]) == steps
    assert len(found["controller"]) == steps
    pairs = zip(found["sure"], found["may_follow"], strict=True)
    assert all(one.node == other.node and one.node is not None for one, other in pairs)
    plain = reasoner.generate(QUESTION, variant=variant, **HOW)
    assert plain.tokens == result.tokens
    assert not [event for _, event in plain.trace.events if isinstance(event, Noted)]


def test_a_parameter_note_breaks_no_contract() -> None:
    for part in (Opening, Looking, Thinking, sure):
        assert check(part).passed


class Last(Drafter):
    """Proposes the last token again."""

    name = "last"

    def propose(self, contexts: Any, k: int) -> list[Proposal]:
        for context in contexts:
            context.note("last", token=context.tokens[-1])
        return [
            Proposal.chain(c.tokens[-1:]) if min(k, c.limit) > 0 else EMPTY
            for c in contexts
        ]


class Counting(RejectRule):
    """Says how many tokens stayed."""

    name = "counting"

    def outcomes(self, p_rows: Any, proposal: Proposal) -> list[Outcome]:
        made = super().outcomes(p_rows, proposal)
        return [replace(one, note={"stay": len(one.nodes)}) for one in made]


def test_a_drafter_and_a_rule_tell_of_their_round(reasoner: Reasoner) -> None:
    variant = Variant(drafter=lambda runner, sampling: Last(), rule=Counting())
    run = reasoner.run(QUESTION, variant=variant, mode="sd", detailed=True, **HOW)
    run.finish()
    events = [event for _, event in run.trace.events]
    rounds = [event for event in events if isinstance(event, TokenRound)]
    told = [
        event for event in events if isinstance(event, Noted) and event.name == "rule"
    ]
    assert rounds and [one.accepted for one in rounds] == [
        one.fields["stay"] for one in told
    ]
    assert [one.node for one in rounds] == [one.node for one in told]
    last = [
        event for event in events if isinstance(event, Noted) and event.name == "last"
    ]
    assert len(last) >= len(rounds) and all(one.node is not None for one in last)
    check(Counting)


@pytest.mark.parametrize("note", [7, ["stay"]])
def test_the_note_of_an_outcome_is_a_mapping(
    reasoner: Reasoner, note: Mapping[str, Any]
) -> None:
    class Odd(RejectRule):
        def outcomes(self, p_rows: Any, proposal: Proposal) -> list[Outcome]:
            return [
                replace(one, note=note) for one in super().outcomes(p_rows, proposal)
            ]

    variant = Variant(drafter=lambda runner, sampling: Last(), rule=Odd())
    with pytest.raises(VariantError, match=r"rule.*outcomes whose note is a mapping"):
        reasoner.generate(QUESTION, variant=variant, mode="sd", **HOW)
