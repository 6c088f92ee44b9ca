"""HTTP to one server, with patience: what is worth another try is tried again, what is not says why.

Three kinds of failure. *Busy* (429, 503): the server says, or we guess, how long to wait. *Broken* (no connection, silence, another
5xx, an answer that is torn or no JSON): tried again after a pause that doubles. *Refused* (any other 4xx, and redirects): the request
is wrong, and trying again would not mend it. A `Call` is a request that can be cancelled from another thread: the connection is shut,
which servers take as the end of the request. Standard library only. Read next: `completions.py`, for what is said over it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar

from lr.endpoint.address import Address
from lr.errors import LRError
from lr.types import require

CONNECT_SECONDS = 10.0
LONGEST_LINE = 1 << 22
"""Bytes of one line of a stream; more is no completion of ours."""
_Made = TypeVar("_Made")


class EndpointError(LRError):
    """A server cannot be reached, refuses a request, breaks off, or answers with what is no answer."""


class Cancelled(Exception):
    """The call was cancelled from outside. Nobody waits for its answer."""


class Refused(EndpointError):
    """The server refuses the request itself. `status` is the HTTP status, `detail` what it says about it."""

    def __init__(self, message: str, status: int, detail: str) -> None:
        super().__init__(message)
        self.status, self.detail = status, detail

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.status, self.detail)


class Broken(Exception):
    """One attempt failed, and another may do better. `wait`: seconds that the server asks for; `status`: of its answer, if it gave one."""

    def __init__(self, why: str, wait: float | None = None, status: int | None = None) -> None:
        super().__init__(why)
        self.wait, self.status = wait, status

    @property
    def busy(self) -> bool:
        """Whether the server has merely too much to do."""
        return self.status in (429, 503)


@dataclass(frozen=True)
class Patience:
    """`silence`: seconds without a byte after which an attempt counts as broken. `attempts` in all; before the second `pause` seconds
    are waited, before each further one twice as long, never longer than `longest`."""

    silence: float = 120.0
    attempts: int = 5
    pause: float = 0.5
    longest: float = 30.0

    def __post_init__(self) -> None:
        require(self.silence > 0, "server_timeout", self.silence, "a number of seconds > 0")
        require(self.attempts >= 1, "attempts", self.attempts, "a whole number >= 1")
        require(0 <= self.pause <= self.longest, "pause", self.pause, f"seconds, 0 to {self.longest:g}")

    def before(self, attempt: int, wait: float | None) -> float:
        """Seconds to wait before attempt number `attempt` (from 1 on the second), when the server asks for `wait`."""
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
    """Requests to one server. May be used by several threads at once: every request has its own connection."""

    def __init__(self, address: Address, api_key: str | None = None, patience: Patience | None = None) -> None:
        self.address, self.patience = address, patience or Patience()
        self._headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def post(self, path: str, body: dict[str, Any], call: Call | None = None) -> Any:
        """The JSON answer to `body`. Raises `EndpointError`, or `Cancelled`."""
        return self.patiently(lambda call: self.attempt_json(path, body, call), call or Call())

    def attempt_json(self, path: str, body: dict[str, Any] | None, call: Call) -> Any:
        """The JSON behind a path (the answer to `body`, where there is one), one attempt. Raises `Broken`, `Refused` or `Cancelled`."""
        with _Exchange(self, path, body, call) as response:
            return parse_json(response.read().decode("utf-8", "replace"))

    def events(self, path: str, body: dict[str, Any], call: Call) -> Iterator[str]:
        """The data of server-sent events, one attempt. Raises `Broken`, `Refused` or `Cancelled`; closes its connection at the end."""
        with _Exchange(self, path, body, call) as response:
            while line := response.readline(LONGEST_LINE):
                call.check()
                field, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
                if field == "data":
                    yield value.removeprefix(" ")
            call.check()

    def patiently(self, attempt: Callable[[Call], _Made], call: Call, attempts: int | None = None) -> _Made:
        """What `attempt` makes, tried again as long as it is `Broken`. Raises `EndpointError` when patience is at its end."""
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
        connection = kind(self.address.host, self.address.port, timeout=min(CONNECT_SECONDS, self.patience.silence))
        connection.connect()
        connection.sock.settimeout(self.patience.silence)
        return connection

    def headers(self, body: bytes | None) -> dict[str, str]:
        return self._headers if body is None else {**self._headers, "Content-Type": "application/json"}


class _Exchange:
    """One request and its response, as a context: everything that can go wrong inside becomes one of the three kinds."""

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
                "GET" if self.body is None else "POST", self.path, self.body, self.client.headers(self.body)
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
        if not isinstance(error, (OSError, HTTPException, ValueError)) or isinstance(error, LRError):
            return error
        if self.call.cancelled:
            return Cancelled()
        if isinstance(error, TimeoutError):
            return Broken(f"was silent for {self.client.patience.silence:g} seconds")
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return Broken(f"cannot be reached ({error.strerror or error})")
        return Broken(f"broke off ({type(error).__name__}: {error})")


def failure(address: Address, path: str, response: HTTPResponse) -> Exception:
    """What a status from 300 on means: `Broken` for the server's troubles, `Refused` for ours."""
    status, detail = response.status, _detail(response.read(LONGEST_LINE).decode("utf-8", "replace"))
    said = f"answered {status} {response.reason}" + (f" ({detail})" if detail else "")
    if status == 429 or status >= 500:
        return Broken(said, _seconds(response.headers.get("Retry-After")), status)
    if status in (401, 403):
        said += "; give the key with api_key (--api_key, or LR_API_KEY in the environment)"
    return Refused(f"{address.server}{path} {said}.", status, detail)


def parse_json(text: str) -> Any:
    """JSON, or `Broken`."""
    try:
        return json.loads(text)
    except ValueError:
        raise Broken(f"sent what is no JSON ({text[:80]!r})") from None


def _detail(text: str) -> str:
    """The message in the body of an error, wherever servers put it."""
    try:
        value = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:200]
    for name in ("error", "detail", "message"):
        while isinstance(value, dict) and name in value:
            value = value[name]
    return str(value)[:500]


def _seconds(header: str | None) -> float | None:
    """`Retry-After`: seconds, or a date."""
    if header is None:
        return None
    with suppress(ValueError):
        return float(header)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None
