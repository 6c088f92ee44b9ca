"""`lr theory`: any formula at given parameters, beside a simulation of it by the real scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.show import console
from lr.errors import SettingError
from lr.theory.beside import FORMULAS, Point
from lr.types import require


@dataclass(frozen=True)
class Theory:
    """Print formulas at given parameters beside the real scheduler on a simulated clock. Times are
    in target steps.
    """

    formula: str = "all"
    """Which ones: a name or its beginning, such as lr_async; all."""
    at: Point = field(default_factory=Point)

    def run(self) -> None:
        at = self.at
        for name, least in (("k", 1), ("width", 1), ("steps", 400), ("k2", 1)):
            require(
                getattr(at, name) >= least, name, getattr(at, name), f"a whole number >= {least}"
            )
        require(
            at.k <= 200 and at.width <= 8,
            "k, width",
            (at.k, at.width),
            "at most 200 and 8 for a simulation",
        )
        require(at.beta > 0, "beta", at.beta, "a number > 0")
        chosen = [f for f in FORMULAS if self.formula == "all" or f.name.startswith(self.formula)]
        if not chosen:
            known = ", ".join(sorted({f.name.split()[0] for f in FORMULAS}))
            raise SettingError(
                f"formula is {self.formula!r}, expected all or the beginning of one of {known}."
            )
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in ("function", "formula"):
            table.add_column(column, no_wrap=True)
        for column in ("value", "simulated", "± s.e.", "off"):
            table.add_column(column, justify="right", no_wrap=True)
        for one in chosen:
            value, seen = float(one.value(at)), one.simulated(at) if one.simulated else None
            row = [one.name, one.text, f"{value:.4f}"]
            if seen is not None:
                off = f"{(seen.value - value) / seen.error:+.1f}" if seen.error else ""
                row += [f"{seen.value:.4f}", f"{seen.error:.4f}", off]
            table.add_row(*row)
        out = console()
        out.print(table)
        out.print(
            "off: in standard errors. No figure: no schedule of ours does what the formula describes.",
            style="dim",
        )
