"""A judge behind an OpenAI-compatible server: what is asked, what is read, what happens
when the server fails. The server is a small one of our own, on this machine."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import log, nan
from pathlib import Path

import pytest
from tests_root import rows

from lr.commands.cli import main
from lr.errors import NumericalError, SettingError
from lr.measure import judge_server
from lr.measure.judge_server import FAILURES, JudgeError, ServedJudge, read_choice
from lr.spec.verifiers.base import Pair
from lr.types import Finish, Step


def choice(text, **more):
    return {"message": {"content": text}, **more}


def said(text, **more):
    return 200, {"choices": [choice(text, **more)]}


class Server(ThreadingHTTPServer):
    """Answers with `reply`; `asked` holds the bodies of all requests, `keys` their
    Authorization, `paths` where they went."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = ["one-judge"]
        self.asked = []
        self.keys = []
        self.paths = []
        self.headers = {}
        self.reply = lambda body: said("[aligned]")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.send(*self.server.reply(body))

    def parse_request(self):
        parsed = super().parse_request()
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.paths.append(self.path)
        return parsed

    def send(self, status, value):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in self.server.headers.items():
            self.send_header(name, content)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server():
    with Server() as running:
        threading.Thread(
            target=running.serve_forever, args=(0.01,), daemon=True
        ).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(judge_server, "FIRST_PAUSE", 0.0)


def judge_of(server, **settings):
    return ServedJudge(server.url, lambda tokens: bytes(tokens).decode(), **settings)


def pair(draft, target):
    steps = (Step(tuple(text.encode()), Finish.BOUNDARY) for text in (draft, target))
    return Pair((), *steps)


PAIRS = [pair("x = 1", "so x = 1"), pair("x = 2", "so x = 1"), pair("Same.", "same. ")]


def by_draft(body):
    question = body["messages"][0]["content"]
    return said("[unaligned]" if "x = 2" in question else "[aligned]")


def test_one_request_per_pair_and_none_for_equal_texts(server):
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
    "row", rows("verdicts.jsonl"), ids=lambda row: row["answer"][:30]
)
def test_only_a_clear_word_accepts(row):
    verdict = read_choice(choice(row["answer"]))
    assert row["aligned"] == (None if verdict is None else verdict.aligned)


def written(*tokens):
    """Log-probabilities as a server gives them; the first token of each was written."""
    content = [
        {"token": next(iter(chances)), "top_logprobs": [
            {"token": token, "logprob": log(chance)} for token, chance in chances.items()
        ]}
        for chances in tokens
    ]  # fmt: skip
    return {"content": content}


@pytest.mark.parametrize(
    "answer, logprobs, score",
    [
        (
            "[aligned]",
            written({"[": 1}, {"al": 0.6, "un": 0.2, "as": 0.1}, {"igned]": 1}),
            0.75,
        ),
        ("Unaligned", written({"Un": 0.6, "Al": 0.3, " al": 0.1}, {"aligned": 1}), 0.4),
        ("[aligned]", written({"[al": 0.4, "[un": 0.6}, {"igned]": 1}), 0.4),
        ("[aligned]", written({"<think>": 1}, {"al": 0.6, "un": 0.2}), None),
        ("Not aligned", written({"Not": 1}, {" aligned": 0.9, " un": 0.1}), None),
        (
            "[aligned]",
            {"content": [{"token": "[aligned]", "top_logprobs": None}]},
            None,
        ),
    ],
)
def test_a_probability_is_the_score(answer, logprobs, score):
    verdict = read_choice(choice(answer, logprobs=logprobs))
    assert verdict.score == (None if score is None else pytest.approx(score))
    if score is not None:
        assert verdict.aligned == (score >= 0.5)


def test_a_probability_that_is_not_a_number_is_an_error():
    logprobs = written({"aligned": 1})
    logprobs["content"][0]["top_logprobs"][0]["logprob"] = nan
    with pytest.raises(NumericalError):
        read_choice(choice("aligned", logprobs=logprobs))


@pytest.mark.parametrize(
    "reply",
    [
        said(None),
        said(None, reasoning_content="They look [aligned]"),
        said("<think>Both say [aligned]", finish_reason="length"),
        said("I cannot tell."),
        (200, b"[" * 100_000),
        (200, b'{"choices": {"0": 1}}'),
        (200, {"error": {"message": "no slot"}}),
    ],
)
def test_a_judge_without_a_verdict_is_lost(server, reply):
    """Such an answer is no "no": it is asked for again, and three pairs in a row end the
    run."""
    server.reply = lambda body: reply
    judge = judge_of(server, attempts=2)
    [verdict] = judge.judge(PAIRS[:1])
    assert verdict.failed and not verdict.aligned and len(server.asked) == 2
    with pytest.raises(JudgeError, match="verdict"):
        judge.judge(PAIRS[:1] * (FAILURES - 1))


