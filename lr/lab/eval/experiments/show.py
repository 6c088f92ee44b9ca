"""What an experiment leaves behind: a table in Markdown with the command that made it, a figure,
and the JSON behind them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.lab.eval.figure import Panel, draw


@dataclass(frozen=True)
class Finding:
    """The outcome of an experiment, to be shown. `columns` and `rows` are the table; a cell that is
    a float is shown with two places.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    panels: Sequence[Panel] = ()
    remarks: Sequence[str] = ()
    more: dict[str, Any] = field(default_factory=dict)


def cell(value: object) -> str:
    """A value as text: nothing for what is not there, two places for numbers, whole numbers as they
    are.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, tuple):
        return " to ".join(cell(one) for one in value) if all(cell(one) for one in value) else ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def write_finding(
    name: str, finding: Finding, folder: Path, command: str, facts: dict[str, Any]
) -> list[Path]:
    """Write NAME.md, NAME.json and, where matplotlib is installed, NAME.png and NAME.svg; returns
    the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = (
        draw(finding.panels, folder / name, finding.title)
        if finding.panels and find_spec("matplotlib")
        else []
    )
    lines = [f"# {finding.title}", "", "```", command, "```", ""]
    lines += [_line(finding.columns), _line(["---"] * len(finding.columns))]
    lines += [_line([cell(value) for value in row]) for row in finding.rows]
    lines += ["", *(f"- {remark}" for remark in finding.remarks)]
    if drawn:
        lines += ["", f"![{finding.title}]({name}.png)"]
    lines += [
        "",
        "Conditions: " + ", ".join(f"{key} {value}" for key, value in facts.items()) + ".",
        "",
    ]
    table = folder / f"{name}.md"
    table.write_text("\n".join(lines), encoding="utf-8")
    data = folder / f"{name}.json"
    content = {
        "title": finding.title,
        "command": command,
        "conditions": facts,
        "columns": list(finding.columns),
        "rows": [[_plain(value) for value in row] for row in finding.rows],
        "remarks": list(finding.remarks),
        **{key: _plain(value) for key, value in finding.more.items()},
    }
    data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return [table, data, *drawn]


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(words) + " |"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
