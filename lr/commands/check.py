"""`lr check`: does a variant keep to what the package relies on?"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import tyro

from lr.commands.show import console

if TYPE_CHECKING:
    from lr.variants.kit.findings import Findings


@dataclass(frozen=True)
class Check:
    """Ask every part of a variant for its contract, here and in another process, answer
    three questions alone, together and again, and say what did nothing. On the tiny
    models, in float64. Exit code 1 if something is broken."""

    variant: tyro.conf.Positional[str]  # FILE.py:NAME or NAME, as for lr generate.
    max_tokens: int = 100  # The longest answer.
    answers_only: bool = False  # Only a digest of the parts' answers, to compare.

    def run(self) -> None:
        import torch

        from lr.reasoner import Reasoner
        from lr.variants.kit.check import check_answers, check_parts, idle_parts
        from lr.variants.kit.findings import Findings
        from lr.variants.loading import load_variant

        torch.set_num_threads(1)  # the models are tiny
        out = console()

        def show(findings: Findings) -> None:
            for statement in findings.held:
                out.print(f"  ok      {findings.part}: {statement}")
            for statement in findings.broken:
                out.print(f"  BROKEN  {findings.part}: {statement}", style="red")
            for remark in findings.remarks:
                out.print(f"  note    {findings.part}: {remark}", style="dim")

        with Reasoner(dtype=torch.float64) as reasoner:
            make = partial(load_variant, self.variant, reasoner, anew=True)
            if self.answers_only:
                out.print(digest(list(check_parts(make))))
                return
            parts = []
            for findings in check_parts(make):
                show(findings)
                parts.append(findings)
            process = Findings("process")
            same = self.other_process().split()[-1] == digest(parts)
            statement = "another process, where texts hash otherwise, answers the same"
            process.must(same, statement, "other answers: is it hash(), a file?")
            show(process)
            parts.append(process)
            if any(findings.broken for findings in parts):
                out.print("broken: no answer was tried.")
                sys.exit(1)
            answers, results = check_answers(make, reasoner, max_tokens=self.max_tokens)
            show(answers)
            for line in idle_parts(make(), results):
                out.print(f"  unused  {line}", style="yellow")
            if answers.broken:
                sys.exit(1)
            out.print("green: every statement holds.", style="green")

    def other_process(self) -> str:
        """What it prints if asked for answers only, where texts hash otherwise."""
        seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        command = [sys.executable, "-m", "lr", "check", self.variant, "--answers_only"]
        seeded = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.check_output(command, env=seeded, text=True)


def digest(parts: Sequence[Findings]) -> str:
    """A short form of all that the parts answered."""
    answers = repr([findings.answers for findings in parts])
    return hashlib.sha256(answers.encode()).hexdigest()