def test_the_judge_is_named_where_a_server_has_several(server):
    server.models = ["a", "b"]
    with pytest.raises(SettingError, match="judge_model"):
        judge_of(server)
    judge_of(server, model="b").judge(PAIRS[:1])
    assert server.asked[0]["model"] == "b"
    server.models = []
    with pytest.raises(SettingError, match="lists"):
        judge_of(server)
    with pytest.raises(SettingError, match="judge_model"):
        judge_of(server, model="\udcff")
    server.reply = lambda body: (500, {"detail": "cannot load"})
    with pytest.raises(JudgeError, match=r"cannot load.*'b'"):
        judge_of(server, model="b", attempts=1).judge(PAIRS[:1] * FAILURES)


def test_a_busy_server_is_asked_again(server):
    replies = [(503, {}), (200, "no answer"), said("[aligned]")]
    server.reply = lambda body: replies.pop(0)
    assert judge_of(server, attempts=3).judge(PAIRS[:1])[0].aligned and not replies


@pytest.mark.parametrize("header", ["0.1", "1", "٣", "-1", "soon", "9" * 400])
def test_a_busy_server_says_when(server, monkeypatch, header):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    judge = judge_of(server, attempts=9, timeout=50)
    monkeypatch.setattr(judge_server, "FIRST_PAUSE", 0.5)
    monkeypatch.setattr(judge_server.asyncio, "sleep", sleep)
    server.headers = {"Retry-After": header.encode().decode("latin-1")}
    server.reply = lambda body: (429, {})
    assert judge.judge(PAIRS[:1])[0].failed
    usual = [0.5, 1, 2, 4, 8, 16, 32, 50]
    expected = {"1": [1.0] * 8, "٣": [3.0] * 8, "9" * 400: [50] * 8}
    assert pauses == expected.get(header, usual)


@pytest.mark.parametrize(
    "status, refused",
    [
        (400, ["chat_template_kwargs"]),
        (422, ["logprobs"]),
        (400, ["max_tokens", "temperature"]),
    ],
)
def test_a_server_gets_the_fields_that_it_takes(server, status, refused):
    def strict(body):
        return (status, {}) if set(refused) & set(body) else by_draft(body)

    server.reply = strict
    judge = judge_of(server, attempts=1)
    assert [v.aligned for v in judge.judge(PAIRS[:2])] == [True, False]
    num_requests = len(server.asked)
    judge.judge(PAIRS[:1])
    assert len(server.asked) == num_requests + 1, "what it takes is kept"
    assert ("chat_template_kwargs" in server.asked[-1]) == (refused == ["logprobs"])


def test_a_pair_too_long_for_the_server_is_rejected_alone(server):
    def short(body):
        too_long = "x = 2" in body["messages"][0]["content"]
        return (400, {"message": "context length"}) if too_long else said("[aligned]")

    server.reply = short
    judge = judge_of(server)
    judge.judge(PAIRS[:1])
    long, fits = judge.judge([PAIRS[1], PAIRS[0]])
    assert long.failed and "context" in long.why and fits.aligned
    assert "logprobs" in server.asked[-1], "its fields were not to blame"


def test_a_lost_judge_stops_the_run_or_rejects(server):
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


def test_a_refused_request_ends_the_run(server):
    server.reply = lambda body: (401, {"error": "no key"})
    with pytest.raises(JudgeError, match="401"):
        judge_of(server, attempts=5).judge(PAIRS[:1])
    assert len(server.asked) == 1


def test_a_silent_server_is_not_asked_again(server):
    """It may be working: another request would wait behind the first one."""
    released = threading.Event()
    server.reply = lambda body: (200, released.wait(30))
    began = time.monotonic()
    [verdict] = judge_of(server, attempts=2, timeout=0.2).judge(PAIRS[:1])
    released.set()
    assert verdict.failed and time.monotonic() - began < 10
    assert len(server.asked) == 1


