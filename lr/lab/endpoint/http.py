"""HTTP to one server, with patience: what is worth another try is tried again, what is not says
why.

A `Call` is a request that can be cancelled from another thread: the connection is shut, which
servers take as the end of the request. Every request has a connection of its own. Standard library
only. What failures there are: `failures.py`. Read next: `completions.py`, for what is said over it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar

from lr.errors import LRError
from lr.lab.endpoint.address import Address
from lr.lab.endpoint.failures import (
    LONGEST_ANSWER,
    Broken,
    Cancelled,
    EndpointError,
    failure,
    parse_json,
)
from lr.types import require

CONNECT_SECONDS = 10.0
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Patience:
    """`silence`: seconds without a byte after which an attempt counts as broken. `attempts` in all;
    before the second `pause` seconds are waited, before each further one twice as long, never
    longer than `longest`."""

    silence: float = 120.0
    attempts: int = 5
    pause: float = 0.5
    longest: float = 30.0

    def __post_init__(self) -> None:
        require(self.silence > 0, "server_timeout", self.silence, "a number of seconds > 0")
        require(self.attempts >= 1, "attempts", self.attempts, "a whole number >= 1")
        require(
            0 <= self.pause <= self.longest, "pause", self.pause, f"seconds, 0 to {self.longest:g}"
        )

    def before(self, attempt: int, wait: float | None) -> float:
        """Seconds to wait before attempt number `attempt` (from 1 on the second), when the server
        asks for `wait`.
        """
        guessed: float = self.pause * 2.0 ** (attempt - 1)
        return min(self.longest, guessed if wait is None else max(wait, 0.0))


class Call:
    """A request in flight. `cancel` may come from any thread, at any time, more than once."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.attempts = 0

    @property
    def cancelled(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        """End the request: whoever reads from it gets `Cancelled`."""
        with self._lock:
            self._over.set()
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def hold(self, connection: HTTPConnection) -> None:
        """This connection is what `cancel` shuts."""
        with self._lock:
            self._socket = connection.sock
        self.check()

    def let_go(self) -> None:
        with self._lock:
            self._socket = None

    def check(self) -> None:
        if self.cancelled:
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait, unless cancelled."""
        if self._over.wait(seconds):
            raise Cancelled


class Client:
    """Requests to one server. May be used by several threads at once: every request has its own
    connection.
    """

    def __init__(
        self, address: Address, api_key: str | None = None, patience: Patience | None = None
    ) -> None:
        self.address, self.patience = address, patience or Patience()
        self._headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def post(self, path: str, body: dict[str, Any], call: Call | None = None) -> Any:
        """The JSON answer to `body`. Raises `EndpointError`, or `Cancelled`."""
        return self.patiently(lambda call: self.attempt_json(path, body, call), call or Call())

    def attempt_json(self, path: str, body: dict[str, Any] | None, call: Call) -> Any:
        """The JSON behind a path (the answer to `body`, where there is one), one attempt. Raises
        `Broken`, `Refused` or `Cancelled`.
        """
        with _Exchange(self, path, body, call) as response:
            return parse_json(response.read().decode("utf-8", "replace"))

    def events(self, path: str, body: dict[str, Any], call: Call) -> Iterator[str]:
        """The data of server-sent events, one attempt. Raises `Broken`, `Refused` or `Cancelled`;
        closes its connection at the end.
        """
        with _Exchange(self, path, body, call) as response:
            while line := response.readline(LONGEST_ANSWER):
                call.check()
                field, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
                if field == "data":
                    yield value.removeprefix(" ")
            call.check()

    def patiently(
        self, attempt: Callable[[Call], _Made], call: Call, attempts: int | None = None
    ) -> _Made:
        """What `attempt` makes, tried again as long as it is `Broken`. Raises `EndpointError` when
        patience is at its end.
        """
        most = self.patience.attempts if attempts is None else attempts
        while True:
            call.check()
            call.attempts += 1
            try:
                return attempt(call)
            except Broken as error:
                call.check()
                if call.attempts >= most:
                    tried = "" if most == 1 else f", {call.attempts} times in a row"
                    raise EndpointError(
                        f"{self.address.server} {error}{tried}. Is the server up, and is this its address?"
                    ) from error
                call.sleep(self.patience.before(call.attempts, error.wait))

    def open(self) -> HTTPConnection:
        """A connection; its reads give up after `patience.silence` seconds."""
        kind = HTTPSConnection if self.address.scheme == "https" else HTTPConnection
        connection = kind(
            self.address.host,
            self.address.port,
            timeout=min(CONNECT_SECONDS, self.patience.silence),
        )
        connection.connect()
        connection.sock.settimeout(self.patience.silence)
        return connection

    def headers(self, body: bytes | None) -> dict[str, str]:
        return (
            self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        )


class _Exchange:
    """One request and its response, as a context: everything that can go wrong inside becomes one
    of the three kinds.
    """

    def __init__(self, client: Client, path: str, body: dict[str, Any] | None, call: Call) -> None:
        self.client, self.call = client, call
        self.path = client.address.base + path
        self.body = None if body is None else json.dumps(body).encode()
        self.connection: HTTPConnection | None = None

    def __enter__(self) -> HTTPResponse:
        try:
            connection = self.connection = self.client.open()
            self.call.hold(connection)
            connection.request(
                "GET" if self.body is None else "POST",
                self.path,
                self.body,
                self.client.headers(self.body),
            )
            response = connection.getresponse()
            if response.status >= 300:  # a redirect would lose the body, and perhaps the key
                raise failure(self.client.address, self.path, response)
            return response
        except BaseException as error:
            self._close()
            raise self._kind(error) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close()
        if error is not None:
            meant = self._kind(error)
            if meant is not error:
                raise meant from error

    def _close(self) -> None:
        self.call.let_go()
        if self.connection is not None:
            self.connection.close()

    def _kind(self, error: BaseException) -> BaseException:
        if not isinstance(error, (OSError, HTTPException, ValueError)) or isinstance(
            error, LRError
        ):
            return error
        if self.call.cancelled:
            return Cancelled()
        if isinstance(error, TimeoutError):
            return Broken(f"was silent for {self.client.patience.silence:g} seconds")
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return Broken(f"cannot be reached ({error.strerror or error})")
        return Broken(f"broke off ({type(error).__name__}: {error})")
