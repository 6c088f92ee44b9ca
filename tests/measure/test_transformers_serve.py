"""A real server: `transformers serve` with our tiny checkpoints, on the CPU, started
once for all tests here.

It speaks text, cuts after the stop string's token, cannot list its models offline, and
seeds one generator for everybody; so at temperature 0 its answers are those of the
local models, and that is what is compared. Skipped where transformers[serving] is
missing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from reasoner_kit import with_loader

from lr.commands.cli import main
from lr.measure.endpoint.address import Retry, Servers
from lr.measure.endpoint.client import EndpointError
from lr.measure.endpoint.models import ServedModel
from lr.measure.endpoint.probe import Filters, Seeds, Stops
from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.tiny.language import Split, problem
from lr.tiny.names import checkpoint_path
from lr.types import Origin

STARTUP = 120.0
"""Seconds."""
QUESTIONS = [problem(Split.TEST, index).question for index in range(2)]
GREEDY = {"temperature": 0, "max_tokens": 24}
LONGER = {"temperature": 0, "max_tokens": 60}


@pytest.fixture(scope="module", autouse=True)
def whole() -> Iterator[None]:
    """The server has the models as they ship."""
    with with_loader(load_model):
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address without a model."""
    pytest.importorskip("uvicorn", reason="needs transformers[serving]")
    pytest.importorskip("fastapi", reason="needs transformers[serving]")
    pytest.importorskip("openai", reason="needs transformers[serving]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    script = "from transformers.cli.transformers import main; main()"
    words = [
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *words],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"openai:http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        with suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")


def at(server: str, name: str) -> str:
    return f"{server}/{checkpoint_path(name)}"


@pytest.fixture(scope="module")
def plain() -> str:
    """How the local target's greedy answer begins."""
    return Reasoner(verifier="exact").generate(QUESTIONS[0], mode="ar", **GREEDY).text


@pytest.fixture(scope="module")
def there(server: str) -> Iterator[Reasoner]:
    """Target and draft on the server, which is probed once, with the oracle."""
    with Reasoner(
        at(server, "tiny-target"), at(server, "tiny-draft"), "oracle"
    ) as made:
        yield made


def test_what_it_can_do(there: Reasoner) -> None:
    assert isinstance(there.models.draft, ServedModel)
    can = there.models.draft.can
    assert (can.streams, can.ids_out, can.ids_in, can.logprobs) == (
        True,
        None,
        False,
        False,
    )
    assert can.stops in (Stops.CUT_AFTER, Stops.OVERSHOOTS)
    assert (can.top_k, can.min_p) == (Filters.CONFIG, Filters.CONFIG)
    assert can.seeds in (Seeds.ALONE, Seeds.ALWAYS), (
        "by chance, requests in flight together may not have disturbed each other"
    )


@pytest.mark.parametrize(
    ("target", "draft"),
    [("served", "local"), ("local", "served"), ("served", "served")],
)
def test_greedy_answers_are_the_local_ones(
    server: str, plain: str, target: str, draft: str
) -> None:
    """Plain decoding and Lookahead Reasoning with the exact verifier, any mix of
    models: the local target's text.
    """
    names = [
        at(server, name) if where == "served" else name
        for where, name in ((target, "tiny-target"), (draft, "tiny-draft"))
    ]
    with Reasoner(*names, "exact") as reasoner:
        assert reasoner.generate(QUESTIONS[0], mode="ar", **GREEDY).text == plain
        result = reasoner.generate(QUESTIONS[0], depth=2, **GREEDY)
        assert result.text == plain and result.stats.judged > 0
        if target == "local":
            both = reasoner.generate(
                QUESTIONS[0], mode="lr+sd", drafter="ngram", **GREEDY
            )
            assert both.text == plain


def test_the_oracle_accepts_what_it_accepts_here(there: Reasoner) -> None:
    """With the oracle the emitted text is largely the draft's; the same pairs, the same
    verdicts, the same text.
    """
    with Reasoner(verifier="oracle") as here:
        results = [one.generate(QUESTIONS[0], **LONGER) for one in (there, here)]
    assert results[0].text == results[1].text
    assert [step.origin for step in results[0].steps] == [
        step.origin for step in results[1].steps
    ]
    assert Origin.ACCEPTED in {step.origin for step in results[0].steps}


def test_the_judge_says_what_it_says_here(server: str) -> None:
    """The served judge gives words, the local one probabilities; on these pairs they
    mean the same.
    """
    with Reasoner(
        "tiny-target", "tiny-draft", "judge", judge=at(server, "tiny-judge")
    ) as there:
        served = there.generate(QUESTIONS[0], **LONGER)
    with Reasoner("tiny-target", "tiny-draft", "judge") as here:
        local = here.generate(QUESTIONS[0], **LONGER)
    assert (
        served.text == local.text and served.stats.accepted == local.stats.accepted > 0
    )


def test_sampling_runs(there: Reasoner) -> None:
    """Seeds are one generator's there, so only the form is the same: steps, an end, a
    draft that is judged.
    """
    result = there.generate(QUESTIONS[1], temperature=0.8, top_k=20, width=2, depth=1)
    assert result.finished and result.stats.judged > 0
    assert result.text == there.codec.decode(result.tokens)


def test_the_official_flags(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--judge_port`, as the official tool has it."""
    judge = [
        "--judge_port",
        server.rpartition(":")[2],
        "--judge_model",
        str(checkpoint_path("tiny-judge")),
    ]
    words = [
        "run",
        "--dataset",
        "tiny:2",
        "--use_spec",
        "--temperature",
        "0",
        "--concurrency",
        "2",
    ]
    # the official tool's servers are at "localhost": so is ours, by another name
    words += ["--max_tokens_len", "160"]
    assert main([*words, *judge, "--output", str(tmp_path / "out")]) == 0, (
        capsys.readouterr().err
    )
    record = json.loads((tmp_path / "out" / "0.json").read_text())
    assert record["stats"]["accepted"] > 0
    assert main(["info", "--endpoint", at(server, "tiny-judge")]) == 0
    assert "steps are sent as text" in capsys.readouterr().out


def test_a_name_that_it_does_not_have(server: str) -> None:
    retry = Retry(
        attempts=2, pause=0.1
    )  # it may break off while it ends what another test began
    with pytest.raises(EndpointError, match="answered"):
        ServedModel.open(
            f"{server}/nobody/nothing", Servers(tokenizer="tiny-target", retry=retry)
        )
