"""Verifiers whose questions a server answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from endpoint_kit import IDS, PLAIN, QUESTION, QUICK, TEXT, reasoner, served, serving
from fake_server import Fault, babble
from reasoner_kit import write_checkpoint

from lr.errors import SettingError
from lr.measure.endpoint.address import Servers
from lr.measure.endpoint.client import EndpointError, Refused
from lr.measure.endpoint.judge import ServedJudge, ServedScore, shares
from lr.measure.endpoint.models import spell
from lr.model.codec import Codec
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Pair
from lr.types import Finish, Origin, Step

CODEC = Codec.load("tiny-target")


def pair(target: str, draft: str) -> Pair:
    prefix = tuple(CODEC.chat(QUESTION))
    steps = [
        Step(tuple(CODEC.encode(text)), Finish.BOUNDARY) for text in (draft, target)
    ]
    return Pair(prefix, steps[0], steps[1])


def says(word: Callable[[str], str]) -> Callable[[str, int | None], str]:
    """A model that answers a judge's prompt with `word`, and babbles otherwise."""
    return lambda text, seed: word(text) if text.endswith("[") else " so"


def slowly(write: Callable[[str, int | None], str]) -> Callable[[str, int | None], str]:
    def wait(text: str, seed: int | None) -> str:
        time.sleep(0.03)
        return write(text, seed)

    return wait


def test_shares() -> None:
    answers = ("aligned]", "unaligned]")
    held, mass = shares({"al": -0.1, "un": -2.5, "The": -5.0}, answers)
    assert held[0] == pytest.approx(math.exp(-0.1) / (math.exp(-0.1) + math.exp(-2.5)))
    assert mass == pytest.approx(math.exp(-0.1) + math.exp(-2.5))
    assert shares({"aligned": 0.0}, answers) == ([1.0, 0.0], 1.0)
    assert shares({" [Un": 0.0}, answers) == ([0.0, 1.0], 1.0)
    assert shares(
        {"a": math.log(0.5), "aligned": math.log(0.25), "una": math.log(0.25)}, answers
    ) == ([0.75, 0.25], 1.0)
    assert shares({"maybe": 0.0, "": 0.0, " ": 0.0}, answers) == ([0.0, 0.0], 0.0)
    digits = tuple(map(str, range(10)))
    assert shares({" 7": math.log(0.5), "9": math.log(0.5), "ten": 0.0}, digits)[0][
        7::2
    ] == [
        0.5,
        0.5,
    ]


def test_the_judge_reads_a_word_where_there_are_no_probabilities() -> None:
    with serving(PLAIN) as server:
        server.write = says(lambda text: "aligned" if "twin" in text else "unaligned")
        judge = ServedJudge(served(server), CODEC.decode)
        yes, no, equal = judge.judge(
            [pair("x", "the twin"), pair("x", "other"), pair("So.", "so. ")]
        )
        assert (yes.aligned, yes.score, no.aligned, no.score) == (True, 1.0, False, 0.0)
        assert (equal.aligned, equal.why) == (True, "equal text")
        prompts = [
            body["prompt"] for body in server.log.bodies if body["prompt"].endswith("[")
        ]
        assert len(prompts) == 2, "equal texts are not asked about"
        assert all(
            prompt.index("x") < prompt.rindex("assistant\n") for prompt in prompts
        )


def test_the_judge_weighs_where_there_are() -> None:
    likeliest = {"al": math.log(0.6), "un": math.log(0.2), "The": math.log(0.2)}
    with serving(replace(IDS, likeliest=lambda prompt: likeliest)) as server:
        model = served(server)
        [verdict] = ServedJudge(model, CODEC.decode, threshold=0.7).judge(
            [pair("x", "y")]
        )
        assert verdict.aligned and verdict.score == pytest.approx(0.75)
        assert (
            not ServedJudge(model, CODEC.decode, threshold=0.8)
            .judge([pair("x", "y")])[0]
            .aligned
        )
        server.behave(likeliest=lambda prompt: {"Well": -0.01})
        [verdict] = ServedJudge(model, CODEC.decode).judge([pair("x", "y")])
        assert not verdict.aligned and "something else" in verdict.why


def test_a_judge_that_fails_rejects() -> None:
    with serving(PLAIN) as server:
        judge = ServedJudge(served(server), CODEC.decode)
        assert not judge.model.can.logprobs
        server.faults = [Fault(500, whole=True)] * QUICK.attempts
        verdicts = judge.judge([pair("x", "y")])
        assert not verdicts[0].aligned and "answered 500" in verdicts[0].why
        assert judge.judge([]) == []


def test_a_judge_that_keeps_failing_ends_the_run() -> None:
    """Three questions in a row, each after all its attempts; an answer in between
    counts anew."""
    with serving(PLAIN) as server:
        server.write = says(lambda text: "aligned")
        judge = ServedJudge(served(server), CODEC.decode)
        bad = [Fault(500, whole=True)] * QUICK.attempts
        for fails in (True, True, False, True, True):
            server.faults = list(bad) if fails else []
            assert judge.judge([pair("x", "y")])[0].failed is fails
        server.faults = list(bad)
        with pytest.raises(EndpointError, match=r"3 times in a row.*answered 500"):
            judge.judge([pair("x", "y")])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 307])