def test_proxies_are_for_other_machines(server, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there
    assert judge_of(server).judge(PAIRS[:1])[0].aligned
    monkeypatch.setenv("HTTP_PROXY", server.url)
    far = ServedJudge("http://judge.invalid:8000/v1/", str)
    assert far.model == "one-judge"
    assert server.paths[-1] == "http://judge.invalid:8000/v1/models"
    monkeypatch.setenv("HTTP_PROXY", "ftp://name:word@proxy")
    with pytest.raises(SettingError, match="PROXY") as caught:
        ServedJudge("http://judge.invalid:8000", str)
    assert "word" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.delenv("HTTP_PROXY")
    monkeypatch.setenv("SSL_CERT_FILE", "nowhere.pem")
    with pytest.raises(SettingError, match="SSL_CERT_FILE"):
        ServedJudge("https://judge.invalid", str)


def test_a_certificate_of_ones_own_is_named(server, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    file = Path(__file__).with_name("localhost.pem")  # self-made, for a hundred years
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://localhost:{server.server_address[1]}"
    for model in (None, "one-judge"):
        with pytest.raises(JudgeError, match=r"self.signed.*SSL_CERT_FILE"):
            ServedJudge(url, str, model=model).judge(PAIRS[:1])
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    judge = ServedJudge(url, lambda tokens: bytes(tokens).decode())
    assert judge.judge(PAIRS[:1])[0].aligned and server.asked
    with pytest.raises(JudgeError, match=r"mismatch.*SSL_CERT_FILE"):
        ServedJudge(url.replace("localhost", "127.0.0.1"), str)


def test_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(JudgeError, match="list"):
        ServedJudge(f"http://127.0.0.1:{port}", str, timeout=5)
    for url in (
        "localhost:8000",
        "http://[::1",
        "http://a:b",
        "ftp://a",
        "http://\udcff",
    ):
        with pytest.raises(SettingError, match="address"):
            ServedJudge(url, str)


KEY = "sk-d0n0t/print"
NO_KEYS = [f"{KEY}\nX", f"{KEY}\r{KEY}", f"“{KEY}”", f"'{KEY}'", f'"{KEY}"', f"a {KEY}"]


def echoes(server):
    """Replies that give the key back, one per way in which a request can fail."""

    def key():
        return f"you sent {server.keys[-1]}, with\nno luck"

    return {
        "refused": lambda body: (401, {"error": key()}),
        "broken": lambda body: (500, {"error": key()}),
        "busy": lambda body: (429, key().encode()),
        "unfit": lambda body: (422, {"detail": [{"input": key()}]}),
        "no JSON": lambda body: (200, key().replace("/", "\\/").encode()),
        "no verdict": lambda body: said(key()),
        "unclear": lambda body: said(f"not {key()} aligned"),
        "an odd score": lambda body: said(
            "[aligned]", logprobs={"content": [{"token": key()}]}
        ),
    }


@pytest.mark.parametrize("lost", ["stop", "reject"])
def test_no_message_holds_the_key(server, lost):
    printed = []
    for reply in echoes(server).values():
        server.reply = reply
        judge = judge_of(server, api_key=f" {KEY}\n", attempts=1, lost=lost)
        try:
            for _ in range(FAILURES + 1):
                printed += [verdict.why for verdict in judge.judge(PAIRS[:1])]
        except JudgeError as error:
            printed += traceback.format_exception(error)
        assert server.keys[-1] == f"Bearer {KEY}", "outer white space is no part of it"
    server.models = [f"{KEY}-a", f"{KEY}-b"]
    urls = {server.url: KEY, server.url.replace("//", f"//{KEY}@"): None}
    urls[f"{server.url}?key={KEY}"] = urls["http://127.0.0.1:9"] = KEY
    for url, key in [*urls.items(), *((server.url, no_key) for no_key in NO_KEYS)]:
        with pytest.raises((SettingError, JudgeError)) as caught:
            ServedJudge(url, str, api_key=key)
        printed += traceback.format_exception(caught.value)
    everything = "".join(printed).replace("\\/", "/")
    assert len(printed) > 20 and KEY not in everything


@pytest.fixture
def words(server, tmp_path):
    """A short run that asks the judge."""
    run = "run --dataset tiny:1 --use_spec --temperature 1.5 --max_tokens_len 120"
    return f"{run} --device cpu --output {tmp_path / 'run'} --judge_url {server.url}"


@pytest.mark.parametrize("reply", ["broken", "unclear"])
def test_no_file_of_a_run_holds_the_key(
    server, words, capfd, monkeypatch, tmp_path, reply
):
    monkeypatch.setenv("LR_API_KEY", f"{KEY}\n")
    server.reply = echoes(server)[reply]
    words += " --save_pairs --save_traces --judge_lost reject --judge_attempts 1"
    assert main(words.split()) == 0
    texts = [*capfd.readouterr()]
    texts += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(texts) > 3 and KEY not in "".join(texts)


@pytest.mark.parametrize("key", ["", *NO_KEYS[:3]])
def test_no_refusal_of_a_command_holds_the_key(words, capfd, monkeypatch, key):
    monkeypatch.setenv("LR_API_KEY", key)
    if not key:
        words = words.replace("//", f"//user:{KEY}@")
    with suppress(SystemExit):  # of the parser of flags
        assert main(words.split()) == 2
    assert KEY not in "".join(capfd.readouterr())


def test_a_run_with_a_judge_on_a_port(server, words, cli):
    server.reply = by_draft
    words += f" --judge_port {server.server_address[1]}"
    assert "judge_url" in cli(words, 2).err
    cli(words.replace(f"--judge_url {server.url}", ""))
    assert {body["model"] for body in server.asked} == {"one-judge"}


def test_ctrl_c_does_not_wait_for_a_silent_judge(server):
    asked, released = threading.Event(), threading.Event()

    def silent(body):
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
