"""A judge behind an OpenAI-compatible server: what is asked, what is read, what happens
when the server fails. The server is a small one of our own, on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure import judge_server
from lr.measure.judge_server import FAILURES, JudgeError, ServedJudge, read_answer
from lr.spec.verifiers.base import Pair
from lr.types import Finish, Step

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


def said(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": text}}]}


class Server(ThreadingHTTPServer):
    """Answers with `reply`; `asked` holds the bodies of all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = ["one-judge"]
        self.asked: list[dict[str, Any]] = []
        self.reply: Reply = lambda body: said("[aligned]")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.send(*self.server.reply(body))

    def send(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_server, "PAUSE", 0.0)


def judge_of(server: Server, **settings: Any) -> ServedJudge:
    return ServedJudge(server.url, lambda tokens: bytes(tokens).decode(), **settings)


def pair(draft: str, target: str) -> Pair:
    steps = (Step(tuple(text.encode()), Finish.BOUNDARY) for text in (draft, target))
    return Pair((), *steps)


PAIRS = [pair("x = 1", "so x = 1"), pair("x = 2", "so x = 1"), pair("Same.", "same. ")]


def by_draft(body: dict[str, Any]) -> tuple[int, Any]:
    question = body["messages"][0]["content"]
    return said("[unaligned]" if "x = 2" in question else "[aligned]")


def test_one_request_per_pair_and_none_for_equal_texts(server: Server) -> None:
    server.reply = by_draft
    judge = judge_of(server)
    verdicts = judge.judge(PAIRS)
    assert [verdict.aligned for verdict in verdicts] == [True, False, True]
    assert judge.passes == len(server.asked) == 2
    assert all(body["model"] == "one-judge" for body in server.asked)
    questions = [str(body["messages"]) for body in server.asked]
    [question] = [text for text in questions if "x = 2" in text]
    assert question.index("so x = 1") < question.index("x = 2")  # the target's first


@pytest.mark.parametrize(
    ("answer", "aligned"),
    [("[aligned]", True), ("Aligned.", True), ("[unaligned]", False), ("Yes", False)],
)
def test_reading_an_answer(answer: str, aligned: bool) -> None:
    verdict = read_answer(answer)
    assert verdict.aligned is aligned and not verdict.failed


def test_the_judge_is_named_where_a_server_has_several(server: Server) -> None:
    server.models = ["a", "b"]
    with pytest.raises(SettingError, match="judge_model"):
        judge_of(server)
    judge_of(server, model="b").judge(PAIRS[:1])
    assert server.asked[0]["model"] == "b"


def test_a_busy_server_is_asked_again(server: Server) -> None:
    replies = [(503, {}), (200, "no answer"), said("[aligned]")]
    server.reply = lambda body: replies.pop(0)
    assert judge_of(server, attempts=3).judge(PAIRS[:1])[0].aligned and not replies


def test_a_server_with_openais_fields_only(server: Server) -> None:
    def strict(body: dict[str, Any]) -> tuple[int, Any]:
        return (400, {}) if "chat_template_kwargs" in body else by_draft(body)

    server.reply = strict
    judge = judge_of(server, attempts=1)
    assert [v.aligned for v in judge.judge(PAIRS[:2])] == [True, False]
    judge.judge(PAIRS[:1])
    assert "chat_template_kwargs" not in server.asked[-1]


def test_failed_pairs_are_rejected_and_a_lost_judge_stops_or_rejects(
    server: Server,
) -> None:
    server.reply = lambda body: (500, {})
    stops = judge_of(server, attempts=1)
    failed = stops.judge(PAIRS[:1] * (FAILURES - 1))
    assert all(verdict.failed and not verdict.aligned for verdict in failed)
    server.reply = by_draft
    stops.judge(PAIRS[:1])  # an answer forgives
    server.reply = lambda body: (500, {})
    stops.judge(PAIRS[:1] * (FAILURES - 1))
    with pytest.raises(JudgeError, match="500"):
        stops.judge(PAIRS[:1])
    rejects = judge_of(server, attempts=1, lost="reject")
    rejects.judge(PAIRS[:1] * FAILURES)
    num_requests = len(server.asked)
    server.reply = by_draft
    [verdict] = rejects.judge(PAIRS[:1])
    assert verdict.failed and not verdict.aligned and len(server.asked) == num_requests


def test_a_refused_request_ends_the_run(server: Server) -> None:
    server.reply = lambda body: (401, {"error": "no key"})
    with pytest.raises(JudgeError, match="401"):
        judge_of(server, attempts=5).judge(PAIRS[:1])
    assert len(server.asked) == 1


def test_silence_is_bounded(server: Server) -> None:
    released = threading.Event()
    server.reply = lambda body: (200, released.wait(30))
    began = time.monotonic()
    [verdict] = judge_of(server, attempts=2, timeout=0.2).judge(PAIRS[:1])
    released.set()
    assert verdict.failed and time.monotonic() - began < 10


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(JudgeError, match="list"):
        ServedJudge(f"http://127.0.0.1:{port}", str, timeout=5)
    with pytest.raises(SettingError, match="address"):
        ServedJudge("localhost:8000", str)


def test_a_run_with_a_judge_on_a_port(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    server.reply = by_draft
    port = server.server_address[1]
    words = f"run --dataset tiny:1 --use_spec --temperature 1.5 --judge_port {port}"
    words += f" --max_tokens_len 120 --output {tmp_path / 'run'} --device cpu"
    assert main(words.split()) == 0
    assert server.asked and "one-judge" in {body["model"] for body in server.asked}
    assert main([*words.split(), "--judge_url", server.url]) == 2
    assert "judge_url" in capsys.readouterr().err


def test_ctrl_c_does_not_wait_for_a_silent_judge(server: Server) -> None:
    asked, released = threading.Event(), threading.Event()

    def silent(body: dict[str, Any]) -> tuple[int, Any]:
        asked.set()
        return 200, released.wait(60)

    server.reply = silent
    words = "generate --mode lr --temperature 1.5 --device cpu --judge_url"
    program = subprocess.Popen(
        [sys.executable, "-m", "lr", *words.split(), server.url],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not asked.wait(0.1):
            assert program.poll() is None
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(timeout=30) == 130  # far below the silence
    finally:
        released.set()
        program.kill()
