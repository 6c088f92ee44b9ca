"""A small OpenAI-compatible server in threads, whose "model" is a rule and whose faults
are ordered in advance.

The model continues a text word by word: a word is drawn from a few words by a hash of
the whole text before it, and of the seed where one is given and the temperature is not
0. So it is deterministic, has no state, and depends on everything it should. Tokens are
those of the tiny language's tokenizer, made once. `Manners` say what the server
supports; `Fault`s are used up one by one by requests of their kind.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lr.rng import uniform

WORDS = (" Ann", " Ben", " has", " 7", " coins", ".", "\n\n", " so", " the", " 3")
END = "<end>"
Write = Callable[[str, int | None], str]
"""The next word after a text, by the seed (None: greedy); `END` where the text is
over."""


def babble(longest: int = 400, *, salt: str = "target", differs: int = 20) -> Write:
    """A model that writes words at random, about `longest` characters of answer. One in
    `differs` is its own, by its `salt`.
    """

    def write(text: str, seed: int | None) -> str:
        answer = text.rpartition("assistant\n")[2]
        if len(answer) > longest:
            return END
        own = salt if _number(f"who {text} {seed}") % differs == 0 else "both"
        return (
            WORDS[int(uniform(_number(f"{own} {text} {seed}")) * len(WORDS))]
            if answer
            else WORDS[0]
        )

    return write


def _number(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"
    )


@dataclass(frozen=True)
class Manners:
    """What a server supports. `stop`: "before" (cut before the string), "overshoot"
    (kept, with its whole token), "ignored".

    `seeds` False: every request draws something else, whatever its seed.
    """

    models: tuple[str, ...] | None = ("tiny-target",)
    ids: bool = False
    logprobs: bool = False
    seeds: bool = True
    stop: str = "before"
    keeps_stop: bool = False
    top_k: bool = False
    config: bool = False
    streams: bool = True
    usage: bool = True
    done: bool = True
    strict: bool = True
    """Unknown fields are refused, as transformers' server does."""
    pause: float = 0.0
    """Seconds before each word of a stream."""
    api_key: str | None = None
    likeliest: Callable[[str], dict[str, float]] | None = None
    """The log-probabilities of the likeliest next tokens of a prompt."""


@dataclass(frozen=True)
class Fault:
    """What becomes of the next request that streams (or, `whole`, that does not): a
    status, or a stream that goes wrong after `after` words: "cut" (the connection
    ends), "reset", "garbage" (no JSON), "silence", "error" (an error in the stream)."""

    status: int | None = None
    what: str = "cut"
    after: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    whole: bool = False


@dataclass
class Log:
    """What the server has seen: bodies of requests, and how many streams were ended, or
    abandoned by the other side.
    """

    bodies: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    peers: list[tuple[str, int]] = field(default_factory=list)
    ended: int = 0
    abandoned: int = 0
    open: int = 0
    most: int = 0


