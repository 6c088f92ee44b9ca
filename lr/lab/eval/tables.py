"""A report to be read: rows as text cells, as Markdown and as JSON, and the notes without which
speedups mislead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from lr.lab.eval.report import Row
from lr.lab.eval.statistics import Interval

HEADS = (
    "run",
    "mode",
    "answers",
    "right",
    "95 %",
    "tokens/s",
    "mean",
    "median",
    "speedup",
    "95 %",
    "steps kept",
    "tokens kept",
    "tokens",
    "length",
    "wasted",
    "target passes",
    "tokens/pass",
    "judge s",
)
LEGEND = """right: pass@1, the mean over problems of the share of right samples. tokens/s: all tokens over all seconds; mean, median: over
answers. speedup: in tokens/s against the baseline, paired by problem, with a bootstrap interval over problems. steps kept: accepted of
the draft steps judged; tokens kept: of the tokens guessed. length: tokens against the baseline's on the same problems. wasted: of the
target's finished steps, the share of tokens that is not in the answer."""


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, under `HEADS`."""
    return (
        row.name,
        row.mode,
        str(row.answers),
        _number(row.accuracy, "{:.1%}"),
        _interval(row.accuracy_interval, "{:.1%}"),
        _number(row.speed, "{:.1f}"),
        _number(row.mean_speed, "{:.1f}"),
        _number(row.median_speed, "{:.1f}"),
        _number(row.speedup, "{:.2f}"),
        _interval(row.speedup_interval, "{:.2f}"),
        _number(row.step_acceptance, "{:.2f}"),
        _number(row.token_acceptance, "{:.2f}"),
        str(row.tokens),
        _number(row.length_ratio, "{:.2f}"),
        _number(row.wasted_share, "{:.0%}"),
        "" if row.target_passes is None else str(row.target_passes),
        _number(row.tokens_per_pass, "{:.2f}"),
        _number(row.judge_seconds, "{:.2f}"),
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """What has to be said beside the numbers."""
    said = []
    hardware = {row.devices for row in rows if row.devices}
    if len(hardware) > 1:
        each = "; ".join(
            f"{row.name}: {len(row.devices)} ({', '.join(row.devices)})"
            for row in rows
            if row.devices
        )
        said.append(
            f"Not on equal hardware: {each}. A speedup with more devices is not one of the method alone."
        )
    elif hardware:
        said.append(f"All on the same devices: {', '.join(next(iter(hardware)))}.")
    for row in rows:
        if row.length_ratio is not None and abs(row.length_ratio - 1) > 0.05:
            word = "shorter" if row.length_ratio < 1 else "longer"
            said.append(
                f"{row.name}: its answers are {word} than the baseline's ({row.length_ratio:.2f} times the tokens); in time per problem "
                f"it is {row.time_ratio or math.nan:.2f} times as fast."
            )
        if row.flips is not None and row.flips != (0, 0):
            better, worse = row.flips
            said.append(
                f"{row.name}: {worse} answers right in the baseline are wrong here, {better} the other way (p = {row.flip_p:.2g})."
            )
        if row.unread:
            said.append(
                f"{row.name}: no answer could be read in {row.unread} of {row.answers}; they count as wrong."
            )
        if row.unfinished:
            said.append(
                f"{row.name}: {row.unfinished} of {row.answers} answers were cut by the token budget."
            )
    if rows and all(row.speedup is None for row in rows):
        said.append("No speedups: no run in mode ar was given (--baseline names another).")
    return said


def markdown(rows: Sequence[Row]) -> str:
    """The table, its notes and its legend as Markdown."""
    lines = [_line(HEADS), _line(["---"] * len(HEADS)), *(_line(cells(row)) for row in rows), ""]
    lines += [f"- {note}" for note in notes(rows)]
    return "\n".join([*lines, "", LEGEND, ""])


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows and notes as JSON; what is not a number is null there."""
    return {"rows": [_plain(asdict(row)) for row in rows], "notes": notes(rows)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(words: Iterable[str]) -> str:
    return "| " + " | ".join(words) + " |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else form.format(value)


def _interval(value: Interval | None, form: str) -> str:
    return (
        ""
        if value is None or math.isnan(value[0])
        else f"{form.format(value[0])} to {form.format(value[1])}"
    )
