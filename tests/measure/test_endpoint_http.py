"""Requests: what is tried again, how long, what is not, and what is said in the end."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from endpoint_kit import PLAIN, QUICK, client, endpoint, serving
from fake_server import FakeServer, Fault

from lr.errors import SettingError
from lr.measure.endpoint.address import Address, Retry
from lr.measure.endpoint.client import (
    Client,
    Endpoint,
    EndpointError,
    Refused,
    RequestNews,
    Restart,
    StreamPiece,
)
from lr.registry import is_served

BODY = {"model": "tiny-target", "prompt": "So", "max_tokens": 3, "temperature": 0}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(PLAIN) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "server", "model"),
    [
        (
            "openai:http://localhost:8000/Qwen/Qwen3-32B",
            "http://localhost:8000",
            "Qwen/Qwen3-32B",
        ),
        (
            "openai:http://localhost:8000/v1/Qwen/Qwen3-32B",
            "http://localhost:8000",
            "Qwen/Qwen3-32B",
        ),
        ("openai:https://host/gate/v1/name", "https://host:443/gate", "name"),
        (
            "openai:http://localhost:8000//models/x",
            "http://localhost:8000",
            "/models/x",
        ),
        ("openai:http://[::1]:8000", "http://[::1]:8000", None),
        ("openai:http://localhost:8000/v1/", "http://localhost:8000", None),
    ],
)
def test_addresses(text: str, server: str, model: str | None) -> None:
    address = Address.parse(text)
    assert (address.server, address.model) == (server, model)
    assert is_served(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("openai:localhost:8000/name", "is not the address of a served model"),
        ("", "is not the address of a served model"),
        ("Qwen/Qwen3-8B", "is not the address of a served model"),
        ("openai:ftp://host/name", "is not the address of a served model"),
        ("openai:http:///name", "is not the address of a served model"),
        ("openai:http://host:123456/name", "impossible port"),
        ("openai:http://me@host/name", "api_key"),
        ("openai:http://[::1:8000/name", "is not an address"),
        ("openai:http://\u2603.invalid:8000/name", "is not an address"),
        ("openai:http://ho\x01st/name", "is not an address"),
        ("openai:http://host:0/name", "impossible port"),
        ("http://localhost:8000/name", "is written openai:http://localhost:8000/name"),
    ],
)
def test_what_is_no_address(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Address.parse(text)


@pytest.mark.parametrize(
    "fault", [Fault(429, whole=True), Fault(500, whole=True), Fault(503, whole=True)]
)
def test_a_busy_or_broken_server_is_asked_again(
    server: FakeServer, fault: Fault
) -> None:
    server.faults = [fault, fault]
    answer = client(server).post(BODY)
    assert answer["choices"][0]["text"]
    assert len(server.log.bodies) == 3


@pytest.mark.parametrize("header", ["0.3", "date"])
def test_the_server_says_how_long_to_wait(server: FakeServer, header: str) -> None:
    """A date has whole seconds: two seconds ahead is at least one away, and the longest
    pause allowed here cuts it to 0.3 s.
    """
    value = header if header != "date" else formatdate(time.time() + 2, usegmt=True)
    server.faults = [Fault(429, headers=(("Retry-After", value),), whole=True)]
    client(server, Retry(timeout=1, pause=0.0, longest=0.3)).post(BODY)
    first, second = server.log.times
    assert second - first >= 0.29


def test_pauses_double_up_to_the_longest() -> None:
    retry = Retry(pause=0.5, longest=3.0)
    assert [retry.wait(attempt) for attempt in (1, 2, 3, 4, 5)] == [
        0.5,
        1.0,
        2.0,
        3.0,
        3.0,
    ]
    assert (retry.wait(1, 2.5), retry.wait(1, 600.0), retry.wait(1, -1.0)) == (
        2.5,
        3.0,
        0.0,
    )
    for nonsense in ("nan", "inf", "1e400"):
        assert retry.wait(2, float(nonsense)) == 1.0


def test_attempts_come_to_an_end(server: FakeServer) -> None:
    server.faults = [Fault(500, whole=True)] * 9
    with pytest.raises(
        EndpointError, match=r"answered 500 .*fault 500.*4 times in a row"
    ):
        client(server).post(BODY)
    assert len(server.log.bodies) == QUICK.attempts


def test_a_wrong_request_is_not_repeated(server: FakeServer) -> None:
    server.behave(strict=True)
    with pytest.raises(Refused, match=r"422.*nonsense") as caught:
        client(server).post({**BODY, "nonsense": 1})
    assert caught.value.status == 422
    assert len(server.log.bodies) == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_redirects_are_not_followed(server: FakeServer) -> None:
    server.faults = [
        Fault(307, headers=(("Location", "http://localhost:1/"),), whole=True)
    ]
    with pytest.raises(Refused, match="307"):
        client(server).post(BODY)


def test_keys(server: FakeServer) -> None:
    server.behave(api_key="secret")
    with pytest.raises(Refused, match=r"401.*--api_key") as caught:
        client(server).post(BODY)
    assert "secret" not in str(caught.value)
    assert client(server, api_key="secret").post(BODY)["choices"]
    with pytest.raises(Refused, match="401"):
        endpoint(server)


def test_nobody_there() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        nobody = Client(
            Address.parse(f"openai:http://127.0.0.1:{taken.getsockname()[1]}/x"),
            retry=QUICK,
        )
        with pytest.raises(
            EndpointError, match=r"cannot be reached .*Is the server up"
        ):
            nobody.post(BODY)
    with pytest.raises(EndpointError, match="cannot be reached"):
        Client(Address.parse("openai:http://nonsuch.invalid:80/x"), retry=QUICK).post(
            BODY
        )


def test_silence_is_not_waited_through_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address.parse(f"openai:http://127.0.0.1:{mute.getsockname()[1]}/x")
        with pytest.raises(EndpointError, match=r"silent for 0.1 seconds, 2 times"):
            Client(address, retry=Retry(timeout=0.1, attempts=2, pause=0.0)).post(BODY)


def test_what_is_no_json(server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as raw:
        address = Address.parse(f"openai:http://127.0.0.1:{raw.getsockname()[1]}/x")

        def answer() -> None:
            for _ in range(2):
                connection, _ = raw.accept()
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
                )
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(
                    65536
                ):  # what is not read would break the connection off
                    pass
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(EndpointError, match=r"no JSON \('<html>'\), 2 times"):
            Client(address, retry=Retry(timeout=1, attempts=2, pause=0.0)).post(BODY)


def gather(
    server: FakeServer, retry: Retry = QUICK, **body: object
) -> list[RequestNews]:
    """All messages about one streamed request."""
    messages: list[RequestNews] = []
    over = threading.Event()

    def deliver(message: RequestNews) -> None:
        messages.append(message)
        if isinstance(message, Exception) or (
            isinstance(message, StreamPiece) and message.finish
        ):
            over.set()

    endpoint(server, retry).begin(
        "So", {"max_tokens": 12, "temperature": 0, **body}, deliver
    )
    assert over.wait(60)
    return messages


def text_of(messages: list[RequestNews]) -> str:
    """The text after the last restart."""
    text = ""
    for message in messages:
        text = (
            ""
            if isinstance(message, Restart)
            else text + (message.text if isinstance(message, StreamPiece) else "")
        )
    return text


@pytest.mark.parametrize("what", ["cut", "reset", "garbage", "error", "silence"])
@pytest.mark.parametrize("after", [0, 5])
def test_a_broken_stream_begins_again(
    server: FakeServer, what: str, after: int
) -> None:
    whole = text_of(gather(server))
    assert len(whole.split()) > 3
    server.faults = [Fault(what=what, after=after), Fault(what=what, after=after)]
    retry = Retry(timeout=0.5 if what == "silence" else 60, attempts=50, pause=0.0)
    messages = gather(server, retry)
    assert text_of(messages) == whole
    restarts = sum(isinstance(message, Restart) for message in messages)
    assert restarts == 2 or (
        what == "silence" and restarts > 2
    )  # on a very slow machine
    assert not server.faults


def test_a_stream_that_keeps_breaking_is_an_error(server: FakeServer) -> None:
    server.faults = [Fault(after=3)] * 9
    last = gather(server)[-1]
    assert isinstance(last, EndpointError)
    assert "ended a stream in the middle of an answer, 4 times in a row" in str(last)


@pytest.mark.parametrize("manners", [{"usage": True}, {"done": False}])
def test_streams_end_in_different_ways(
    server: FakeServer, manners: dict[str, bool]
) -> None:
    whole = text_of(gather(server))
    server.behave(**manners)
    messages = gather(server, stream_options={"include_usage": True})
    assert text_of(messages) == whole
    if manners.get("usage"):
        last = messages[-1]
        assert (
            isinstance(last, StreamPiece)
            and last.usage is not None
            and last.usage.completion == 12
        )


def test_a_server_that_does_not_stream_answers_in_one_piece(server: FakeServer) -> None:
    whole = text_of(gather(server))
    server.behave(streams=False)
    over, messages = threading.Event(), list[RequestNews]()

    def deliver(message: RequestNews) -> None:
        messages.append(message)
        over.set()

    endpoint(server).begin(
        "So", {"max_tokens": 12, "temperature": 0}, deliver, stream=False
    )
    assert over.wait(60)
    assert [type(message) for message in messages] == [StreamPiece] and text_of(
        messages
    ) == whole


def test_cancelling_hangs_up(server: FakeServer) -> None:
    server.behave(pause=0.05)
    heard = threading.Event()
    messages: list[RequestNews] = []

    def deliver(message: RequestNews) -> None:
        messages.append(message)
        heard.set()

    call = endpoint(server).begin("So", {"max_tokens": 200, "temperature": 0}, deliver)
    assert heard.wait(60)
    call.cancel()
    call.cancel()
    deadline = time.monotonic() + 5
    while server.log.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (server.log.open, server.log.abandoned, server.log.ended) == (0, 1, 0)
    assert all(
        isinstance(message, StreamPiece) and message.finish is None
        for message in messages
    )


def test_cancelling_ends_a_wait_between_attempts(server: FakeServer) -> None:
    server.faults = [Fault(503, headers=(("Retry-After", "60"),), whole=True)] * 2
    one = client(server, Retry(pause=0.0, longest=60.0))
    future = one.start(one.retried(lambda: one.fetch(BODY)))
    while not server.log.bodies:
        time.sleep(0.01)
    future.cancel()
    with pytest.raises(CancelledError):
        future.result(10)
    assert len(server.log.bodies) == 1


def interrupted(then: Callable[[], object]) -> None:
    """Ask a server that says nothing and does `then` as soon as it has the request: the
    request is interrupted, and the client hangs up.
    """
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        address = Address.parse(f"openai:http://127.0.0.1:{mute.getsockname()[1]}/x")
        hung_up: list[bytes] = []

        def listen() -> None:
            connection, _ = mute.accept()
            connection.settimeout(60)
            connection.recv(65536)
            then()
            while data := connection.recv(65536):
                pass
            hung_up.append(data)
            connection.close()

        thread = threading.Thread(target=listen)
        thread.start()
        one = Client(address, retry=Retry(timeout=600))
        with pytest.raises(KeyboardInterrupt):
            one.post(BODY)
        thread.join(60)
        assert hung_up == [b""]


def test_ctrl_c_ends_a_wait() -> None:
    asking = threading.main_thread().ident or 0
    interrupted(lambda: signal.pthread_kill(asking, signal.SIGINT))


def test_ctrl_c_just_as_a_request_begins_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interrupt meets the thread that asks before it waits; the server has the
    request."""
    begin, arrived = Client.start, threading.Event()

    def begin_and_be_interrupted(self: Client, work: Any) -> None:
        begin(self, work)
        assert arrived.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "start", begin_and_be_interrupted)
    interrupted(arrived.set)


