"""What is said over `/v1/completions`: a request as plain data, the pieces of its answer, and one
served model that answers.

An answer comes as `Piece`s, text and, where the server has them, token ids; the last one says why
it ended. A stream without such a last piece was torn, whatever else it looks like. A request that
breaks is asked again from its beginning, after a `Restart`: so nothing is lost and nothing doubled,
and with a seed or at temperature 0 the same text comes again. Knows no tokenizer and no step. Read
next: `probe.py`, what an endpoint can do; `writer.py`, which writes steps with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lr.errors import LRError, SettingError
from lr.lab.endpoint.address import Address
from lr.lab.endpoint.failures import Broken, Cancelled, EndpointError, Refused, parse_json
from lr.lab.endpoint.http import Call, Client

COMPLETIONS, CHAT, MODELS = "/v1/completions", "/v1/chat/completions", "/v1/models"
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Usage:
    """Tokens by the server's own count; `cached` of the prompt were in its prefix cache, where it
    says so.
    """

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True)
class Piece:
    """Some of an answer. `ids` None: the server gives no token ids. `finish`: why the answer ends
    here, None if it goes on.
    """

    text: str
    ids: tuple[int, ...] | None = None
    finish: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Restart:
    """The answer so far is void; it begins again. `why`: what broke."""

    why: str


Message = Piece | Restart | Exception
"""What becomes of a request, in order: pieces, the last of which has a `finish`; or an error, which
is the last word.
"""
Deliver = Callable[[Message], None]


def read_piece(raw: Any) -> Piece:
    """The piece in a chunk of a stream, or in a whole answer. Raises `Broken` where there is
    none.
    """
    if isinstance(raw, dict) and raw.get("error"):
        raise Broken(f"reported an error in the middle of an answer ({str(raw['error'])[:200]})")
    try:
        usage = _usage(raw.get("usage"))
        choices = raw["choices"]
        if not choices:  # a last chunk that holds nothing but the usage
            return Piece("", usage=usage)
        choice = choices[0]
        text, ids, finish = choice.get("text"), choice.get("token_ids"), choice.get("finish_reason")
        if finish in ("abort", "error"):
            raise Broken(f"gave an answer up in the middle (finish_reason {finish!r})")
        return Piece(
            "" if text is None else _text(text),
            None if ids is None else tuple(map(int, ids)),
            finish,
            usage,
        )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        raise Broken(f"sent JSON that is no completion ({str(raw)[:120]})") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _usage(raw: Any) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    details = raw.get("prompt_tokens_details") or {}
    return Usage(
        int(raw["prompt_tokens"]),
        int(raw.get("completion_tokens") or 0),
        int(details.get("cached_tokens") or 0),
    )


class Endpoint:
    """One model on one server. `name` is the model as the server knows it, `context` its longest
    sequence if the server says so.
    """

    def __init__(self, client: Client, name: str, context: int | None = None) -> None:
        self.client, self.name, self.context = client, name, context

    @classmethod
    def open(cls, client: Client) -> Endpoint:
        """The model that the client's address names. Raises `EndpointError` if the server cannot be
        reached, `SettingError` if it lists its models and has no such, or if no model is named and
        it has several."""
        asked, listed = client.address.model, served(client)
        if asked is None:
            if len(listed) != 1:
                have = f"it has {', '.join(listed)}" if listed else "it does not list what it has"
                raise SettingError(
                    f"{client.address} names no model, and {have}. Put the name behind the port."
                )
            asked = next(iter(listed))
        if listed and asked not in listed:
            raise SettingError(
                f"{client.address.server} has no model {asked!r}; it has {', '.join(listed)}."
            )
        return cls(client, asked, listed.get(asked))

    @property
    def address(self) -> Address:
        return self.client.address

    def __str__(self) -> str:
        return f"{self.name} at {self.address.server}"

    def complete(self, prompt: Prompt, **settings: Any) -> dict[str, Any]:
        """The whole answer as the server gives it, in one. Raises `EndpointError`."""
        return self._object(self.client.post(COMPLETIONS, self.body(prompt, settings)))

    def chat(self, messages: Sequence[dict[str, str]], **settings: Any) -> dict[str, Any]:
        """As `complete`, in chat format."""
        return self._object(
            self.client.post(CHAT, {"model": self.name, "messages": list(messages), **settings})
        )

    def begin(
        self, prompt: Prompt, settings: dict[str, Any], deliver: Deliver, *, stream: bool = True
    ) -> Call:
        """Ask in a thread of its own; `deliver` is called there with what comes. Returns what
        cancels it.
        """
        call, body = Call(), self.body(prompt, settings)

        def attempt(call: Call) -> None:
            try:
                for piece in self._pieces(body, call, stream=stream):
                    deliver(piece)
            except Broken as error:
                if call.attempts < self.client.patience.attempts:
                    deliver(Restart(str(error)))
                raise

        def work() -> None:
            try:
                self.client.patiently(attempt, call)
            except Cancelled:
                pass
            except Exception as error:
                deliver(
                    error if isinstance(error, LRError) else EndpointError(f"{self}: {error!r}")
                )

        threading.Thread(target=work, name=f"request to {self.address.server}", daemon=True).start()
        return call

    def body(self, prompt: Prompt, settings: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self.name,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            **settings,
        }

    def _object(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise EndpointError(
                f"{self} answered with what is no completion ({str(answer)[:120]})."
            )
        return answer

    def _pieces(self, body: dict[str, Any], call: Call, *, stream: bool) -> Iterator[Piece]:
        """One attempt. The usage may come behind the end, so the last piece is held back until the
        stream is over.
        """
        if not stream:
            piece = read_piece(self.client.attempt_json(COMPLETIONS, body, call))
            yield piece if piece.finish else Piece(piece.text, piece.ids, "length", piece.usage)
            return
        last: Piece | None = None
        for data in self.client.events(COMPLETIONS, {**body, "stream": True}, call):
            if data == "[DONE]":
                break
            piece = read_piece(parse_json(data))
            if last is not None:
                last = Piece(
                    last.text + piece.text, last.ids, last.finish, piece.usage or last.usage
                )
            elif piece.finish is not None:
                last = piece
            else:
                yield piece
        if last is None:
            raise Broken("ended a stream in the middle of an answer")
        yield last


def served(client: Client) -> dict[str, int | None]:
    """The models that a server lists, each with its context in tokens where it says so; empty if it
    cannot list them.

    Raises `EndpointError` if nobody answers at the address.
    """

    def ask(call: Call) -> Any:
        return client.attempt_json(MODELS, None, call)

    try:
        listed = client.patiently(ask, Call(), attempts=1)
    except Refused as error:
        if error.status in (401, 403):
            raise
        return {}
    except EndpointError as error:
        cause = error.__cause__
        if not isinstance(cause, Broken) or cause.status is None:
            raise
        if not cause.busy:
            return {}  # transformers serve without a connection to the hub answers 500
        listed = client.patiently(ask, Call())
    entries = listed.get("data") if isinstance(listed, dict) else None
    found = [
        one for one in entries or [] if isinstance(one, dict) and isinstance(one.get("id"), str)
    ]
    return {one["id"]: one.get("max_model_len") for one in found}
