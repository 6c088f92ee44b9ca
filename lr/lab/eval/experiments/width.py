"""Experiment `width`: alternatives per step, the paper's Table 3 (arXiv 2506.19830): W = 1, 2, 4, 8
at depth 2, for two verifiers.
"""

from __future__ import annotations

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Points

WIDTHS = (1, 2, 4, 8)
COLUMNS = (
    "verifier",
    "W",
    "right",
    "95 %",
    "places kept",
    "pairs kept",
    "speedup",
    "95 %",
    "tokens/pass",
    "wasted",
)


def verifiers(lab: Lab) -> list[str]:
    """The judge, and the oracle where there is one."""
    return [lab.verifier, "oracle"] if lab.tiny and lab.verifier != "oracle" else [lab.verifier]


def arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every width with every verifier."""
    grid = [(name, width) for name in verifiers(lab) for width in WIDTHS]
    found = [
        Arm(
            f"{name.replace(':', '_')}_W{width}",
            "lr",
            {"depth": 2, "width": width},
            name,
            concurrency=1,
        )
        for name, width in grid
    ]
    return [Arm("ar", "ar", concurrency=1), *found]


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per verifier and width. A place is kept if one of its alternatives was accepted: the
    paper's acceptance rate.
    """
    shown, kept, speeds = [], [], []
    for name in verifiers(lab):
        accepted, fast = [], []
        for width in WIDTHS:
            label = f"{name.replace(':', '_')}_W{width}"
            row = outcome.rows[label]
            place = _places_kept(outcome, label)
            shown.append(
                (
                    name,
                    width,
                    row.accuracy,
                    row.accuracy_interval,
                    place,
                    row.step_acceptance,
                    row.speedup,
                    row.speedup_interval,
                    row.tokens_per_pass,
                    row.wasted_share,
                )
            )
            accepted.append((float(width), place or 0.0, ""))
            fast.append((float(width), row.speedup or 0.0, ""))
        kept.append((name, accepted))
        speeds.append((name, fast))
    return Finding(
        f"Width at depth 2, {outcome.rows['ar'].problems} problems",
        COLUMNS,
        shown,
        [
            Points(
                "places at which a draft step was kept",
                "alternatives per step, W",
                "share",
                kept,
                joined=True,
            ),
            Points(
                "speedup in tokens/s",
                "alternatives per step, W",
                "against plain decoding",
                speeds,
                joined=True,
                line=1.0,
            ),
        ],
        [
            "places kept: of the places where steps were judged, those where one of the W was accepted; pairs kept: of all pairs."
        ],
    )


def _places_kept(outcome: Outcome, name: str) -> float | None:
    """Accepted steps / (accepted steps + corrections)."""
    origins = [
        step[0] for one in outcome.runs[name].records.values() for step in one.get("steps", [])
    ]
    accepted, corrected = origins.count("accepted"), origins.count("correction")
    return accepted / (accepted + corrected) if accepted + corrected else None