def test_slow_bytes_are_not_an_answer() -> None:
    """A byte now and then is silence all the same: an answer has a time to be whole
    in."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        address = Address.parse(f"openai:http://127.0.0.1:{slow.getsockname()[1]}/x")

        def drip() -> None:
            connection, _ = slow.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
            with suppress(OSError):
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.01)
            connection.close()

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(EndpointError, match=r"silent for 0.3 seconds\."):
            Client(address, retry=Retry(timeout=0.3, attempts=1)).post(BODY)


def test_one_connection_is_kept(server: FakeServer) -> None:
    one = client(server)
    for _ in range(3):
        one.post(BODY)
    assert len(set(server.log.peers)) == 1


def test_proxies_of_the_environment_are_not_used(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert client(server).post(BODY)["choices"]


def test_which_models_there_are(server: FakeServer) -> None:
    assert endpoint(server).name == "tiny-target"
    with pytest.raises(
        SettingError,
        match=r"has no model 'other'; it has tiny-target, tiny-draft, tiny-judge",
    ):
        Endpoint.open(Client(Address.parse(server.address("other")), retry=QUICK))
    with pytest.raises(
        SettingError, match="names no model, and it has tiny-target, tiny-draft"
    ):
        Endpoint.open(Client(Address.parse(server.address("")), retry=QUICK))
    server.behave(models=("only",))
    assert (
        Endpoint.open(Client(Address.parse(server.address("")), retry=QUICK)).name
        == "only"
    )
    server.behave(models=None)
    with pytest.raises(SettingError, match="does not list what it has"):
        Endpoint.open(Client(Address.parse(server.address("")), retry=QUICK))


@pytest.mark.parametrize("key", ["", "secret\r\nX: y", "schlüssel"])
def test_a_key_that_no_header_holds_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingError, match="no header may hold") as caught:
        Client(Address.parse("openai:http://localhost:1/name"), key)
    assert "secret" not in str(caught.value) and "schl" not in str(caught.value)


def test_an_answer_that_is_complete_is_not_waited_for() -> None:
    """Pieces after its last one hold nothing but, perhaps, the usage."""

    def way(handler: Any) -> None:
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        )
        for number in range(2000):
            piece = {"choices": [{"text": "a", "finish_reason": "length"}], "n": number}
            handler.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            handler.wfile.flush()
            time.sleep(0.01)

    with serving(PLAIN) as server:
        asking = Client(Address.parse(server.address()), None, Retry(timeout=0.3))
        got: list[Any] = []
        server.misbehave, server.everywhere = way, True
        Endpoint(asking, "any").begin("text", {}, got.append).result(timeout=15)
    assert [one.finish for one in got] == ["length"]