def test_a_refusal_ends_the_run_at_the_first_question(status: int) -> None:
    with serving(PLAIN) as server:
        judge = ServedJudge(served(server), CODEC.decode)
        server.faults = [Fault(status, whole=True)]
        with pytest.raises(Refused, match=f"answered {status}.*fault {status}"):
            judge.judge([pair("x", "y")])
        assert not server.faults


def test_a_question_that_does_not_fit_is_rejected_alone() -> None:
    with serving(PLAIN) as server:
        server.write = says(lambda text: "aligned")
        judge = ServedJudge(served(server), CODEC.decode)
        before = len(server.log.bodies)
        long, short = judge.judge([pair("x", "y " * 2000), pair("x", "y")])
        assert long.failed and not long.aligned and "the context of" in long.why
        assert short.aligned and len(server.log.bodies) == before + 1


def test_the_score_is_the_mean_digit() -> None:
    likeliest = {" 8": math.log(0.5), "6": math.log(0.5)}
    with serving(replace(IDS, likeliest=lambda prompt: likeliest)) as server:
        verifier = ServedScore(served(server), threshold=6.5)
        [verdict] = verifier.judge([pair("", "So.")])
        assert verdict.aligned and verdict.score == pytest.approx(7.0)
        prompt = server.log.bodies[-1]["prompt"]
        assert prompt.startswith(
            spell(CODEC, CODEC.chat(QUESTION)) + "So."
        ) and prompt.endswith("Score from 0 to 9:")


@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
def test_local_models_with_a_served_judge(tmp_path: Path, driver: str) -> None:
    """The verdicts are the server's, whichever driver asks."""
    target, draft = (
        str(write_checkpoint(tmp_path / name, seed=seed))
        for name, seed in (("target", 1), ("draft", 2))
    )
    with serving(PLAIN) as server:
        server.write = says(lambda text: "aligned" if len(text) % 3 else "unaligned")
        how = {
            "max_tokens": 60,
            "max_step_tokens": 12,
            "ignore_half_sentence": False,
            "segmenter": "fixed",
            "segment_tokens": 8,
        }
        servers = Servers(judge_tokenizer="tiny-judge", retry=QUICK)
        with Reasoner(
            target, draft, None, judge=server.address("tiny-judge"), servers=servers
        ) as local:
            result = local.generate(QUESTION, temperature=1.0, driver=driver, **how)
            again = local.generate(QUESTION, temperature=1.0, driver="lockstep", **how)
    assert result.tokens == again.tokens
    assert {Origin.ACCEPTED, Origin.CORRECTION} <= {
        step.origin for step in result.steps
    }
    assert server.log.most >= 1 and result.stats.judged > 1


def test_verdicts_are_not_waited_for() -> None:
    """Everything served: while the judge thinks, target and draft write on; questions
    of released nodes are dropped.
    """
    with (
        serving(PLAIN) as target,
        serving(PLAIN, salt="draft") as draft,
        serving(PLAIN) as judge,
    ):
        judge.write = says(lambda text: "aligned" if len(text) % 4 else "unaligned")
        draft.write = babble(300, salt="draft", differs=1)
        names = target.address(), draft.address("tiny-draft")
        with Reasoner(
            *names,
            "judge",
            judge=judge.address("tiny-judge"),
            servers=Servers(retry=QUICK),
        ) as three:
            quick = three.generate(QUESTION, temperature=0)
            count, judge.write = len(judge.log.bodies), slowly(judge.write)
            started = time.monotonic()
            slow = three.generate(QUESTION, temperature=0)
            assert slow.text == quick.text
            assert time.monotonic() - started > 0.03
            assert len(judge.log.bodies) > count
            assert judge.log.most > 1, "several questions at once"


def test_judges_that_make_no_sense() -> None:
    with serving(PLAIN) as server:
        address, servers = server.address("tiny-judge"), Servers(retry=QUICK)
        with pytest.raises(SettingError, match=r"verifier 'exact' uses no judge model"):
            Reasoner(
                "tiny-target", "tiny-draft", "exact", judge=address, servers=servers
            )
        with pytest.raises(
            SettingError, match=r"needs a sentence encoder in this process"
        ):
            Reasoner(
                "tiny-target", "tiny-draft", "embedding", judge=address, servers=servers
            )
        with pytest.raises(
            SettingError,
            match=r"verifier 'judge:0.8' needs something that tiny-judge at .*likeliest.*text",
        ):
            Reasoner(
                "tiny-target", "tiny-draft", "judge:0.8", judge=address, servers=servers
            )


def test_score_asks_the_served_target() -> None:
    likeliest = {"9": -0.01}
    manners = replace(IDS, likeliest=lambda prompt: likeliest)
    with serving(manners) as target, serving(TEXT, salt="draft") as draft:
        with reasoner(target, draft, "score") as both:
            result = both.generate(QUESTION, temperature=0, schedule="sync", depth=1)
        assert {
            step.origin for step in result.steps if step.finish is Finish.BOUNDARY
        } == {Origin.ACCEPTED}
