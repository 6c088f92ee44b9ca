"""Experiment `segmentation`: where a step ends. Blank lines (the paper's choice), sentences, a
fixed number of tokens, discourse cues.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Bars

CHOICES: dict[str, dict[str, Any]] = {
    "blank line": {"segmenter": "blank_line"},
    "sentence": {"segmenter": "sentence"},
    "fixed 8": {"segmenter": "fixed", "segment_tokens": 8},
    "fixed 16": {"segmenter": "fixed", "segment_tokens": 16},
    "fixed 32": {"segmenter": "fixed", "segment_tokens": 32},
    "discourse": {"segmenter": "discourse"},
}
COLUMNS = (
    "steps end at",
    "right",
    "95 %",
    "steps kept",
    "tokens/step",
    "cut",
    "steps per answer",
    "speedup",
    "95 %",
    "tokens/pass",
)


def arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every way of cutting."""
    return [
        Arm("ar", "ar", concurrency=1),
        *(Arm(n.replace(" ", "_"), "lr", o, concurrency=1) for n, o in CHOICES.items()),
    ]


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per way of cutting."""
    shown = []
    for name in CHOICES:
        label = name.replace(" ", "_")
        row, records = outcome.rows[label], list(outcome.runs[label].records.values())
        lengths = [step[1] for one in records for step in one.get("steps", [])]
        cut = sum(one.get("cut_steps", 0) for one in records) / len(lengths) if lengths else None
        shown.append(
            (
                name,
                row.accuracy,
                row.accuracy_interval,
                row.step_acceptance,
                fmean(lengths) if lengths else None,
                cut,
                len(lengths) / len(records),
                row.speedup,
                row.speedup_interval,
                row.tokens_per_pass,
            )
        )
    rows = [outcome.rows[name.replace(" ", "_")] for name in CHOICES]
    return Finding(
        f"Where steps end, {outcome.rows['ar'].problems} problems, verifier {lab.verifier}",
        COLUMNS,
        shown,
        [
            Bars(
                "draft steps kept",
                list(CHOICES),
                [row.step_acceptance or 0.0 for row in rows],
                percent=True,
            ),
            Bars(
                "speedup in tokens/s",
                list(CHOICES),
                [row.speedup or 0.0 for row in rows],
                [row.speedup_interval for row in rows],
                line=1.0,
            ),
        ],
        [
            "cut: steps that ended at the length cap. A judge made for whole steps sees pieces of them where they are cut by length."
        ],
    )
