"""The experiments: the paper's tables (arXiv 2506.19830), and what it leaves open.

| name | question |
| --- | --- |
| speedup | the modes side by side: accuracy and speed (Table 1) |
| verifiers | acceptance against accuracy (Table 2) |
| width | alternatives per step: W = 1, 2, 4, 8 at depth 2 (Table 3) |
| profile | where the time goes, from the traces |
| budget | M token positions per target pass, divided between steps and tokens (section 3.3) |
| segmentation | where a step ends: blank lines (the paper's choice), sentences, lengths, cues |
| domains | the same pipeline on two tiny languages, quantities and plans |

Each is two functions: `arms(lab)`, the ways of answering that are compared, and `find(lab,
outcome)`, the table and the figure made from their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from lr.errors import SettingError
from lr.lab.eval import ablations
from lr.lab.eval.experiment import (
    ACCURACY,
    GUESSED,
    KEPT,
    PASSES,
    SPEEDUP,
    Arm,
    Finding,
    Lab,
    Outcome,
    bars,
    pick,
    saved_pairs,
    steps_of,
)
from lr.lab.eval.figure import Points
from lr.lab.eval.report import notes
from lr.lab.eval.running import Artifacts

# ---------------------------------------------------------------- speedup (Table 1)

SPEEDUP_COLUMNS = {
    **ACCURACY, "tokens/s": "speed", **SPEEDUP, **KEPT, **PASSES,
    "length": "length_ratio", "wasted": "wasted_share",
}  # fmt: skip


def speedup_arms(lab: Lab) -> list[Arm]:
    """The four modes of the official tool, and two more rows of Table 1."""
    lr = [Arm("lr"), Arm("lr+sd", "lr+sd", GUESSED)]
    alone = [Arm("draft", "draft"), Arm("specreason", "specreason")]
    return [Arm("ar", "ar"), Arm("sd", "sd", GUESSED), *lr, *alone]


def find_speedup(lab: Lab, outcome: Outcome) -> Finding:
    """One row per mode."""
    rows = list(outcome.rows.values())
    modes = [row.mode for row in rows]
    fast = [replace(row, speedup=1.0) if row.mode == "ar" else row for row in rows]
    return Finding(
        f"Modes side by side, {rows[0].problems} problems",
        ("mode", *SPEEDUP_COLUMNS),
        [(row.mode, *pick(row, SPEEDUP_COLUMNS)) for row in rows],
        [
            bars("right (95 % interval)", modes, rows, "accuracy", percent=True),
            bars("speedup in tokens/s (95 % interval)", modes, fast, "speedup", line=1.0),
        ],
        [
            *notes(rows),
            "The arms take turns, twelve problems at a time. SpecReason asks the target for a "
            "score: see its acceptance.",
        ],
    )


# ---------------------------------------------------------------- verifiers (Table 2)

VERIFIERS = (
    "oracle", "judge:0.5", "judge:0.9", "embedding:0.95", "embedding:0.85", "random:0.3",
    "random:0.5", "random:0.7", "likelihood:-1", "likelihood:-3", "score:7", "always",
)  # fmt: skip


def verifier_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then Lookahead Reasoning with every verifier whose checkpoint is there."""
    found = [Arm("ar", "ar", concurrency=None)]
    for name in VERIFIERS:
        try:
            lab.verifier_named(name)
        except SettingError:
            continue
        label, save = name.replace(":", "_"), Artifacts(pairs=True)
        found.append(Arm(label, verifier=name, artifacts=save, concurrency=None))
    return found


