"""Experiment `verifiers`: acceptance against accuracy, the paper's Table 2 (arXiv 2506.19830):
random, embedding, judge, score, likelihood.

For the tiny language the oracle says of every pair that was judged whether the two steps mean the
same, so each verifier has a precision (of the pairs it accepts, how many mean the same) and a
recall (of those that do, how many it accepts). That needs both steps; verifiers that judge without
the target's step (score, likelihood) have neither.
"""

from __future__ import annotations

from lr.errors import SettingError
from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Points
from lr.lab.eval.keeping import Keeping, pair_from_json
from lr.lab.eval.store import read_object

NAMES = (
    *("oracle", "judge:0.5", "judge:0.9", "embedding:0.95", "embedding:0.85"),
    *(
        "random:0.3",
        "random:0.5",
        "random:0.7",
        "likelihood:-1",
        "likelihood:-3",
        "score:7",
        "always",
    ),
)
COLUMNS = (
    "verifier",
    "right",
    "95 %",
    "steps kept",
    "precision",
    "recall",
    "pairs",
    "ms per pair",
    "lost",
    "won",
    "p",
)


def arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then Lookahead Reasoning with every verifier for which there is what it is
    made of.
    """
    found = [Arm("ar", "ar")]
    for name in NAMES:
        try:
            lab.verifier_named(name)
        except SettingError:
            continue
        found.append(Arm(name.replace(":", "_"), "lr", {}, name, Keeping(pairs=True)))
    return found


def find(lab: Lab, outcome: Outcome) -> Finding:
    """One row per verifier."""
    shown, points = [], []
    plain = outcome.rows["ar"]
    for name, row in outcome.rows.items():
        precision, recall, pairs = (
            _agreement(lab, outcome, name) if name != "ar" and lab.tiny else (None, None, 0)
        )
        judged = sum(
            one.get("stats", {}).get("judged", 0) for one in outcome.runs[name].records.values()
        )
        spent = 1000 * (row.judge_seconds or 0.0) / judged if judged else None
        lost, won = (row.flips[1], row.flips[0]) if row.flips else (None, None)
        label = "plain decoding" if name == "ar" else name.replace("_", ":")
        shown.append(
            (
                label,
                row.accuracy,
                row.accuracy_interval,
                row.step_acceptance,
                precision,
                recall,
                pairs or None,
                spent,
                lost,
                won,
                row.flip_p,
            )
        )
        if row.step_acceptance is not None and row.accuracy is not None:
            points.append((row.step_acceptance, row.accuracy, label))
    return Finding(
        f"Verifiers, {plain.problems} problems: what is accepted, and what it costs",
        COLUMNS,
        shown,
        [
            Points(
                "each point a verifier, dotted: plain decoding",
                "draft steps kept, of those judged",
                "right",
                [("lr", points)],
                line=plain.accuracy,
            )
        ],
        [
            "precision, recall: against the oracle, on all pairs that the verifier was asked about in its own run.",
            "lost, won: answers that are wrong here and right in plain decoding, and the other way; p: the sign test.",
        ],
    )


def _agreement(lab: Lab, outcome: Outcome, name: str) -> tuple[float | None, float | None, int]:
    """Precision and recall against the oracle, and the number of pairs with both steps."""
    accepted = aligned = both = count = 0
    language = lab.language
    assert language is not None, "find asks for tiny targets only"
    for key in outcome.runs[name].records:
        kept = read_object(lab.work / name / "pairs" / key.file)
        for one in kept["pairs"]:
            pair = pair_from_json(one, kept["prompt"])
            if pair.target is None:
                continue
            same = language.same_meaning(
                lab.decode(pair.draft.tokens), lab.decode(pair.target.tokens)
            )
            said = bool(one["verdict"]["aligned"])
            count, accepted, aligned, both = (
                count + 1,
                accepted + said,
                aligned + same,
                both + (said and same),
            )
    return both / accepted if accepted else None, both / aligned if aligned else None, count
