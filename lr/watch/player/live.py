"""The player on an answer while it is made: one page, served to this machine alone.

    with LiveServer(begin) as server:       # begin(question): a source of the stepper
        print(server.address)               # http://127.0.0.1:41234/?token=...
        server.serve_forever()

The page is that of `page.py`. Its buttons drive the same `Session` as the letters of
`lr step`. The answer to each request is the present state of every side, in the form of
a recorded trace. A page that has received the previous message gets only what is new
(`news`), any other page everything. docs/player.md says who may ask, and why nobody
else can. Read next: `live.js`."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from lr.errors import LRError, SettingError
from lr.kvcache.branch import common_length
from lr.watch.player.page import page_data, player_page
from lr.watch.stepper.session import Session, Side
from lr.watch.stepper.sources import Source, StepperError

HOST = "127.0.0.1"
LONGEST = 100_000  # The most bytes of a request.
MOVES = ("next", "step", "rejection", "verdict", "end")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'",
}


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What the page asks for: a move, or to force a verdict, to fork, to drop side B,
    to take a new question. `places`: by side, the number of events after which the page
    shows it. `seen`: the number of the last message that the page received, 0 for
    none."""

    what: str
    places: dict[str, int] = {}
    question: str | None = None  # None: a random one
    side: str = "A"
    node: str | None = None
    aligned: bool = True
    seen: int = 0


class Live:
    """A session, and what the page can ask of it. `begin`: a source for a question
    (None: any)."""

    def __init__(
        self, begin: Callable[[str | None], Source], question: str | None = None
    ) -> None:
        self.begin, self.session = begin, Session(begin(question))
        self.number = 0  # of the last message
        self.sent: list[Any] = []  # its sides

    def page(self) -> str:
        return player_page(self.session.sides[0].trace, live=True)

    def answer(self, asked: Asked) -> dict[str, Any]:
        """Do it, and return the message to the page."""
        made = json.loads(json.dumps(self.do(asked)))  # a copy, in the page's own types
        known = self.sent if asked.seen == self.number else []
        self.number, self.sent = self.number + 1, made["sides"]
        sides = [
            news(old, new)
            for old, new in zip([*known, None, None], self.sent, strict=False)
        ]
        return made | {"number": self.number, "sides": sides}

    def do(self, asked: Asked) -> dict[str, Any]:
        """Do it from the page's place, and return the new state of every side."""
        session, said = self.session, ""
        before = session.sides[-1]
        for side in session.sides:
            place = asked.places.get(side.name, side.place)
            side.place, side.fine = max(0, min(place, len(side.records))), False
        try:
            if asked.what in MOVES:
                said = (
                    "" if session.go(asked.what) else "This is the end of the answer."
                )
                for side in (
                    session.sides
                ):  # the page stops at the event, not after what follows
                    side.place = (
                        side.place
                        if side.happened is None
                        else side.happened.number + 1
                    )
            elif asked.what == "force":
                session.move(asked.side)
                said = session.force(asked.aligned, asked.node)
            elif asked.what == "fork":
                session.move("A")
                said = session.fork()
            elif asked.what == "drop":
                session.drop()
            elif asked.what == "ask":
                made = self.begin(
                    asked.question
                )  # a refused question leaves the old session
                session.close()
                self.session = session = Session(made)
            elif asked.what != "look":
                raise StepperError(f"{asked.what!r} cannot be asked for.")
        except LRError as error:
            said = str(error)
        session.moved = list(session.sides)
        sides = [_shown(side) for side in session.sides]
        return {"said": said, "forked": session.sides[-1] is not before, "sides": sides}


def _shown(side: Side) -> dict[str, Any]:
    over, data = side.trace.complete, page_data(side.trace) | {"live": True}
    if not over:  # tour and race need a whole answer
        data |= {"tour": [], "race": []}
    return {"place": side.place, "shares": side.shares, "over": over, "data": data}


def news(old: Any, new: Any) -> Any:
    """The change from `old` to `new`. Lists: [number of leading items that stay, the
    items after them]. Objects: {key: its news} for new and changed keys. Anything else:
    [new].

    Example: from {"a": [1, 2], "b": 3} to {"a": [1, 5, 6], "b": 3}: {"a": [1, [5,
    6]]}."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        changed = [key for key in new if key not in old or old[key] != new[key]]
        return {key: news(old.get(key), new[key]) for key in changed}
    if isinstance(old, list) and isinstance(new, list):
        same = common_length(old, new)
        return [same, new[same:]]
    return [new]


class LiveServer(ThreadingHTTPServer):
    """Serves a `Live` on 127.0.0.1. `port` 0: a free one. Raises `SettingError` for a
    taken one."""

    daemon_threads = True

    def __init__(self, live: Live, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SettingError(
                f"port {port} cannot be used ({error}); give another, or 0 for a free one."
            ) from error
        self.live, self.lock, self.token = live, Lock(), secrets.token_urlsafe(16)
        self.names = {f"{host}:{self.server_port}" for host in (HOST, "localhost")}
        self.address = f"http://{HOST}:{self.server_port}/?token={self.token}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would look up a name in the network
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 60  # seconds that a browser may keep an idle connection

    def do_GET(self) -> None:
        if self._refused(urlsplit(self.path).path == "/"):
            return
        with self.server.lock:
            page = self.server.live.page()
        self._send(HTTPStatus.OK, page, "text/html")

    def do_POST(self) -> None:
        typed = self.headers.get("Content-Type") == "application/json"
        own = self.headers.get("Origin") is not None
        if self._refused(urlsplit(self.path).path == "/do" and typed and own):
            return
        size = self.headers.get("Content-Length", "")
        try:
            body = self.rfile.read(max(0, min(int(size), LONGEST)))
            asked = msgspec.json.decode(body, type=Asked)
        except (ValueError, msgspec.DecodeError) as error:
            return self._send(
                HTTPStatus.BAD_REQUEST, f"not a request of this page: {error}"
            )
        with self.server.lock:
            made = self.server.live.answer(asked)
        self._send(
            HTTPStatus.OK, json.dumps(made, ensure_ascii=False), "application/json"
        )

    def _refused(self, known: bool) -> bool:
        """Whether this is not a request of our page; if so, answer with the reason."""
        names, status = self.server.names, HTTPStatus.FORBIDDEN
        tokens = parse_qs(urlsplit(self.path).query).get("token", [""])
        origins = (None, *(f"http://{name}" for name in names))
        if (
            self.headers.get("Host") not in names
            or self.headers.get("Origin") not in origins
        ):
            why = f"this page is served to {' and '.join(sorted(names))} only"
        elif not hmac.compare_digest(tokens[0].encode(), self.server.token.encode()):
            why = "the address lacks the token that lr play --live has printed"
        elif not known:
            status, why = (
                HTTPStatus.NOT_FOUND,
                "there is nothing here; the page is at /",
            )
        else:
            return False
        self._send(status, why)
        return True

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body, headers = (
            text.encode(),
            HEADERS | {"Content-Type": f"{kind}; charset=utf-8"},
        )
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # the page may be closed already
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: it would clutter the terminal, and the address contains the
        token."""
