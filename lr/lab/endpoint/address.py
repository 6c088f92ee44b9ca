"""Where served models are, and how they are reached: `openai:http://host:port/name`, see
docs/engines.md. Opens no connection. Read next: `client.py`."""

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
    """A model on a server. `server`: what comes before `/v1`, the port included; `model` None: the
    server's only one."""

    server: str
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises `SettingError` for what is no address."""
        import httpx  # takes a tenth of a second, which only served models need

        try:
            url = httpx.URL(text.removeprefix(PREFIX))
        except httpx.InvalidURL as error:
            raise SettingError(f"{text[:200]!r} is no address: {error}.") from None
        port = {"http": 80, "https": 443}.get(url.scheme, 0) if url.port is None else url.port
        wrong = ""
        if not is_served(text) or url.scheme not in ("http", "https") or not url.host:
            wrong = f"is no address of a served model, expected one such as {EXAMPLE}"
        elif not text.startswith(PREFIX):
            wrong = f"is a web address; a model behind a server is written {PREFIX}{text}"
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
        return cls(f"{url.scheme}://{host}:{port}{base}", name.removesuffix("/") or None)

    def __str__(self) -> str:
        return f"{PREFIX}{self.server}/{self.model or ''}"


@dataclass(frozen=True)
class Retry:
    """An attempt is given up after `timeout` seconds without news: a line of a stream, or a whole
    answer. There are at most `attempts`; before the second one waits `pause` seconds, before each
    further one twice as long, never longer than `longest`, whatever the server asks for. Once
    failures have cost `budget` seconds, nothing is tried again. `lost`: what becomes of a run whose
    judge is given up: it stops, or it goes on and rejects every draft step."""

    timeout: float = 120.0
    attempts: int = 5
    pause: float = 0.5
    longest: float = 10.0
    budget: float = 60.0
    lost: Lost = "stop"

    def __post_init__(self) -> None:
        for name in ("timeout", "budget"):
            value = getattr(self, name)
            require(0 < value <= 1e6, f"server_{name}", value, "seconds, above 0, at most 1e6")
        require(self.lost in get_args(Lost), "judge_lost", self.lost, "stop or reject")
        require(1 <= self.attempts <= 100, "attempts", self.attempts, "1 to 100")
        fits = 0 <= self.pause <= self.longest
        require(fits, "pause", self.pause, f"seconds, 0 to {self.longest:g}")

    def wait(self, attempt: int, asked: float | None = None) -> float:
        """Seconds to wait after attempt number `attempt`, if the server asks for `asked`."""
        if asked is None or not math.isfinite(asked):
            asked = self.pause * 2.0 ** (attempt - 1)
        return min(self.longest, max(0.0, asked))


@dataclass(frozen=True)
class Servers:
    """`api_key` is sent to every server. `tokenizer`, `draft_tokenizer`, `judge_tokenizer`:
    checkpoints (a directory, a hub id, a tiny model) whose tokenizer and chat template the served
    target, draft and judge have; None: the name of the model on its server."""

    api_key: str | None = field(default=None, repr=False)  # what is printed may be kept
    tokenizer: str | None = None
    draft_tokenizer: str | None = None
    judge_tokenizer: str | None = None
    retry: Retry = field(default_factory=Retry)
