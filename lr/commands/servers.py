"""The flags for models behind servers, shared by the commands. The one place where a key is read
from the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lr.errors import SettingError

if TYPE_CHECKING:
    from lr.lab.endpoint.settings import Servers

KEY = "LR_API_KEY"


@dataclass(frozen=True)
class ServerChoice:
    """How models are reached that are named by an address, openai:http://host:port/name."""

    api_key: str | None = None
    """Sent to every such server. None: what the environment variable LR_API_KEY says; there it is
    safer from other people's eyes.
    """
    tokenizer: str | None = None
    """The checkpoint (directory or hub id) that the target's server has loaded; None: the model's
    name there. Weights are not needed.
    """
    draft_tokenizer: str | None = None
    """The same for a draft behind a server."""
    judge_tokenizer: str | None = None
    """The same for a judge behind a server."""
    server_timeout: float = 120.0
    """Seconds of silence after which a request is tried again; after five times in a row the run
    ends.
    """

    def servers(self, *, draft_alone: bool = False) -> Servers:
        """These flags as the engine takes them. `draft_alone`: the draft takes the target's
        place.
        """
        from lr.lab.endpoint.http import Patience
        from lr.lab.endpoint.settings import Servers

        return Servers(
            self.api_key or os.environ.get(KEY) or None,
            self.draft_tokenizer if draft_alone else self.tokenizer,
            self.draft_tokenizer,
            self.judge_tokenizer,
            Patience(silence=self.server_timeout),
        )

    def tokenizers(self) -> dict[str, str]:
        """The tokenizers that were named, by flag: all that an answer can depend on."""
        names = ("tokenizer", "draft_tokenizer", "judge_tokenizer")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def judge_address(port: int, model: str | None) -> str:
    """The judge at a port of this machine, as the official tool means it. `model` None: the only
    one that is served there.
    """
    if not 1 <= port <= 65535:
        raise SettingError(f"judge_port is {port}, expected a number from 1 to 65535.")
    return f"openai:http://localhost:{port}/{model or ''}"
