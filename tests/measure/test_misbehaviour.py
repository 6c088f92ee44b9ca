"""Whatever a judge's server does, a run ends soon: with the server's words where asking
again is no use, else after a bounded time, stopped or gone on without the judge, and
the reasons are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint_kit import IDS, serving
from fake_server import FakeServer
from misbehaviour import FINAL, WAYS
from reasoner_kit import write_checkpoint
from test_endpoint_judge import CODEC, pair

from lr.measure.endpoint.address import Lost, Retry, Servers
from lr.measure.endpoint.client import Client, EndpointError, Refused
from lr.measure.endpoint.judge import ServedJudge
from lr.measure.endpoint.models import ServedModel
from lr.reasoner import Reasoner
from lr.trace import failures
from lr.types import Origin

LONGEST = 30.0
"""Seconds in which everything is over, on a machine that does other things too."""


def judge_model(server: FakeServer) -> ServedModel:
    """A model whose probes were answered well, with patience."""
    server.behave(likeliest=lambda prompt: {"al": -0.1})
    return ServedModel.open(server.address(), Servers(judge_tokenizer="tiny-judge"))


def retry(client: Client, lost: Lost = "reject", **quick: float) -> Retry:
    """`quick` settings. What earlier tests have cost is not counted."""
    quick["budget"] = client.spent + quick.get("budget", 60.0)
    return Retry(pause=0.005, longest=0.02, lost=lost, **quick)  # type: ignore[arg-type]


def asked_for(server: FakeServer, text: str) -> int:
    """How often the server was asked about a text. Requests of earlier tests may still
    come in."""
    prompts = [body["prompt"] for body in server.log.bodies]
    return sum(
        text in (one if isinstance(one, str) else CODEC.decode(one)) for one in prompts
    )


@pytest.fixture(scope="module")
def all_judged() -> Iterator[tuple[FakeServer, ServedModel]]:
    """A server, and the judge there."""
    with serving(IDS) as server:
        yield server, judge_model(server)


@pytest.fixture
def judged(
    all_judged: tuple[FakeServer, ServedModel],
) -> Iterator[tuple[FakeServer, ServedModel]]:
    """Every test begins with an answer that is good, whatever came before."""
    server, model = all_judged
    server.misbehave, model.endpoint.client.retry = None, Retry()
    assert ServedJudge(model, CODEC.decode).judge([pair("x", "z")])[0].aligned
    yield server, model
    server.misbehave = None


def judge_at(model: ServedModel, lost: Lost, **quick: float) -> ServedJudge:
    model.endpoint.client.retry = retry(model.endpoint.client, lost, **quick)
    return ServedJudge(model, CODEC.decode)


SOON = {"timeout": 0.1, "budget": 0.2}


@pytest.mark.parametrize("name", FINAL)
def test_a_refusal_ends_the_run_at_once_with_the_words_of_the_server(
    judged: tuple[FakeServer, ServedModel], name: str
) -> None:
    server, model = judged
    judge = judge_at(model, "reject")
    server.misbehave = FINAL[name]
    with pytest.raises(Refused, match=f"these are the words of {name.split()[1]}"):
        judge.judge([pair("x", f"about {name}")])
    assert asked_for(server, f"about {name}") == 1


@pytest.mark.parametrize("name", WAYS)
def test_a_judge_that_misbehaves_is_given_up_soon(
    judged: tuple[FakeServer, ServedModel], name: str
) -> None:
    """Nothing is accepted, every question has its reason, and after a few nobody is
    asked."""
    began, (server, model) = time.monotonic(), judged
    judge = judge_at(model, "reject", **SOON)
    server.misbehave = WAYS[name]
    for number in range(6):
        [verdict] = judge.judge([pair("x", f"y{number}")])
        assert not verdict.aligned and verdict.failed and verdict.why
    [verdict] = judge.judge([pair("x", f"about {name}")])
    assert (
        "is not asked any more" in verdict.why
        and asked_for(server, f"about {name}") == 0
    )
    assert judge.judge([pair("x", "x")])[0].aligned  # nobody needs to be asked
    assert time.monotonic() - began < LONGEST


def ends(judge: ServedJudge, number: int) -> bool:
    """Whether the run ends at this question, and says that the judge failed."""
    try:
        judge.judge([pair("x", f"y{number}")])
    except EndpointError as error:
        return "judge failed" in str(error)
    return False


@pytest.mark.parametrize("name", ["status 500", "says nothing", "HTML"])
def test_or_the_run_stops(judged: tuple[FakeServer, ServedModel], name: str) -> None:
    began, (server, model) = time.monotonic(), judged
    judge = judge_at(model, "stop", **SOON)
    server.misbehave = WAYS[name]
    ended = [ends(judge, number) for number in range(6)]
    assert True in ended and all(ended[ended.index(True) :])
    assert time.monotonic() - began < LONGEST


@pytest.fixture(scope="module")
def target() -> Iterator[tuple[FakeServer, Reasoner]]:
    with serving(IDS) as server, Reasoner(server.address(), None, "exact") as made:
        server.everywhere = True
        yield server, made


@pytest.mark.parametrize("name", [*FINAL, *WAYS])
def test_a_model_that_misbehaves_ends_the_run_soon(
    target: tuple[FakeServer, Reasoner], name: str
) -> None:
    """The same policy: a refusal at once, in the server's words, and anything else
    after some tries. Nothing can take the place of a target, so the run ends. The next
    one goes well.
    """
    server, made = target
    client = made.models.target.endpoint.client  # type: ignore[attr-defined]
    server.misbehave, client.retry = None, Retry()
    assert made.generate("coins", mode="ar", max_tokens=3).tokens
    began = time.monotonic()
    client.retry = retry(client, **({} if name in FINAL else SOON))
    server.misbehave = FINAL.get(name) or WAYS[name]
    with pytest.raises(EndpointError) as ended:
        made.generate(f"about {name}", mode="ar", max_tokens=9)
    if name in FINAL:
        assert (
            isinstance(ended.value, Refused) and asked_for(server, f"about {name}") == 1
        )
        assert f"these are the words of {name.split()[1]}" in str(ended.value)
    assert time.monotonic() - began < LONGEST


HOW = {
    "segmenter": "fixed",
    "segment_tokens": 3,
    "max_tokens": 40,
    "temperature": 0,
    "depth": 2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return [write_checkpoint(folder / str(seed), seed=seed) for seed in (1, 2, 3)]


def test_an_answer_without_its_judge_is_goes_on_and_counts_the_reasons(
    folders: list[Path],
) -> None:
    with serving(IDS) as server:
        server.behave(likeliest=lambda prompt: {"al": -0.1})
        patient = Servers(retry=Retry(pause=0.01, lost="reject"))
        judge = server.address("tiny-judge")
        with Reasoner(*folders[:2], "judge", judge=judge, servers=patient) as made:
            server.misbehave = WAYS["HTML"]
            result = made.generate("coins", mode="lr", **HOW)
        assert 3 < result.stats.unjudged <= result.stats.judged
        kept = [step.verdict for step in result.steps if step.origin is Origin.ACCEPTED]
        assert all(verdict and verdict.why == "equal text" for verdict in kept)
        reasons = failures(event for _, event in result.trace.events)
        assert len(reasons) == result.stats.unjudged
        known = (
            "sent no JSON",
            "not asked any more",
            "broke off",
        )  # as its server closes
        assert all(any(words in why for words in known) for why in reasons), reasons


def test_passes_of_a_verifier_are_counted(folders: list[Path]) -> None:
    """A served judge's are its questions; those of a judge here are forwards; exact has
    none."""
    with serving(IDS) as server:
        server.behave(likeliest=lambda prompt: {"al": -0.1})
        address = server.address("tiny-judge")
        for verifier, judge in (
            ("judge", address),
            ("judge", folders[2]),
            ("score:4", None),
            ("exact", None),
        ):
            with Reasoner(*folders[:2], verifier, judge=judge) as made:
                before = len(server.log.bodies)
                stats = made.generate("coins", mode="lr", **HOW).stats
                assert (stats.verifier_passes > 0) is (verifier != "exact")
                if judge == address:
                    assert stats.verifier_passes == len(server.log.bodies) - before
                elif verifier != "exact":
                    prefixes = getattr(
                        made.verifier, "verifier", made.verifier
                    ).prefixes
                    assert stats.verifier_passes <= prefixes.passes
