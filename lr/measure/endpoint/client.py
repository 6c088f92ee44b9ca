"""Requests to one OpenAI-compatible server, and one served model that completes texts.

An answer arrives as `StreamPiece`s of text and, if the server has them, token ids; the
last one says why it ended. A broken request is sent again after a `Restart`, so no text
is lost or doubled. An error is *Broken* if another attempt may succeed, else *Refused*
(docs/engines.md has the table). Users see `EndpointError`.

Each client has one thread with an event loop, and keeps its connections. `start`
returns a `Future`; cancelling it closes the request's connection, which tells the
server to stop. This module knows no tokenizer and no step. Read next: `probe.py`,
`writer.py`."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from lr.errors import LRError, SettingError
from lr.measure.endpoint.address import Address, Retry

if TYPE_CHECKING:
    import httpx

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
BUSY = (408, 429, 503)  # Statuses of a server that is only overloaded.
CONNECT_SECONDS = 10.0
AT_ONCE = 64  # Requests in flight to one server; further ones wait.
LONGEST_ANSWER = (
    1 << 22
)  # Bytes of an answer or of a line of a stream; our completions are short.
Prompt = str | Sequence[int]
_Made = TypeVar("_Made")


class EndpointError(LRError):
    """No connection, a refused request or a broken answer. `status`: the HTTP status,
    if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Refused(EndpointError):
    """The server refuses the request itself."""


