"""Served models on the command line: one clear message where something is wrong, and no
key on disk.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from endpoint_kit import IDS, PLAIN, QUESTION, serving

from lr.commands.cli import main
from lr.commands.options import ServerChoice
from lr.measure.endpoint.address import Servers


def test_info_shows_what_an_endpoint_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(IDS) as server:
        assert main(["info", "--endpoint", server.address()]) == 0
    shown = capsys.readouterr().out
    assert f"tiny-target at {server.server}, context 4096 tokens" in shown
    assert "in and out" in shown and "steps are sent as token ids" in shown


def test_generate(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PLAIN) as target, serving(PLAIN, salt="draft") as draft:
        words = [
            "--model",
            target.address(),
            "--draft_model",
            draft.address("tiny-draft"),
            "--verifier",
            "exact",
        ]
        assert main(["generate", QUESTION, *words, "--temperature", "0"]) == 0
        answer = capsys.readouterr().out
        assert (
            main(["generate", QUESTION, *words, "--temperature", "0", "--mode", "ar"])
            == 0
        )
        assert capsys.readouterr().out == answer and len(answer) > 20


def test_the_key_is_sent_and_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR_API_KEY", "from-outside")
    assert ServerChoice().servers().api_key == "from-outside"
    assert ServerChoice(api_key="said").servers().api_key == "said"
    assert "said" not in repr(Servers(api_key="said"))
    with serving(PLAIN) as judge:
        judge.behave(api_key="from-outside")
        judge.write = lambda text, seed: "aligned" if text.endswith("[") else " so"
        port = judge.server.rpartition(":")[2]
        words = [
            "run",
            "--dataset",
            "tiny:1",
            "--use_spec",
            "--max_tokens_len",
            "200",
            "--output",
            str(tmp_path / "out"),
        ]
        words += ["--judge_port", port, "--judge_model", "tiny-judge"]
        assert main(words) == 0, capsys.readouterr().err
        monkeypatch.delenv("LR_API_KEY")
        assert main([*words[:-5], str(tmp_path / "other"), *words[-4:]]) == 2
        assert "answered 401" in capsys.readouterr().err
    for path in (tmp_path / "out").rglob("*.json"):
        assert "from-outside" not in path.read_text()
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert settings["judge_model"] == f"openai:http://localhost:{port}/tiny-judge"
    record = json.loads((tmp_path / "out" / "0.json").read_text())
    assert record["stats"]["judged"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["generate", "x", "--model", "http://localhost:8000/m", "--mode", "ar"],
            "is written openai:http://localhost:8000/m",
        ),
        (
            ["generate", "x", "--model", "openai:localhost/m", "--mode", "ar"],
            "is not the address of a served model",
        ),
        (
            ["info", "--endpoint", "Qwen/Qwen3-32B"],
            "is not the address of a served model",
        ),
        (["info", "--endpoint", "openai:http://127.0.0.1:1/m"], "cannot be reached"),
        (["generate", "x", "--server_timeout", "0"], "server_timeout is 0"),
    ],
)
def test_bad_input(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(PLAIN) as server:
        assert main([server.address() if word == "@" else word for word in words]) == 2
    assert says in capsys.readouterr().err


def test_what_a_server_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PLAIN) as server:
        assert (
            main(
                [
                    "generate",
                    QUESTION,
                    "--model",
                    server.address("nonsuch"),
                    "--mode",
                    "ar",
                ]
            )
            == 2
        )
        assert "has no model 'nonsuch'; it has tiny-target" in capsys.readouterr().err
        server.behave(models=("unheard-of",))
        assert (
            main(["generate", QUESTION, "--model", server.address(""), "--mode", "ar"])
            == 2
        )
        assert "--tokenizer" in capsys.readouterr().err
        assert (
            main(
                [
                    "generate",
                    QUESTION,
                    "--model",
                    server.address(),
                    "--draft_model",
                    "tiny-draft",
                ]
            )
            == 2
        )
        assert "has no model 'tiny-target'" in capsys.readouterr().err
