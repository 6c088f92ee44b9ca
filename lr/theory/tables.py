"""The paper's measurements as data: Table 1 (speedups and acceptance) and Table 3 (width).

Only what was printed; nothing here is fitted or guessed (that is `fit.py`). "SD" is prompt lookup,
8 speculative tokens by default. The paper states neither c1 nor c2 nor step lengths for these
pairs. Source: arXiv 2506.19830 v1, Tables 1 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass

DATASETS = ("AIME24", "AMC23", "GSM8K", "HumanEval", "GPQA", "MT-Bench", "LiveCodeBench")


@dataclass(frozen=True)
class Pair:
    """A column block of Table 1: acceptance of draft steps and the three speedups over plain
    decoding, by data set.
    """

    name: str
    acceptance: tuple[float, ...]
    lookahead: tuple[float, ...]
    tokens: tuple[float, ...]
    both: tuple[float, ...]


TABLE_1 = {
    "r1": Pair(
        "DeepSeek-R1-Distill 1.5B / 32B",
        (0.47, 0.58, 0.63, 0.44, 0.35, 0.48, 0.47),
        (1.36, 1.48, 1.71, 1.27, 1.14, 1.27, 1.21),
        (1.53, 1.50, 1.39, 1.32, 1.48, 1.25, 1.45),
        (1.82, 2.00, 2.11, 1.54, 1.63, 1.51, 1.58),
    ),
    "qwen3": Pair(
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
    """A row of Table 3, depth 2: acceptance and speedup for `WIDTHS` alternatives."""

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
