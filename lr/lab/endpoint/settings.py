"""How served models are reached: what is the same for all requests, and whose tokenizers the
servers use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lr.lab.endpoint.http import Patience


@dataclass(frozen=True)
class Servers:
    """`api_key` is sent to every server. `tokenizer`, `draft_tokenizer`, `judge_tokenizer`:
    checkpoints (a directory, a hub id, a tiny model) whose tokenizer and chat template the served
    target, draft and judge have; None: the name of the model on its server. `patience` with a
    server that is busy, silent or broken."""

    api_key: str | None = None
    tokenizer: str | None = None
    draft_tokenizer: str | None = None
    judge_tokenizer: str | None = None
    patience: Patience = field(default_factory=Patience)

    def tokenizer_of(self, role: str) -> str | None:
        """The checkpoint named for "target", "draft" or "judge"."""
        named: str | None = getattr(self, "tokenizer" if role == "target" else f"{role}_tokenizer")
        return named

    def __repr__(self) -> str:
        """Without the key: what is printed is kept."""
        given = {
            name: getattr(self, name)
            for name in ("tokenizer", "draft_tokenizer", "judge_tokenizer", "patience")
        }
        return f"Servers({', '.join(f'{name}={value!r}' for name, value in given.items())})"
