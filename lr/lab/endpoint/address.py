"""Where a served model is: `openai:http://host:port/name`, taken apart.

The name is everything behind the host, slashes included, as the server knows it:
`openai:http://localhost:8000/Qwen/Qwen3-32B`. A server that stands behind a path says where its own
addresses begin: `openai:https://host/gateway/v1/Qwen/Qwen3-32B`. Without a name the server's only
model is meant. Knows no connection. Read next: `http.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from lr.errors import SettingError

PREFIX = "openai:"
EXAMPLE = "openai:http://localhost:8000/Qwen/Qwen3-32B"


@dataclass(frozen=True)
class Address:
    """A model on a server. `base` is the path before `/v1`; `model` None: whichever the server
    has.
    """

    scheme: str
    host: str
    port: int
    base: str = ""
    model: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Take an address apart. Raises `SettingError` for what is none."""
        url = text.removeprefix(PREFIX)
        if not text.startswith(PREFIX) and is_address(text):
            raise SettingError(
                f"{text!r} is a web address; a model behind a server is written {PREFIX}{text}."
            )
        parts = urlsplit(url)
        if not is_address(text) or parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(
                f"{text!r} is no address of a served model, expected one such as {EXAMPLE}."
            )
        if parts.query or parts.fragment or parts.username:
            raise SettingError(
                f"{text!r} has a user, a query or a fragment; expected {EXAMPLE}. A key is given as api_key (--api_key)."
            )
        try:
            port = parts.port
        except ValueError:
            raise SettingError(
                f"{text!r} has an impossible port; expected a number from 1 to 65535."
            ) from None
        base, versioned, name = f"{parts.path}/".partition("/v1/")
        if not versioned:
            base, name = "", parts.path[1:]
        default = 443 if parts.scheme == "https" else 80
        return cls(
            parts.scheme, parts.hostname, port or default, base, name.removesuffix("/") or None
        )

    @property
    def server(self) -> str:
        """The server without the model, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"

    def __str__(self) -> str:
        return f"{PREFIX}{self.server}/{self.model or ''}"


def is_address(name: object) -> bool:
    """Whether a model is named by an address (or by something that was meant to be one) instead of
    a checkpoint.
    """
    return isinstance(name, str) and name.startswith((PREFIX, "http://", "https://"))