class _Quiet(ThreadingHTTPServer):
    """Clients that hang up in the middle of a request are nothing to talk about."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class FakeServer:
    """A context manager; `address(model)` is what the rest of the house is given."""

    def __init__(
        self, write: Write, manners: Manners | None = None, tokenizer: Any = None
    ) -> None:
        self.write, self.manners, self.tokenizer = (
            write,
            manners or Manners(),
            tokenizer,
        )
        self.faults: list[Fault] = []
        self.log, self.lock = Log(), threading.Lock()
        self.count = 0
        self.dead = False
        self.hold: Callable[[str], bool] = lambda prompt: False
        """Prompts whose streams send nothing and end only when the client hangs up."""
        self.misbehave: Callable[[Any], None] | None = None
        """What becomes of a judge's questions instead, given the request's handler."""
        self.everywhere = False
        """Whether that becomes of all other requests, too."""
        self._http = _Quiet(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def server(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def address(self, model: str = "tiny-target") -> str:
        return f"openai:{self.server}/{model}"

    def behave(self, **changes: Any) -> None:
        self.manners = replace(self.manners, **changes)

    def usage(self, prompt: str) -> int:
        """How many tokens a prompt has."""
        return len(self.tokenizer.encode(prompt, add_special_tokens=False))

    def fault(self, *, streaming: bool) -> Fault | None:
        with self.lock:
            found = next((one for one in self.faults if one.whole != streaming), None)
            if found is not None:
                self.faults.remove(found)
            return found

    def words(self, prompt: str, body: dict[str, Any]) -> list[tuple[str, str | None]]:
        """The words of a completion; with the last one why it ended."""
        seed, most = self._seed(body), body.get("max_tokens", 16)
        stops = [] if self.manners.stop == "ignored" else body.get("stop") or []
        words: list[str] = []
        while len(words) < most:
            word = self.write(prompt + "".join(words), seed)
            if word == END:
                return [*((one, None) for one in words), ("", "stop")]
            words.append(word)
            text = "".join(words)
            hit = next((stop for stop in stops if stop in text), None)
            if hit is not None:
                return self._cut(
                    words, text.index(hit), text.index(hit) + len(hit), body
                )
        return [*((one, None) for one in words[:-1]), (words[-1], "length")]

    def _cut(
        self, words: list[str], start: int, end: int, body: dict[str, Any]
    ) -> list[tuple[str, str | None]]:
        """Words up to a stop string from `start` to `end`."""
        keeps = self.manners.keeps_stop and body.get("include_stop_str_in_output")
        length = (
            len("".join(words))
            if self.manners.stop == "overshoot"
            else end
            if keeps
            else start
        )
        pieces, done = [], 0
        for word in words:
            pieces.append(word[: max(0, length - done)])
            done += len(word)
        return [*((one, None) for one in pieces[:-1]), (pieces[-1], "stop")]

    def _seed(self, body: dict[str, Any]) -> int | None:
        config = (
            json.loads(body.get("generation_config") or "{}")
            if self.manners.config
            else {}
        )
        filtered = self.manners.top_k and (
            body.get("top_k") == 1 or body.get("min_p") == 1.0
        )
        if (
            not body.get("temperature", 1.0)
            or filtered
            or config.get("top_k") == 1
            or config.get("min_p") == 1.0
        ):
            return None
        with self.lock:
            self.count += 1
            return (
                int(body["seed"])
                if self.manners.seeds and "seed" in body
                else 1000 + self.count
            )


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            if not self._allowed():
                return
            names = server.manners.models
            if names is None:
                self._answer(500, {"error": "no list"})
            else:
                self._answer(
                    200,
                    {"data": [{"id": name, "max_model_len": 4096} for name in names]},
                )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.log.bodies.append(body)
            server.log.times.append(time.monotonic())
            server.log.peers.append(self.client_address)
            judged = str(body["prompt"]).endswith("[")
            if server.misbehave is not None and (judged or server.everywhere):
                self.close_connection = True
                with suppress(OSError):
                    server.misbehave(self)
                return
            if not self._allowed() or self._refused(body):
                return
            fault = server.fault(streaming=bool(body.get("stream")))
            if fault is not None and fault.status is not None:
                self._answer(
                    fault.status,
                    {"error": {"message": f"fault {fault.status}"}},
                    fault.headers,
                )
                return
            prompt = body["prompt"]
            text = (
                prompt if isinstance(prompt, str) else _spell(server.tokenizer, prompt)
            )
            with server.lock:
                server.log.open += 1
                server.log.most = max(server.log.most, server.log.open)
            try:
                (self._stream if body.get("stream") else self._whole)(text, body, fault)
            finally:
                with server.lock:
                    server.log.open -= 1

        def _allowed(self) -> bool:
            key = server.manners.api_key
            if server.dead:
                self.close_connection = True
                return False
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                self._answer(401, {"error": {"message": "no such key"}})
                return False
            return True

        def _refused(self, body: dict[str, Any]) -> bool:
            manners = server.manners
            known = {
                "model",
                "prompt",
                "max_tokens",
                "temperature",
                "top_p",
                "seed",
                "stop",
                "stream",
                "logprobs",
                "n",
            }
            known |= {"stream_options"} if manners.usage else set()
            known |= {"return_token_ids"} if manners.ids else set()
            known |= {"top_k", "min_p"} if manners.top_k else set()
            known |= {"generation_config"} if manners.config else set()
            known |= {"include_stop_str_in_output"} if manners.keeps_stop else set()
            if manners.strict and body.keys() - known:
                self._answer(
                    422, {"detail": f"unexpected fields {sorted(body.keys() - known)}"}
                )
            elif not manners.ids and not isinstance(body["prompt"], str):
                self._answer(400, {"detail": "prompt must be a string"})
            elif manners.models is not None and body["model"] not in manners.models:
                self._answer(404, {"error": {"message": "no such model"}})
            else:
                return False
            return True

        def _choice(
            self, text: str, finish: str | None, body: dict[str, Any], prompt: str
        ) -> dict[str, Any]:
            choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
            if server.manners.ids and body.get("return_token_ids"):
                ids = (
                    server.tokenizer.encode(text, add_special_tokens=False)
                    if text
                    else []
                )
                choice |= {
                    "token_ids": ids,
                    "prompt_token_ids": server.tokenizer.encode(
                        prompt, add_special_tokens=False
                    ),
                }
            if server.manners.logprobs and body.get("logprobs"):
                make = server.manners.likeliest or (lambda _: {text: -0.1})
                choice["logprobs"] = {"top_logprobs": [make(prompt)]}
            return choice

        def _usage(self, prompt: str, words: int) -> dict[str, int]:
            count = server.usage(prompt)
            return {
                "prompt_tokens": count,
                "completion_tokens": words,
                "total_tokens": count + words,
            }

        def _whole(
            self, prompt: str, body: dict[str, Any], fault: Fault | None
        ) -> None:
            text, finish, count = "", "stop", 0
            for word, ended in server.words(prompt, body):
                text, finish, count = text + word, ended or finish, count + 1
            answer: dict[str, Any] = {
                "choices": [self._choice(text, finish, body, prompt)] * body.get("n", 1)
            }
            if server.manners.usage:
                answer["usage"] = self._usage(prompt, count)
            self._answer(200, answer)

        def _stream(
            self, prompt: str, body: dict[str, Any], fault: Fault | None
        ) -> None:
            if not server.manners.streams:
                self._whole(prompt, body, fault)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            if server.hold(prompt):
                self._until_hung_up()
                return
            count = 0
            try:
                for number, (word, finish) in enumerate(server.words(prompt, body)):
                    if fault is not None and number == fault.after:
                        self._go_wrong(fault)
                        return
                    time.sleep(server.manners.pause)
                    count += 1
                    self._event({"choices": [self._choice(word, finish, body, prompt)]})
                if server.manners.usage and (body.get("stream_options") or {}).get(
                    "include_usage"
                ):
                    self._event({"choices": [], "usage": self._usage(prompt, count)})
                if server.manners.done:
                    self._say("data: [DONE]\n\n")
                server.log.ended += 1
            except OSError:
                server.log.abandoned += 1

        def _until_hung_up(self) -> None:
            """Say nothing. The client has nothing more to say either, so what comes is
            its end."""
            self.connection.settimeout(60)
            with suppress(OSError):
                self.connection.recv(1)
                server.log.abandoned += 1

        def _go_wrong(self, fault: Fault) -> None:
            if fault.what == "garbage":
                self._say("data: {this is no JSON\n\n")
            elif fault.what == "error":
                self._event({"error": {"message": "out of memory"}})
            elif fault.what == "silence":
                self._until_hung_up()
            elif fault.what == "reset":
                self.connection.setsockopt(
                    1, 13, b"\1\0\0\0\0\0\0\0"
                )  # SO_LINGER 0: the close resets the connection
            elif fault.what == "dies":
                server.dead = True

        def _event(self, content: dict[str, Any]) -> None:
            self._say(f"data: {json.dumps(content)}\n\n")

        def _say(self, text: str) -> None:
            self.wfile.write(text.encode())
            self.wfile.flush()

        def _answer(
            self,
            status: int,
            content: dict[str, Any],
            headers: tuple[tuple[str, str], ...] = (),
        ) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _spell(tokenizer: Any, ids: list[int]) -> str:
    text = tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
