"""Which models the verifier laboratory and the drift ledger take: those of the run that kept the
pairs, unless others are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lr.commands.models import DtypeName, Placement

if TYPE_CHECKING:
    from lr.lab.eval.experiments.lab import Lab


@dataclass(frozen=True)
class LabChoice:
    """Models and where they run."""

    model: str | None = None
    """The target. None: that of the run."""
    judge_model: str | None = None
    """The judge. None: that of the run, or tiny-judge for tiny-target."""
    encoder: str | None = None
    """The sentence encoder of verifier embedding."""
    device: str = "auto"
    """auto, or a torch device."""
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""

    def lab(self, run: Path) -> Lab:
        """A laboratory with the target alone; verifiers are loaded when they are named."""
        from lr.lab.eval.experiments.lab import Lab, LabModels
        from lr.lab.eval.store import SETTINGS, read_object

        home = run if (run / SETTINGS).is_file() else run.parent
        known = read_object(home / SETTINGS)["settings"] if (home / SETTINGS).is_file() else {}
        target = self.model or known.get("model") or "tiny-target"
        judge = (
            self.judge_model
            or known.get("judge_model")
            or ("tiny-judge" if target == "tiny-target" else None)
        )
        placement = Placement(self.device, self.dtype)
        placement.set_threads(target)
        models = LabModels(
            target,
            None,
            judge,
            self.encoder,
            str(placement.torch_device()),
            placement.torch_dtype(),
        )
        return Lab(models, [], Path())
