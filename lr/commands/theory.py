"""`lr theory`: any formula at given parameters, beside a simulation of it by the real scheduler."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rich.box import SIMPLE_HEAD
from rich.table import Table

from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require


@dataclass(frozen=True)
class Theory:
    """Print formulas at given parameters beside the real scheduler on a simulated clock. Times are in target steps."""

    formula: str = "all"
    """Which ones: a name or its beginning, such as lr_async; all."""
    alpha: float = 0.6
    """Acceptance rate of draft steps (of tokens in sd_...; the judge's p in judged_acceptance and wrong_share)."""
    c: float = 0.1
    """A draft step, in target steps."""
    k: int = 4
    """Draft steps per cycle, pairs in flight, unverified drafts or drafted tokens, as the formula has it."""
    v: float = 0.0
    """A verdict, in target steps."""
    b: float = 0.0
    """A further row makes a synchronous batch so much slower."""
    width: int = 2
    """Alternatives per position."""
    beta: float = 0.6
    """p + q of the siblings' Beta law: small is alike, large independent."""
    false_reject: float = 0.1
    """The judge rejects an equivalent step."""
    false_accept: float = 0.1
    """The judge accepts another."""
    k2: int = 4
    """Positions per target pass (hybrid)."""
    steps: int = 4000
    """Steps to simulate."""
    seed: int = 0
    """Of the simulation."""

    def run(self) -> None:
        from lr.theory.beside import FORMULAS, Point

        for name, least in (("k", 1), ("width", 1), ("steps", 400), ("k2", 1)):
            require(getattr(self, name) >= least, name, getattr(self, name), f"a whole number >= {least}")
        require(
            self.k <= 200 and self.width <= 8, "k, width", (self.k, self.width), "at most 200 and 8 for a simulation"
        )
        require(self.beta > 0, "beta", self.beta, "a number > 0")
        chosen = [f for f in FORMULAS if self.formula == "all" or f.name.startswith(self.formula)]
        if not chosen:
            known = ", ".join(sorted({f.name.split()[0] for f in FORMULAS}))
            raise SettingError(f"formula is {self.formula!r}, expected all or the beginning of one of {known}.")
        at = Point(**{f.name: getattr(self, f.name) for f in fields(Point)})
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
            "off: in standard errors. No figure: no schedule of ours does what the formula describes.", style="dim"
        )
