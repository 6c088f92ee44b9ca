"""Ways in which a server can answer badly. Each takes the handler of a request (see
`fake_server.py`), which has the connection, and does its worst with it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

Way = Callable[[Any], None]
REFUSALS = (300, 301, 302, 307, 308, 400, 401, 403, 404, 405, 410, 413, 415, 422, 451)
TROUBLES = (408, 429, 500, 501, 502, 503, 504, 507, 529)
LATER = (
    "nan",
    "inf",
    "1e400",
    "-5",
    "99999",
    "Fri, 31 Dec 2199 23:59:59 GMT",
    "soon",
    "",
)
GOOD = {"choices": [{"text": "aligned", "finish_reason": "length", "index": 0}]}


def raw(data: bytes, *, hold: float = 0.0) -> Way:
    """These bytes, then nothing, and after `hold` seconds the end."""

    def way(handler: Any) -> None:
        handler.wfile.write(data)
        handler.wfile.flush()
        time.sleep(hold)

    return way


def status(code: int, *headers: str) -> Way:
    body = json.dumps({"error": {"message": f"these are the words of {code}"}})
    head = [
        f"HTTP/1.1 {code} Trouble",
        *headers,
        f"Content-Length: {len(body)}",
        "",
        body,
    ]
    return raw("\r\n".join(head).encode())


def answer(body: bytes | str | Any, *headers: str) -> Way:
    """Status 200 with this body."""
    data = (
        body
        if isinstance(body, bytes)
        else (body if isinstance(body, str) else json.dumps(body)).encode()
    )
    head = ["HTTP/1.1 200 OK", *headers, f"Content-Length: {len(data)}", "", ""]
    return raw("\r\n".join(head).encode() + data)


def drip(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
    for _ in range(400):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def endless_headers(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(4000):
        handler.wfile.write(f"X-{number}: y\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.002)


def endless_body(handler: Any) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    for _ in range(4000):
        handler.wfile.write(b"x" * 65536)


def empty_pieces(handler: Any) -> None:
    """A stream that lives and says nothing: no line is like the one before it."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    for number in range(2000):
        piece = {
            "choices": [{"text": "", "token_ids": [], "finish_reason": None}],
            "n": number,
        }
        handler.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
        handler.wfile.flush()
        time.sleep(0.01)


def reset(handler: Any) -> None:
    handler.connection.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0: a reset


FINAL: dict[str, Way] = {
    f"status {code}": status(code, "Location: /") for code in REFUSALS
}
"""Refusals that will not change: the run ends at the first, with the server's words."""
WAYS: dict[str, Way] = {
    **{f"status {code}": status(code) for code in TROUBLES},
    **{
        f"retry after {value!r}": status(503, f"Retry-After: {value}")
        for value in LATER
    },
    "closes at once": lambda handler: None,
    "resets": reset,
    "says nothing": raw(b"", hold=20),
    "stops after the headers": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", hold=20
    ),
    "slow bytes": drip,
    "endless headers": endless_headers,
    "endless body": endless_body,
    "is no HTTP": raw(b"220 smtp.example.org ESMTP\r\n"),
    "garbage": answer(bytes(range(256))),
    "an empty body": answer(b""),
    "no content": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "HTML": answer(
        "<html><body>Please log in</body></html>", "Content-Type: text/html"
    ),
    "torn JSON": answer('{"choices": [{"text": "al'),
    "less than it says": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}"),
    "a broken chunk": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"
    ),
    "deep JSON": answer("[" * 100_000),
    "null": answer(None),
    "a number": answer(7),
    "a list": answer([]),
    "no choices": answer({"choices": []}),
    "choices that are a text": answer({"choices": "aligned"}),
    "a text that is a number": answer({"choices": [{"text": 7}]}),
    "an error with status 200": answer({"error": {"message": "out of memory"}}),
    "given up": answer({"choices": [{"text": "al", "finish_reason": "abort"}]}),
    "wrong gzip": answer(json.dumps(GOOD).encode(), "Content-Encoding: gzip"),
    "half a gzip": answer(
        gzip.compress(json.dumps(GOOD).encode())[:20], "Content-Encoding: gzip"
    ),
    "a double gzip": answer(
        gzip.compress(gzip.compress(json.dumps(GOOD).encode())),
        "Content-Encoding: gzip, gzip",
    ),
    "empty pieces without end": empty_pieces,
    "half a character": answer(
        '{"choices": [{"text": "\\ud800 a", "finish_reason": "length"}]}'
    ),
    "an infinite count": answer(
        '{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1e999}}'
    ),
    "probabilities of nothing": answer(
        {"choices": [{"text": "al", "logprobs": {"top_logprobs": []}}]}
    ),
    "probabilities that are words": answer(
        {"choices": [{"text": "al", "logprobs": {"top_logprobs": [{"al": "likely"}]}}]}
    ),
    "probabilities that are no numbers": answer(
        '{"choices": [{"text": "al", "logprobs": {"top_logprobs": [{"al": NaN, "un": Infinity}]}}]}'
    ),
}
"""Everything else, which another attempt might mend."""