class Broken(Exception):
    """One attempt failed; another may succeed. `wait`: the seconds that the server asks
    for."""

    def __init__(
        self, why: str, wait: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(why)
        self.wait, self.status = wait, status


class Client:
    """Sends requests to one server. Thread-safe."""

    def __init__(
        self, address: Address, api_key: str | None = None, retry: Retry | None = None
    ) -> None:
        if api_key is not None and not (
            api_key.isascii() and api_key.isprintable() and api_key
        ):
            raise SettingError(
                "api_key is empty or has a character that no header may hold, such as a line break."
            )
        import httpx

        self.address, self.retry = address, retry or Retry()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._spent, self._failing_since = 0.0, math.inf
        key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        headers = {
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
        }
        self._http = httpx.AsyncClient(
            base_url=address.server,
            headers=headers | key,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=30),
            verify=address.server.startswith(
                "https"
            ),  # loading certificates takes time
            trust_env=False,  # no proxies, keys or certificates from the environment
        )
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, _stop, self._loop, self._http)
        threading.Thread(
            target=_serve, args=[self._loop], name="requests", daemon=True
        ).start()

    @property
    def spent(self) -> float:
        """Seconds lost to failures: from the first of a series to the next answer."""
        return self._spent + max(0.0, time.monotonic() - self._failing_since)

    @property
    def given_up(self) -> bool:
        """Whether failures have used up the budget."""
        return self.spent > self.retry.budget

    def start(self, work: Coroutine[Any, Any, _Made]) -> Future[_Made]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`. Raises `EndpointError`."""
        return self.wait(self.retried(lambda: self.fetch(body)))

    def wait(self, work: Coroutine[Any, Any, _Made]) -> _Made:
        """Wait for a request; an interrupt (Ctrl-C) cancels it, even before it has
        begun."""
        over = Future[None]()

        async def until_over() -> _Made:
            task = asyncio.ensure_future(work)
            over.add_done_callback(
                lambda _: self._loop.call_soon_threadsafe(task.cancel)
            )
            return await task

        try:
            return self.start(until_over()).result()
        finally:
            over.cancel()

    async def retried(
        self,
        attempt: Callable[[], Awaitable[_Made]],
        *,
        attempts: int | None = None,
        again: Callable[[], object] = lambda: None,
    ) -> _Made:
        """The result of `attempt`, repeated while it is `Broken`. Calls `again` before
        each repeat; raises `EndpointError` after the last."""
        most = attempts or self.retry.attempts
        for number in range(1, most + 1):
            began = time.monotonic()
            try:
                async with self._slots:
                    made = await attempt()
                self._spent, self._failing_since = self.spent, math.inf
                return made
            except Broken as error:
                self._failing_since = min(self._failing_since, began)
                if number == most or self.given_up:
                    tried = "" if number == 1 else f", {number} times in a row"
                    said = f"{self.address.server} {error}{tried}"
                    ask = "Is the server up, and is this its address?"
                    raise EndpointError(f"{said}. {ask}", error.status) from error
                again()
                await asyncio.sleep(self.retry.wait(number, error.wait))
        raise AssertionError("at least one attempt is made")

    async def fetch(self, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer to `body`, or the list of models. Raises `Broken` or
        `Refused`."""
        async with self._exchange(body) as (response, _):
            return parse_json(await _read(response))

    async def pieces(self, body: dict[str, Any]) -> AsyncGenerator[StreamPiece, None]:
        """A completion as a stream, one attempt. Raises `Broken` or `Refused`. A line
        that repeats the last one, has no text or comes after the end does not restart
        the timeout."""
        async with self._exchange(body | {"stream": True}) as (response, limit):
            rest, last, over = b"", "", False
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST_ANSWER:
                    raise Broken(f"sent a line of more than {LONGEST_ANSWER >> 20} MiB")
                for line in lines:
                    name, _, value = (
                        line.decode("utf-8", "replace").rstrip("\r").partition(":")
                    )
                    if name != "data":
                        continue
                    if value.removeprefix(" ") == "[DONE]":
                        return
                    piece = read_piece(parse_json(value))
                    over = over or piece.finish is not None
                    if value != last and not over and (piece.text or piece.ids):
                        limit.reschedule(self._loop.time() + self.retry.timeout)
                    last = value
                    yield piece

    @asynccontextmanager
    async def _exchange(
        self, body: dict[str, Any] | None
    ) -> AsyncIterator[tuple[httpx.Response, asyncio.Timeout]]:
        """The response to a request, and its timeout, which the caller restarts when
        there is news. Raises `Broken` or `Refused`."""
        import httpx

        try:
            async with asyncio.timeout(self.retry.timeout) as limit:
                method, path = (
                    ("GET", MODELS) if body is None else ("POST", COMPLETIONS)
                )
                async with self._http.stream(method, path, json=body) as response:
                    if "," in response.headers.get("Content-Encoding", ""):
                        raise Broken("sent an answer that is compressed more than once")
                    if (
                        response.status_code >= 300
                    ):  # a redirect might lose the body, or the key
                        raise self._failure(response, await _read(response))
                    yield response, limit
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Broken(
                f"cannot be reached ({error or 'no connection in time'})"
            ) from error
        except (TimeoutError, httpx.TimeoutException):
            raise Broken(f"was silent for {self.retry.timeout:g} seconds") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise Broken(f"broke off ({type(error).__name__}: {error})") from error

    def _failure(self, response: httpx.Response, text: str) -> Exception:
        """The error for a status of 300 or more: `Broken` for the server's faults,
        `Refused` for ours. Includes the server's message, in whichever field it is."""
        status, detail = response.status_code, " ".join(text.split())[:200]
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            for name in ("error", "detail", "message"):
                while isinstance(value, dict) and name in value:
                    value = value[name]
            detail = str(value)[:500]
        said = f"answered {status} {response.reason_phrase}" + (
            f" ({detail})" if detail else ""
        )
        said = "".join(filter(str.isprintable, said))
        if status in BUSY or status >= 500:
            return Broken(
                said, _seconds(response.headers.get("Retry-After", "")), status
            )
        if status in (401, 403):
            said += "; give the key with api_key (--api_key, or LR_API_KEY in the environment)"
        return Refused(f"{self.address.server}{response.url.path} {said}.", status)


def parse_json(text: str) -> Any:
    """JSON, or `Broken`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Broken(f"sent no JSON ({text[:80]!r})") from None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
    """Close the connections and end the thread. Does not wait: it may run in that
    thread itself."""

    async def end() -> None:
        await http.aclose()
        loop.stop()

    with suppress(RuntimeError):
        asyncio.run_coroutine_threadsafe(end(), loop)


async def _read(response: httpx.Response) -> str:
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > LONGEST_ANSWER:
            raise Broken(f"sent more than {LONGEST_ANSWER >> 20} MiB")
    return data.decode("utf-8", "replace")


def _seconds(header: str) -> float | None:
    """`Retry-After`: seconds, or a date."""
    with suppress(ValueError):
        return float(header)
    with suppress(ValueError, TypeError, OverflowError):
        return parsedate_to_datetime(header).timestamp() - time.time()
    return None


@dataclass(frozen=True)
class Usage:
    """Tokens by the server's own count."""

    prompt: int
    completion: int


@dataclass(frozen=True)
class StreamPiece:
    """A part of an answer. `ids` None: no token ids. `finish`: why it ends; None: it
    continues."""

    text: str
    ids: tuple[int, ...] | None = None
    finish: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Restart:
    """Discard the answer so far: it begins again."""


RequestNews = (
    StreamPiece | Restart | Exception
)  # The last is an error or has a `finish`.
Deliver = Callable[[RequestNews], None]


def read_piece(raw: Any) -> StreamPiece:
    """The piece in a chunk of a stream, or in a whole answer. Raises `Broken`."""
    if isinstance(raw, dict) and raw.get("error"):
        raise Broken(
            f"reported an error in the middle of an answer ({str(raw['error'])[:200]})"
        )
    try:
        counts, usage = raw.get("usage"), None
        if isinstance(counts, dict):
            numbers = (counts["prompt_tokens"], counts.get("completion_tokens"))
            usage = Usage(*(int(number or 0) for number in numbers))
        if not raw["choices"]:  # a last chunk that holds only the usage
            return StreamPiece("", usage=usage)
        choice = raw["choices"][0]
        text, ids, finish = (
            choice.get("text"),
            choice.get("token_ids"),
            choice.get("finish_reason"),
        )
        if finish in ("abort", "error"):
            raise Broken(f"gave an answer up in the middle (finish_reason {finish!r})")
        if not isinstance(text, str | None):
            raise TypeError(text)
        text = (
            (text or "").encode(errors="replace").decode()
        )  # replaces lone surrogates
        return StreamPiece(
            text, None if ids is None else tuple(map(int, ids)), finish, usage
        )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError):
        raise Broken(f"sent JSON that is no completion ({str(raw)[:120]})") from None


class Endpoint:
    """One model on a server, by its `name` there. `context`: its longest sequence, if
    known."""

    def __init__(self, client: Client, name: str, context: int | None = None) -> None:
        self.client, self.name, self.context = client, name, context

    @classmethod
    def open(cls, client: Client) -> Endpoint:
        """The model that the client's address names. Raises `EndpointError` if the
        server cannot be reached, and `SettingError` if its list of models lacks that
        name, or if the address names no model and the server does not list exactly
        one."""
        name, listed = client.address.model, client.wait(_listed(client))
        there = ", ".join(listed)
        if name is None:
            if len(listed) != 1:
                have = f"it has {there}" if listed else "it does not list what it has"
                raise SettingError(
                    f"{client.address} names no model, and {have}; name one there."
                )
            name = there
        if listed and name not in listed:
            raise SettingError(
                f"{client.address.server} has no model {name!r}; it has {there}."
            )
        return cls(client, name, listed.get(name))

    def __str__(self) -> str:
        return f"{self.name} at {self.client.address.server}"

    def complete(self, prompt: Prompt, **settings: Any) -> dict[str, Any]:
        """The whole answer of the server, not streamed. Raises `EndpointError`."""
        answer = self.client.post(self.body(prompt, settings))
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise EndpointError(
                f"{self} answered with no completion ({str(answer)[:120]})."
            )
        return answer

    def begin(
        self,
        prompt: Prompt,
        settings: dict[str, Any],
        deliver: Deliver,
        *,
        stream: bool = True,
    ) -> Future[None]:
        """Send a request, whose events `deliver` gets in the client's thread. Cancel it
        to stop."""
        body = self.body(prompt, settings)

        async def attempt() -> None:
            if not stream:
                piece = read_piece(await self.client.fetch(body))
                deliver(replace(piece, finish=piece.finish or "length"))
                return
            last: StreamPiece | None = (
                None  # held until the end: the usage may come after it
            )
            try:
                async with aclosing(self.client.pieces(body)) as pieces:
                    async for piece in pieces:
                        if last is not None:
                            usage = piece.usage or last.usage
                            last = replace(
                                last, text=last.text + piece.text, usage=usage
                            )
                        elif piece.finish is not None:
                            last = piece
                        elif piece.text or piece.ids:
                            deliver(piece)
            except Broken:
                if last is None:
                    raise
            if last is None:
                raise Broken("ended a stream in the middle of an answer")
            deliver(last)

        async def work() -> None:
            try:
                await self.client.retried(attempt, again=lambda: deliver(Restart()))
            except Exception as error:
                known = isinstance(error, LRError)
                deliver(error if known else EndpointError(f"{self}: {error!r}"))

        return self.client.start(work())

    def body(self, prompt: Prompt, settings: dict[str, Any]) -> dict[str, Any]:
        text = prompt if isinstance(prompt, str) else list(prompt)
        return {"model": self.name, "prompt": text, **settings}


async def _listed(client: Client) -> dict[str, int | None]:
    """The models that a server lists, with their context in tokens if it says; empty if
    it cannot list them. Raises `EndpointError` if no server answers or the key is
    refused."""
    try:
        listed = await client.retried(client.fetch, attempts=1)
    except EndpointError as error:
        if error.status in (None, 401, 403):
            raise
        if error.status not in BUSY:
            return {}  # `transformers serve` answers 500 when offline
        listed = await client.retried(client.fetch)
    entries = listed.get("data") if isinstance(listed, dict) else None
    found = (one for one in entries or [] if isinstance(one, dict))
    return {
        one["id"]: one.get("max_model_len")
        for one in found
        if isinstance(one.get("id"), str)
    }
