"""The fair comparison: the same GPUs with speculation, or given wholly to the target's tensor
parallelism.

A target pass on t GPUs takes s + (1 - s) / t of the time on one: s is the share that does not get
faster with more GPUs (communication, kernels too small to split). It is an assumption with one
number; measure it (`share_from`) where it matters. A faster target makes the draft relatively
slower: c1 and v grow as the target's time shrinks.

Example, s = 0.1: 4 GPUs take 0.325 of the time, 8 take 0.2125, so from 4 to 8 the target gains
1.53, less than many a draft model on one of them. Read next: `planner.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lr.theory.calibration import Calibration, Estimate
from lr.theory.domain import DomainError, probability, whole
from lr.theory.planner import Advice, plan

SERIAL = 0.1
"""The share that does not get faster, if nothing is known."""


def pass_time(gpus: int, serial: float = SERIAL) -> float:
    """Time of a target pass on so many GPUs, in units of that on one. Raises `DomainError`."""
    s = float(probability("serial", serial))
    return s + (1 - s) / int(whole("gpus", gpus, 1))


def share_from(few: int, many: int, gain: float) -> float:
    """The share s under which `many` GPUs are `gain` times as fast as `few`. Raises `DomainError`
    where no share does that.

    (s + (1-s)/few) = gain (s + (1-s)/many). Example: 1 and 4 GPUs, 3.08: 0.1.
    """
    few, many = int(whole("few", few, 1)), int(whole("many", many, 1))
    above, below = 1 / few - gain / many, gain - 1 + 1 / few - gain / many
    if few >= many or below == 0 or not 0 <= above / below <= 1:
        raise DomainError(
            "gain", gain, f"1 to {many / few:g}, from {few} to {many} GPUs, few < many"
        )
    return above / below


@dataclass(frozen=True)
class Machine:
    """`gpus` in all, of which speculation takes `for_draft` (draft, and judge beside it); the
    calibration was made with the target on `calibrated_on`. `serial`: see above."""

    gpus: int
    calibrated_on: int = 1
    for_draft: int = 1
    serial: float = SERIAL

    @property
    def target_gpus(self) -> int:
        """What is left for the target beside the draft."""
        return self.gpus - self.for_draft


@dataclass(frozen=True)
class Comparison:
    """All times relative to plain decoding on `calibrated_on` GPUs. `advice` is relative to plain
    decoding on the GPUs that are left.
    """

    all_for_target: float
    """Speedup of plain decoding with every GPU."""
    left_for_target: float
    """Speedup of plain decoding on the GPUs beside the draft's."""
    advice: Advice

    @property
    def with_speculation(self) -> float:
        """Speedup of the best plan on the same number of GPUs."""
        return self.left_for_target * self.advice.plans[0].speedup

    @property
    def speculate(self) -> bool:
        """Whether the draft is worth its GPUs."""
        return self.with_speculation > self.all_for_target


def compare(found: Calibration, budget: int, machine: Machine) -> Comparison:
    """The best plan on these GPUs against none. Raises `DomainError` where no GPU is left for the
    target.
    """
    if machine.target_gpus < 1:
        raise DomainError(
            "gpus",
            machine.gpus,
            f"at least {machine.for_draft + 1}: {machine.for_draft} for the draft, one for the target",
        )
    base = pass_time(machine.calibrated_on, machine.serial)
    left = base / pass_time(machine.target_gpus, machine.serial)
    return Comparison(
        all_for_target=base / pass_time(machine.gpus, machine.serial),
        left_for_target=left,
        advice=plan(_faster(found, left), budget),
    )


def _faster(found: Calibration, gain: float) -> Calibration:
    """The calibration with a target that is `gain` times as fast: all that is counted in T, and is
    not the target's work, grows.
    """

    def grown(estimate: Estimate) -> Estimate:
        return Estimate(estimate.value * gain, estimate.low * gain, estimate.high * gain)

    return replace(found, c1=grown(found.c1), c2=grown(found.c2), v=grown(found.v))
