"""A calibration from the paper's tables, for those who have no models at hand. Most of it is
fitted; the conditions say what.

alpha1 is printed (Table 1). c1 and v are the fit to Table 1 (`fit.py`), alpha2 is what makes the
printed SD speedup come out of 8 free draft tokens (prompt lookup, c2 = 0), b is the slope of Table
3, and siblings are correlated as there. The authors measured none of these. Read next:
`planner.py`.
"""

from __future__ import annotations

from statistics import fmean

from lr.theory.calibration import Calibration, exactly
from lr.theory.domain import DomainError
from lr.theory.fit import fit_speedups, fit_width
from lr.theory.tables import DATASETS, TABLE_1, TABLE_3
from lr.theory.token_level import sd_tokens

LOOKUP_TOKENS = 8


def paper_calibration(pair: str = "r1", dataset: str = "GSM8K") -> Calibration:
    """A pair of Table 1 ("r1", "qwen3") on one of its data sets. Raises `DomainError` for
    others.
    """
    if pair not in TABLE_1:
        raise DomainError("pair", pair, " or ".join(TABLE_1))
    if dataset not in DATASETS:
        raise DomainError("dataset", dataset, f"one of {', '.join(DATASETS)}")
    table, column = TABLE_1[pair], DATASETS.index(dataset)
    fitted, widths = fit_speedups(table), [fit_width(row) for row in TABLE_3]
    alpha1 = table.acceptance[column]
    correlation = fmean(w.p + w.q for w in widths)
    zero = exactly(0.0)
    return Calibration(
        name=f"{table.name}, {dataset}, from the paper's tables",
        alpha1=exactly(alpha1),
        c1=exactly(fitted.c),
        alpha2=exactly(_alpha_of_lookup(table.tokens[column])),
        c2=zero,
        b=exactly(fmean(w.per_row for w in widths)),
        b_positions=zero,
        turn=zero,
        reading_alone=zero,
        b_draft=zero,
        pace=exactly(1.0),
        v=exactly(fitted.v),
        reading=zero,
        start=zero,
        step_seconds=exactly(1.0),
        second_chance=exactly(alpha1 * correlation / (correlation + 1)),
        conditions={
            "printed": "alpha1",
            "fitted": "c1 and v to the lookahead speedups, alpha2 to the SD speedup with 8 free tokens, b and siblings to Table 3",
            "not known": "c2 (0: prompt lookup), b_positions, reading, step lengths, T in seconds (1)",
        },
    )


def _alpha_of_lookup(speedup: float) -> float:
    """alpha2 with G_9(alpha2) = speedup, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if float(sd_tokens(middle, LOOKUP_TOKENS)) < speedup else (low, middle)
        )
    return low
