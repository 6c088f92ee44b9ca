"""`lr drift`: what the accepted draft steps of a run have cost in the target's own measure, beside
the answers that flipped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.lab_models import LabChoice
from lr.commands.show import console
from lr.errors import SettingError

if TYPE_CHECKING:
    from lr.lab.eval.drift import Page


@dataclass(frozen=True)
class Drift:
    """For every accepted step log p(draft's) - log p(target's) under the target, summed per
    problem, beside the answers that flipped.
    """

    run_folder: tyro.conf.Positional[Path]
    """The folder of a run with --save_pairs."""
    baseline: Path | None = None
    """The folder of the same problems in mode ar: which answers flipped."""
    models: LabChoice = field(default_factory=LabChoice)
    json: Path | None = None
    """Also write one entry per problem to this file."""

    def run(self) -> None:
        from lr.engine.verification import asked_model
        from lr.lab.eval.drift import accepted_pairs, entries, ledger, summary
        from lr.lab.eval.grading import Grader
        from lr.lab.eval.laboratory import load_pairs
        from lr.lab.eval.report import read_run, require_comparable

        with Grader() as grader:
            mine = read_run(self.run_folder, grader)
            baseline = None if self.baseline is None else read_run(self.baseline, grader)
        if baseline is not None:
            require_comparable(mine, baseline)
        pairs = accepted_pairs(load_pairs(self.run_folder), mine)
        if not pairs:
            raise SettingError(
                f"no accepted pair of {self.run_folder} has a target step; keep pairs with a verifier that compares."
            )
        reasoner = self.models.lab(self.run_folder).reasoner()
        target = reasoner.models.target
        blocks = 2 * (target.config.max_position_embeddings // 16 + 16)
        pages = ledger(
            entries(pairs, asked_model(target, reasoner.codec, blocks).runner), mine, baseline
        )
        _show(pages)
        if self.json is not None:
            content = {
                "problems": [asdict(page) | {"flipped": page.flipped} for page in pages],
                "summary": summary(pages),
            }
            self.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _show(pages: list[Page]) -> None:
    from lr.lab.eval.drift import summary

    out, table = console(), Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("answer", "problems", "drift per problem", "drift per kept step"):
        table.add_column(head, justify="left" if head == "answer" else "right")
    for what, (count, drift, step) in summary(pages).items():
        table.add_row(what, str(count), f"{drift:.2f}", f"{step:.3f}")
    out.print(table)
    out.print(
        "in nats; negative: the target finds its own wording likelier. lost: right in the baseline, wrong here.",
        style="dim",
    )
    furthest = sorted(pages, key=lambda page: page.drift)[:5]
    out.print(
        "furthest: "
        + ", ".join(
            f"problem {page.key.number} {page.drift:.1f} ({page.flipped or 'not compared'})"
            for page in furthest
        )
    )
