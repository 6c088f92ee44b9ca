"""`lr theory figures`: the theoretical curves as PNG and SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lr.commands.show import console
from lr.errors import SettingError


@dataclass(frozen=True)
class TheoryFigures:
    """Draw speedup against draft length under one budget, the schedules, the region where the
    hybrid wins, and width.
    """

    folder: Path = Path("docs/figures")
    """Where to write the files; it must exist. Needs matplotlib (the extra `plot`)."""

    def run(self) -> None:
        from lr.theory.drawing import require_matplotlib
        from lr.theory.figures import draw_all

        if not self.folder.is_dir():
            raise SettingError(
                f"folder is {str(self.folder)!r}, which is not there; create it or name another."
            )
        require_matplotlib()
        for path in draw_all(self.folder):
            console().print(f"drawn: {path}")