def find_verifiers(lab: Lab, outcome: Outcome) -> Finding:
    """One row per verifier. For the tiny language the oracle says of every judged pair whether the
    two steps mean the same, so each verifier has a precision (of the pairs it accepts, how many
    mean the same) and a recall (of those that do, how many it accepts). Verifiers that judge
    without the target's step (score, likelihood) have neither."""
    shown, points = [], []
    for name, row in outcome.rows.items():
        precision = recall = count = None
        if name != "ar" and lab.language is not None:
            pairs = saved_pairs(lab, outcome, name)
            said = [aligned for _, aligned in pairs]
            texts = [
                (lab.decode(p.draft.tokens), lab.decode(p.target_step.tokens)) for p, _ in pairs
            ]
            same = [lab.language.same_meaning(draft, target) for draft, target in texts]
            both = sum(map(min, said, same))
            precision = both / sum(said) if any(said) else None
            recall, count = both / sum(same) if any(same) else None, len(pairs) or None
        stats = [one.get("stats", {}) for one in outcome.runs[name].records.values()]
        judged = sum(one.get("judged", 0) for one in stats)
        spent = 1000 * (row.judge_seconds or 0.0) / judged if judged else None
        won, lost = row.flips or (None, None)
        label = "plain decoding" if name == "ar" else name.replace("_", ":")
        head = (label, *pick(row, ACCURACY), row.step_acceptance)
        shown.append((*head, precision, recall, count, spent, lost, won, row.flip_p))
        if row.step_acceptance is not None and row.accuracy is not None:
            points.append((row.step_acceptance, row.accuracy, label))
    kept = "draft steps kept, of those judged"
    title, line = "each point a verifier, dotted: plain decoding", outcome.rows["ar"].accuracy
    measured = ("precision", "recall", "pairs", "ms per pair", "lost", "won", "p")
    return Finding(
        f"Verifiers, {outcome.rows['ar'].problems} problems: what is accepted, and what it costs",
        ("verifier", *ACCURACY, "steps kept", *measured),
        shown,
        [Points(title, kept, "right", [("lr", points)], line=line)],
        [
            "precision, recall: against the oracle, on all pairs that the verifier was asked about "
            "in its own run.",
            "lost, won: answers that are wrong here and right in plain decoding, and the other "
            "way; p: the sign test.",
        ],
    )


# ---------------------------------------------------------------- width (Table 3)

WIDTHS = (1, 2, 4, 8)
WIDTH_COLUMNS = {"pairs kept": "step_acceptance", **SPEEDUP, **PASSES, "wasted": "wasted_share"}


def _width_verifiers(lab: Lab) -> list[str]:
    """The judge, and the oracle if there is one."""
    with_oracle = lab.language is not None and lab.verifier != "oracle"
    return [lab.verifier, "oracle"] if with_oracle else [lab.verifier]


def _width_arm(name: str, width: int) -> Arm:
    options = {"depth": 2, "width": width}
    return Arm(f"{name.replace(':', '_')}_W{width}", "lr", options, name)


def width_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every width with every verifier."""
    grid = [_width_arm(name, width) for name in _width_verifiers(lab) for width in WIDTHS]
    return [Arm("ar", "ar"), *grid]


def find_width(lab: Lab, outcome: Outcome) -> Finding:
    """One row per verifier and width. A place is kept if one of its alternatives was accepted: the
    paper's acceptance rate, accepted steps / (accepted steps + corrections)."""
    shown, kept, speeds = [], [], []
    for name in _width_verifiers(lab):
        accepted, fast = [], []
        for width in WIDTHS:
            label = _width_arm(name, width).name
            row, origins = outcome.rows[label], Counter(one for one, _ in steps_of(outcome, label))
            places = origins["accepted"] + origins["correction"]
            place = origins["accepted"] / places if places else None
            shown.append((name, width, *pick(row, ACCURACY), place, *pick(row, WIDTH_COLUMNS)))
            accepted.append((float(width), place or 0.0, ""))
            fast.append((float(width), row.speedup or 0.0, ""))
        kept.append((name, accepted))
        speeds.append((name, fast))
    x, against = "alternatives per step, W", "against plain decoding"
    return Finding(
        f"Width at depth 2, {outcome.rows['ar'].problems} problems",
        ("verifier", "W", *ACCURACY, "places kept", *WIDTH_COLUMNS),
        shown,
        [
            Points("places at which a draft step was kept", x, "share", kept, joined=True),
            Points("speedup in tokens/s", x, against, speeds, joined=True, line=1.0),
        ],
        [
            "places kept: of the places where steps were judged, those where one of the W was "
            "accepted; pairs kept: of all pairs."
        ],
    )


# ---------------------------------------------------------------- all of them


@dataclass(frozen=True)
class Experiment:
    """`problems`: how many tiny problems it takes by default."""

    problems: int
    arms: Callable[[Lab], list[Arm]]
    find: Callable[[Lab, Outcome], Finding]


EXPERIMENTS = {
    "speedup": Experiment(60, speedup_arms, find_speedup),
    "verifiers": Experiment(300, verifier_arms, find_verifiers),
    "width": Experiment(24, width_arms, find_width),
    "profile": Experiment(12, ablations.profile_arms, ablations.find_profile),
    "budget": Experiment(16, ablations.budget_arms, ablations.find_budget),
    "segmentation": Experiment(24, ablations.segmentation_arms, ablations.find_segmentation),
    "domains": Experiment(48, ablations.domain_arms, ablations.find_domains),
}
