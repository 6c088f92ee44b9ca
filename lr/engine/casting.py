"""Who plays target, draft and verifier: from names to models that are loaded here, spread over
ranks, or behind a server.

What is missing or does not fit is said before anything large is loaded: tokenizers first, then the
verifier's own model, then the target and the draft. This module knows nothing of questions. Read
next: `answer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lr.engine.answer import Models
from lr.engine.placement import Layout, draft_worker
from lr.engine.remote import DraftWorker
from lr.engine.verification import VerifierChoice, choose_verifier, usual_verifier
from lr.errors import SettingError
from lr.lab.endpoint.address import Servers, is_address
from lr.lab.endpoint.models import ServedModel, served_or_none
from lr.lab.endpoint.verification import beside_served_target, served_judge
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.device import find_device
from lr.model.qwen import CausalLM
from lr.model.ranks import LeaderLM, Spread, load_target
from lr.model.weights import load_model
from lr.spec.verifiers.base import Verifier

Device = str | torch.device | Spread
"""A device by its name, or for a target several: `spread_over`."""
ROLES = ("target", "draft", "judge")


@dataclass(frozen=True)
class Places:
    """Where the models run. `target` may be spread; `home` is the device of this process, the first
    of the target's.
    """

    target: torch.device | Spread
    draft: torch.device
    judge: torch.device

    @property
    def home(self) -> torch.device:
        return self.target.devices[0] if isinstance(self.target, Spread) else self.target

    @property
    def layout(self) -> Layout:
        spread = self.target.devices if isinstance(self.target, Spread) else (self.target,)
        return Layout(spread, self.draft, self.judge)

    @classmethod
    def of(cls, target: str | Path, device: Device | Mapping[str, Device]) -> Places:
        """From one device, or from a mapping of roles. Raises `SettingError` for a device or a role
        that does not exist, or a spread that cannot be."""
        named = dict(device) if isinstance(device, Mapping) else {"target": device}
        unknown = sorted(set(named) - set(ROLES))
        if unknown:
            raise SettingError(
                f"device has {', '.join(unknown)}, expected some of {', '.join(ROLES)}."
            )
        first = named.get("target", "cpu")
        if isinstance(first, Spread):
            if is_address(target):
                raise SettingError(
                    f"target {target} is behind a server, and tensor_parallel is {first.size}: the server spreads its models itself; "
                    "leave tensor_parallel out."
                )
            home: torch.device = first.devices[0]
        else:
            first = home = find_device(first)
        others: dict[str, str | torch.device] = {}
        for role in ROLES[1:]:
            other = named.get(role, home)
            if isinstance(other, Spread):
                raise SettingError(
                    f"the {role} is spread over {other.size} ranks; only a target can be."
                )
            others[role] = other
        layout = Layout.of(home, others)
        return cls(first, layout.draft, layout.judge)


@dataclass(frozen=True)
class Casting:
    """Names and places, before anything is loaded; the fields are those of `Reasoner`."""

    target: str | Path
    draft: str | Path | None
    judge: str | Path | None
    places: Places
    dtype: torch.dtype | None
    num_blocks: int | None
    servers: Servers

    def load(self, verifier: str | Verifier | None) -> tuple[Models, str | Verifier]:
        """Everything, and the verifier: its name where there is no draft to verify. Raises
        `CheckpointError` or `SettingError`.
        """
        served_target = served_or_none(self.target, self.servers, "target")
        codec = Codec.load(self.target) if served_target is None else served_target.codec
        served_draft = served_or_none(self.draft, self.servers, "draft", codec)
        known_tokens = codec.vocab_size
        if self.draft is not None and served_draft is None:
            draft_codec = Codec.load(self.draft)
            require_same(codec, draft_codec)
            known_tokens = draft_codec.vocab_size
        named = _named(verifier, codec, self.judge)
        dtype = self.dtype
        if dtype is None and self.places.home.type == "cpu":
            dtype = torch.float32
        judging, choice = self._judging(named, codec, dtype)
        target: Any = served_target or load_target(self.target, self.places.target, dtype)
        draft: Any = served_draft or self._draft(codec, dtype)
        give_attention((target, draft))
        if choice is not None and self.draft is not None:
            build = choice.build if served_target is None else partial(beside_served_target, choice)
            judging = build(target)
        alone = served_target is not None or served_draft is not None
        worker = None if alone or self.draft is None else self._worker(codec, draft, dtype)
        names = self._names(named)
        return Models(codec, target, draft, known_tokens, self.num_blocks, worker, names), judging

    def _judging(
        self, verifier: str | Verifier, codec: Codec, dtype: torch.dtype | None
    ) -> tuple[str | Verifier, VerifierChoice | None]:
        """The verifier if it is an object already, a served judge included; else its name and what
        it is built from.
        """
        served = served_or_none(self.judge, self.servers, "judge")
        if isinstance(verifier, str) and served is not None:
            verifier = served_judge(verifier, codec, served)
        if not isinstance(verifier, str) or (self.draft is None and self.judge is None):
            return verifier, None
        device, blocks = self.places.judge, self.num_blocks
        return verifier, choose_verifier(
            verifier, codec, self.judge, device=device, dtype=dtype, num_blocks=blocks
        )

    def _draft(self, codec: Codec, dtype: torch.dtype | None) -> Any:
        if self.draft is None:
            return None
        model = load_model(self.draft, device=self.places.draft, dtype=dtype)
        _require_rows(model, self.draft, self.target, codec)
        return model

    def _worker(self, codec: Codec, draft: CausalLM, dtype: torch.dtype | None) -> DraftWorker:
        assert self.draft is not None
        tokens = tuple(map(codec.token_bytes, range(codec.vocab_size)))
        return draft_worker(self.places.layout, draft, self.draft, dtype, tokens)

    def _names(self, verifier: str | Verifier) -> dict[str, str | None]:
        """What each was loaded by."""
        said = getattr(verifier, "name", verifier)
        loaded = {"target": self.target, "draft": self.draft, "judge": self.judge, "verifier": said}
        return {role: None if name is None else str(name) for role, name in loaded.items()}


def give_attention(
    models: Iterable[CausalLM | ServedModel | None], name: str = "auto", *, graphs: bool = True
) -> None:
    """Attention for the models that run here. Those spread over ranks are not recorded."""
    for model in models:
        if isinstance(model, CausalLM):
            equip(model, name, graphs=graphs and not isinstance(model, LeaderLM))


def _named(
    verifier: str | Verifier | None, codec: Codec, judge: str | Path | None
) -> str | Verifier:
    if verifier is None:
        return usual_verifier(codec, judge)
    if isinstance(verifier, str) or (
        callable(getattr(verifier, "judge", None)) and hasattr(verifier, "name")
    ):
        return verifier
    raise SettingError(
        f"verifier is {verifier!r}, expected a name or an object with `name` and `judge`."
    )


def _require_rows(model: CausalLM, draft: str | Path, target: str | Path, codec: Codec) -> None:
    """Raise SettingError unless the draft embeds every token that the target writes."""
    if model.config.vocab_size < codec.vocab_size:
        raise SettingError(
            f"draft {draft} embeds {model.config.vocab_size} token ids, target {target} writes {codec.vocab_size}. "
            "Choose a draft whose embedding has a row for each of the target's tokens."
        )
