"""Addresses of served models, `openai:http://host:port/name`, and how to reach them.

See docs/engines.md. This module opens no connection. Read next: `client.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from lr.errors import SettingError
from lr.registry import is_served
from lr.types import require

Lost = Literal["stop", "reject"]
PREFIX = "openai:"
EXAMPLE = "openai:http://localhost:8000/Qwen/Qwen3-32B"


@dataclass(frozen=True)
class Address:
    """A model on a server. `server`: URL before `/v1`, with port; `model` None: its
    only one."""

    server: str
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address. Raises `SettingError`."""
        import httpx  # here: it takes 0.1 s, and only served models need it

        try:
            url = httpx.URL(text.removeprefix(PREFIX))
        except httpx.InvalidURL as error:
            raise SettingError(f"{text[:200]!r} is not an address: {error}.") from None
        port = (
            {"http": 80, "https": 443}.get(url.scheme, 0)
            if url.port is None
            else url.port
        )
        wrong = ""
        if not is_served(text) or url.scheme not in ("http", "https") or not url.host:
            wrong = (
                f"is not the address of a served model, expected one such as {EXAMPLE}"
            )
        elif not text.startswith(PREFIX):
            wrong = (
                f"is a web address; a model behind a server is written {PREFIX}{text}"
            )
        elif url.query or url.fragment or url.userinfo:
            wrong = f"has a user, a query or a fragment; expected {EXAMPLE}. A key is --api_key"
        elif not 0 < port < 2**16:
            wrong = "has an impossible port; expected a number from 1 to 65535"
        if wrong:
            raise SettingError(f"{text!r} {wrong}.")
        base, versioned, name = f"{url.path}/".partition("/v1/")
        if not versioned:
            base, name = "", url.path[1:]
        host = f"[{url.host}]" if ":" in url.host else url.host
        return cls(
            f"{url.scheme}://{host}:{port}{base}", name.removesuffix("/") or None
        )

    def __str__(self) -> str:
        return f"{PREFIX}{self.server}/{self.model or ''}"


@dataclass(frozen=True)
class Retry:
    """How to repeat failed requests. An attempt fails after `timeout` seconds without
    news (a line of a stream, or a whole answer). There are at most `attempts`. The wait
    before the second is `pause` seconds and doubles after that, up to `longest`, which
    also bounds what a server asks for. Once failures have cost `budget` seconds,
    nothing is tried again. `lost`: when the judge fails for good, the run stops, or
    continues and rejects every draft step."""

    timeout: float = 120.0
    attempts: int = 5
    pause: float = 0.5
    longest: float = 10.0
    budget: float = 60.0
    lost: Lost = "stop"

    def __post_init__(self) -> None:
        for name in ("timeout", "budget"):
            value = getattr(self, name)
            require(
                0 < value <= 1e6,
                f"server_{name}",
                value,
                "seconds, above 0, at most 1e6",
            )
        require(self.lost in get_args(Lost), "judge_lost", self.lost, "stop or reject")
        require(1 <= self.attempts <= 100, "attempts", self.attempts, "1 to 100")
        fits = 0 <= self.pause <= self.longest
        require(fits, "pause", self.pause, f"seconds, 0 to {self.longest:g}")

    def wait(self, attempt: int, asked: float | None = None) -> float:
        """Seconds to wait after attempt number `attempt`; `asked`: what the server asks
        for."""
        if asked is None or not math.isfinite(asked):
            asked = self.pause * 2.0 ** (attempt - 1)
        return min(self.longest, max(0.0, asked))


@dataclass(frozen=True)
class Servers:
    """Settings for all servers. Each gets `api_key`. The tokenizer and chat template of
    target, draft and judge come from a checkpoint (a directory, a hub id, a tiny
    model); None: the model's name on its server."""

    api_key: str | None = field(default=None, repr=False)  # printed text may be stored
    tokenizer: str | None = None
    draft_tokenizer: str | None = None
    judge_tokenizer: str | None = None
    retry: Retry = field(default_factory=Retry)
