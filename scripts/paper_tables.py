"""The paper's measurements as data, and fits to them.

`TABLE_1` and `TABLE_3` are Tables 1 and 3 as printed (arXiv 2506.19830 v1). The paper
states neither c1 nor c2 nor lengths of steps. The rest is fitted, and a good fit does
not make it true:

    Table 1    speedup of lookahead = 1 / ((1+v)(1-alpha) + c alpha), one c and v per model pair
    Table 3    acceptance with W alternatives = Beta(p, q) siblings; G_3(alpha_W) / speedup is the
               implied time of a cycle, a straight line in its target rows

Here c and v include everything that costs like a draft step or like a verdict. With v =
0 no common c fits. "SD" in Table 1 is prompt lookup of 8 tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, curve_fit

from lr.theory.acceptance import beta_width_acceptance, tree_rows
from lr.theory.asynchronous import lr_async_limit
from lr.theory.domain import Reals, geometric
from lr.theory.synchronous import sd_tokens

PAPER_DATASETS = tuple(
    "AIME24 AMC23 GSM8K HumanEval GPQA MT-Bench LiveCodeBench".split()
)
LOOKUP_TOKENS = 8


@dataclass(frozen=True)
class ModelPair:
    """A block of Table 1 by data set: acceptance of draft steps, and three speedups."""

    name: str
    acceptance: tuple[float, ...]
    lookahead: tuple[float, ...]
    tokens: tuple[float, ...]
    both: tuple[float, ...]


TABLE_1 = {
    "r1": ModelPair(
        "DeepSeek-R1-Distill 1.5B / 32B",
        (0.47, 0.58, 0.63, 0.44, 0.35, 0.48, 0.47),
        (1.36, 1.48, 1.71, 1.27, 1.14, 1.27, 1.21),
        (1.53, 1.50, 1.39, 1.32, 1.48, 1.25, 1.45),
        (1.82, 2.00, 2.11, 1.54, 1.63, 1.51, 1.58),
    ),
    "qwen3": ModelPair(
        "Qwen3 1.7B / 32B",
        (0.43, 0.53, 0.50, 0.39, 0.30, 0.38, 0.40),
        (1.12, 1.22, 1.32, 1.13, 1.04, 1.10, 1.08),
        (1.40, 1.38, 1.32, 1.32, 1.40, 1.41, 1.25),
        (1.49, 1.62, 1.68, 1.39, 1.44, 1.49, 1.32),
    ),
}

WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True)
class WidthRow:
    """A row of Table 3 (depth 2): acceptance and speedup for `WIDTHS` alternatives."""

    name: str
    acceptance: tuple[float, ...]
    speedup: tuple[float, ...]


TABLE_3 = (
    WidthRow("GSM8K, judge 7B", (0.63, 0.73, 0.77, 0.83), (1.48, 1.49, 1.47, 1.25)),
    WidthRow("GSM8K, judge 32B", (0.58, 0.66, 0.73, 0.77), (1.40, 1.42, 1.39, 1.19)),
    WidthRow("AIME24, judge 7B", (0.47, 0.58, 0.67, 0.74), (1.27, 1.32, 1.26, 1.00)),
    WidthRow("AIME24, judge 32B", (0.46, 0.54, 0.59, 0.68), (1.23, 1.23, 1.17, 0.98)),
)
TABLE_3_DEPTH = 2


def fit_speedups(pair: ModelPair) -> tuple[float, float]:
    """The (c, v) that best explain the lookahead speedups of a pair, given its
    acceptance."""
    # Least squares of S_1(alpha) = 1 / ((1 + v)(1 - alpha) + c alpha).
    (c, v), _ = curve_fit(
        lr_async_limit,
        np.array(pair.acceptance),
        np.array(pair.lookahead),
        p0=(0.3, 0.2),
        bounds=(0, (0.999, np.inf)),
        xtol=1e-12,
    )
    return float(c), float(v)


@dataclass(frozen=True)
class WidthFit:
    """The fit to a row of Table 3: siblings from Beta(`p`, `q`), and a line through the
    cycle times G_3(alpha_W) / speedup: `base_time` with one alternative, `per_row` per
    row more."""

    p: float
    q: float
    base_time: float
    per_row: float


def fit_width(row: WidthRow) -> WidthFit:
    """Fit the correlation of siblings in one row of Table 3, and the cost of its target
    rows."""

    def accepted(widths: Reals, p: float, q: float) -> Any:
        return beta_width_acceptance(p, q, widths)

    printed = np.array(row.acceptance)
    (p, q), _ = curve_fit(
        accepted, WIDTHS, printed, p0=(0.4, 0.3), bounds=(1e-9, np.inf), xtol=1e-12
    )
    # G_3(alpha_W) / speedup
    times = geometric(printed, TABLE_3_DEPTH + 1) / np.array(row.speedup)
    rows = np.asarray(tree_rows(np.array(WIDTHS), TABLE_3_DEPTH))
    # time = base + per_row (N - 1)
    per_row, base = np.polyfit(rows - rows[0], times, 1)
    return WidthFit(float(p), float(q), float(base), float(per_row))


def token_acceptance(pair: ModelPair, dataset: str) -> float:
    """The rate at which 8 free draft tokens give the SD speedup of Table 1."""
    speedup = pair.tokens[PAPER_DATASETS.index(dataset)]

    def surplus(alpha2: float) -> float:
        return float(sd_tokens(alpha2, LOOKUP_TOKENS)) - speedup

    return float(brentq(surplus, 0, 1, xtol=1e-14))
