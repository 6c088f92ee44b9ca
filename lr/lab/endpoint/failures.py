"""What goes wrong with a server, in three kinds, and how they are told apart.

*Broken*: no connection, silence, a status 5xx, an answer that is torn or no JSON; another attempt
may do better. *Busy*: broken, with 429 or 503, where the server may say how long to wait.
*Refused*: any other 4xx, and redirects; the request is wrong, and trying again would not mend it.
Users see `EndpointError`. Read next: `http.py`.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import Any

from lr.errors import LRError
from lr.lab.endpoint.address import Address

LONGEST_ANSWER = 1 << 22
"""Bytes of a line of a stream, or of an error's text; more is no completion of ours."""


class EndpointError(LRError):
    """A server cannot be reached, refuses a request, breaks off, or answers with what is no
    answer.
    """


class Cancelled(Exception):
    """The call was cancelled from outside. Nobody waits for its answer."""


class Refused(EndpointError):
    """The server refuses the request itself. `status` is the HTTP status, `detail` what it says
    about it.
    """

    def __init__(self, message: str, status: int, detail: str) -> None:
        super().__init__(message)
        self.status, self.detail = status, detail

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (str(self), self.status, self.detail)


class Broken(Exception):
    """One attempt failed, and another may do better. `wait`: seconds that the server asks for;
    `status`: of its answer, if it gave one.
    """

    def __init__(self, why: str, wait: float | None = None, status: int | None = None) -> None:
        super().__init__(why)
        self.wait, self.status = wait, status

    @property
    def busy(self) -> bool:
        """Whether the server has merely too much to do."""
        return self.status in (429, 503)


def failure(address: Address, path: str, response: HTTPResponse) -> Exception:
    """What a status from 300 on means: `Broken` for the server's troubles, `Refused` for ours."""
    status, detail = (
        response.status,
        _detail(response.read(LONGEST_ANSWER).decode("utf-8", "replace")),
    )
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
