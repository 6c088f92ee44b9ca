"""The player on an answer in the making: one page, served to this machine alone.

    with LiveServer(begin) as server:       # begin(question): a source of the stepper
        print(server.address)               # http://127.0.0.1:41234/?token=...
        server.serve_forever()

The page is that of `page.py`. What its buttons ask for goes to the same `Session` as the letters of
`lr step`, and the answer to each request is what every side is now, replayed and put into words as
for a recorded trace. A page that has taken in the message before is sent only what is new (`news`),
any other all of it. Who may ask, and why others cannot: docs/player.md. Read next: `live.js`."""

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
from lr.lab.player.page import page_data, player_page
from lr.lab.stepper.session import Session, Side
from lr.lab.stepper.sources import Source, StepperError

HOST = "127.0.0.1"
LONGEST = 100_000  # Bytes of a request.
MOVES = ("next", "step", "rejection", "verdict", "end")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'",
}


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What the page asks for: a move, or to force a verdict, fork, drop side B, take another
    question. `places`: after how many events the page shows each side, by name. `seen`: the
    number of the last message that it has taken in, 0 for none."""

    what: str
    places: dict[str, int] = {}
    question: str | None = None  # None: one that is drawn
    side: str = "A"
    node: str | None = None
    aligned: bool = True
    seen: int = 0


class Live:
    """A session, and what the page can ask for. `begin`: a source for a question, or for one that
    it draws."""

    def __init__(self, begin: Callable[[str | None], Source], question: str | None = None) -> None:
        self.begin, self.session = begin, Session(begin(question))
        self.number = 0  # of the last message
        self.sent: list[Any] = []  # its sides

    def page(self) -> str:
        return player_page(self.session.sides[0].trace, live=True)

    def answer(self, asked: Asked) -> dict[str, Any]:
        """Do it, and the message that says so to the page."""
        made = json.loads(json.dumps(self.do(asked)))  # as the page has it, and a copy
        known = self.sent if asked.seen == self.number else []
        self.number, self.sent = self.number + 1, made["sides"]
        sides = [news(old, new) for old, new in zip([*known, None, None], self.sent, strict=False)]
        return made | {"number": self.number, "sides": sides}

    def do(self, asked: Asked) -> dict[str, Any]:
        """Do it, from where the page is, and say what is there then."""
        session, said = self.session, ""
        before = session.sides[-1]
        for side in session.sides:
            place = asked.places.get(side.name, side.place)
            side.place, side.fine = max(0, min(place, len(side.records))), False
        try:
            if asked.what in MOVES:
                said = "" if session.go(asked.what) else "This is the end of the answer."
                for side in session.sides:  # at the moment itself, where the page's own stops are
                    side.place = side.place if side.happened is None else side.happened.number + 1
            elif asked.what == "force":
                session.move(asked.side)
                said = session.force(asked.aligned, asked.node)
            elif asked.what == "fork":
                session.move("A")
                said = session.fork()
            elif asked.what == "drop":
                session.drop()
            elif asked.what == "ask":
                made = self.begin(asked.question)  # what is refused leaves the old one as it is
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
    if not over:  # tour and race are of a whole answer
        data |= {"tour": [], "race": []}
    return {"place": side.place, "shares": side.shares, "over": over, "data": data}


def news(old: Any, new: Any) -> Any:
    """What makes `new` of `old`: [new]; of lists [how many items stay, those that follow]; of
    objects {key: its news}, for the keys that are new or have changed.

    Example: from {"a": [1, 2], "b": 3} to {"a": [1, 5, 6], "b": 3}: {"a": [1, [5, 6]]}."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        changed = [key for key in new if key not in old or old[key] != new[key]]
        return {key: news(old.get(key), new[key]) for key in changed}
    if isinstance(old, list) and isinstance(new, list):
        same = common_length(old, new)
        return [same, new[same:]]
    return [new]


class LiveServer(ThreadingHTTPServer):
    """Serves a `Live` on 127.0.0.1. `port` 0: a free one. `SettingError` for one that is taken."""

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
        TCPServer.server_bind(self)  # HTTPServer's would look a name up in the network
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 60  # seconds that a browser may keep a connection without asking anything

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
            return self._send(HTTPStatus.BAD_REQUEST, f"not a request of this page: {error}")
        with self.server.lock:
            made = self.server.live.answer(asked)
        self._send(HTTPStatus.OK, json.dumps(made, ensure_ascii=False), "application/json")

    def _refused(self, known: bool) -> bool:
        """Whether this is no request of our page; then that is said."""
        names, status = self.server.names, HTTPStatus.FORBIDDEN
        tokens = parse_qs(urlsplit(self.path).query).get("token", [""])
        origins = (None, *(f"http://{name}" for name in names))
        if self.headers.get("Host") not in names or self.headers.get("Origin") not in origins:
            why = f"this page is served to {' and '.join(sorted(names))} only"
        elif not hmac.compare_digest(tokens[0].encode(), self.server.token.encode()):
            why = "the address lacks the token that lr play --live has printed"
        elif not known:
            status, why = HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /"
        else:
            return False
        self._send(status, why)
        return True

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body, headers = text.encode(), HEADERS | {"Content-Type": f"{kind}; charset=utf-8"}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # a page that is closed does not wait
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is not the place for it, and the address holds the token."""
