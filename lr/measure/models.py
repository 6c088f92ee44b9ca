"""The models of a measurement, loaded when they are first needed, and verifiers by name
on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lr.engine.verifiers import VerifierChoice
from lr.measure.verifier_eval import SheetTexts
from lr.reasoner import Reasoner
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.fitted import SCORES, SIGNALS
from lr.tiny.names import speaks_tiny
from lr.types import require

ASK_NO_MODEL = ("exact", "likelihood", "numbers", "fitted")


@dataclass
class Models:
    """`load(True)` gives the draft alone. `judge`: the checkpoint of verifiers that name
    none. `settings`: what run.json says of the models."""

    load: Callable[[bool], Reasoner]
    judge: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    _reasoners: dict[bool, Reasoner] = field(default_factory=dict, init=False)
    _verifiers: dict[str, Verifier] = field(default_factory=dict, init=False)

    def reasoner(self, *, draft_alone: bool = False) -> Reasoner:
        if draft_alone not in self._reasoners:
            self._reasoners[draft_alone] = self.load(draft_alone)
        return self._reasoners[draft_alone]

    @property
    def is_tiny(self) -> bool:
        """Whether the models speak the tiny language, which has an oracle."""
        return speaks_tiny(self.reasoner().codec)

    def verifier(self, name: str, texts: SheetTexts | None = None) -> Verifier:
        """A verifier by name, loaded once; judge@PATH and embedding:0.95@PATH name its
        checkpoint. With the `texts` of a sheet, one that asks no model loads none.
        Raises `SettingError` if a checkpoint is missing."""
        if texts is not None and name.partition(":")[0] in ASK_NO_MODEL:
            choice = VerifierChoice(name, texts)  # type: ignore[arg-type]
            if not choice.asks_model:
                return choice.build(None)
        if name not in self._verifiers:
            kind, _, checkpoint = name.partition("@")
            if not checkpoint and kind.startswith("judge"):
                checkpoint = self.judge or ""
            reasoner = self.reasoner()
            target = reasoner.engine.target_model
            choice = VerifierChoice(
                kind,
                reasoner.codec,
                checkpoint or None,
                target.device,
                reasoner.engine.loader,
            )
            self._verifiers[name] = choice.build(target)
        return self._verifiers[name]

    def scorers(self, signals: Sequence[str]) -> dict[str, Verifier]:
        """The verifiers whose scores are signals. Raises `SettingError` for a signal
        that does not exist."""
        known = (*SIGNALS, *SCORES)
        for name in signals:
            require(name in known, "signals", name, f"one of {', '.join(known)}")
        return {name: self.verifier(name) for name in signals if name in SCORES}

    def require_vocabulary(self, pairs: Sequence[Pair]) -> None:
        """Raise `SettingError` if the model, if one was loaded, cannot have written the
        pairs."""
        if self._reasoners:
            codec = self.reasoner().codec
            largest = max(max(*pair.prefix, *pair.draft_step.tokens) for pair in pairs)
            wrote = f"the target that wrote these pairs: they have token {largest}"
            require(largest < codec.vocab_size, "model", codec.name, wrote)

    def close(self) -> None:
        for reasoner in self._reasoners.values():
            reasoner.close()
