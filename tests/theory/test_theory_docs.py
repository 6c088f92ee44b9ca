"""`docs/theory.md` says what the code computes: its examples run, its tables are those
of the recorded run and of the fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lr.theory import acceptance, asynchronous, hybrid, synchronous
from lr.theory.paper import TABLE_1, TABLE_3, fit_speedups, fit_width

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "theory.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says(capsys) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "theory.md", "exec"), {})
    said = re.findall(r"# ([\d. ]+)", example)
    for printed, written in zip(
        capsys.readouterr().out.splitlines(), said, strict=True
    ):
        for number, text in zip(printed.split(), written.split(), strict=True):
            assert abs(float(number) - float(text)) < 1e-5


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the page, from the rows that `lr theory validation --json`
    writes."""
    lines = [
        "| way | closed form | expected | replayed | measured | expected is off by |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        known = (row[name] for name in ("formula", "expected", "replayed"))
        figures = ["" if x is None else f"{x:.2f}" for x in known]
        figures += [f"{row['measured']:.2f} ± {row['error']:.2f}", f"{row['gap']:+.1%}"]
        lines.append(f"| {' | '.join([row['way'], *figures])} |")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["", "_overlapped", "_drawn"])
def test_the_measured_tables_are_the_recorded_runs(name: str) -> None:
    text = (DOCS / "results" / f"theory_validation{name}.json").read_text(
        encoding="utf-8"
    )
    assert as_markdown(json.loads(text)["rows"]) in PAGE


def test_the_fits_in_the_page_are_those_of_the_code() -> None:
    for pair in TABLE_1.values():
        found = fit_speedups(pair)
        assert (
            f"{pair.name}: c = {found.c:.3f}, v = {found.v:.3f}, R² = {found.r_squared:.2f}"
            in PAGE
        )
        for name, values, style in (
            ("fitted", found.predicted, ".2f"),
            ("residual", np.subtract(found.predicted, pair.lookahead), "+.2f"),
        ):
            assert (
                f"| {name} | {' | '.join(format(x, style) for x in values)} |" in PAGE
            )
    for row in TABLE_3:
        fit = fit_width(row)
        beta = " ".join(f"{x:.2f}" for x in fit.predicted)
        assert f"| {beta} |" in PAGE
        assert (
            f"| ({fit.p:.2f}, {fit.q:.2f}) | {fit.base_time:.2f} + {fit.per_row:.3f} (N - 3) |"
            in PAGE
        )


def test_every_function_of_the_table_exists() -> None:
    modules = acceptance, asynchronous, hybrid, synchronous
    table = PAGE.split("| formula |")[1].split("\n\n")[0]
    column = [
        line.split("|")[2] for line in table.splitlines()[2:] if line.startswith("|")
    ]
    names = {name for cell in column for name in re.findall(r"`(\w+)", cell)}
    assert len(names) > 25
    assert not [
        name
        for name in names
        if not any(callable(getattr(one, name, None)) for one in modules)
    ]
