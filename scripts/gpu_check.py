"""Run every GPU check on this machine and keep the outcome: docs/results/gpu/CARD_DATE.md and
.json. Started by `gpu_check.sh`.

    scripts/gpu_check.sh                     on a machine with CUDA; exit code 0 all well, 1 a check failed, 2 no CUDA device
    scripts/gpu_check.sh --twin              the same checks at tiny sizes on the CPU; nothing is kept without --output FOLDER
    scripts/gpu_check.sh --skip_bench        without the timings at real shapes

No network and no weights are needed.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lr.commands.bench_gpu import BenchGpu
from lr.lab.bench.gpu_check import Found, Sizes, guarded, run_checks
from lr.lab.bench.gpu_conditions import card_facts
from lr.lab.bench.gpu_report import GOAL
from lr.lab.bench.report import conditions
from lr.model.memory import MemoryShortError

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "gpu"
CASTS: tuple[dict[str, Any], ...] = (
    {},  # the official tool's three models
    {"judge": "none"},
    {"target": "Qwen3-1.7B", "draft": "Qwen3-0.6B", "judge": "none"},
)
"""What is timed: the first that fits."""
TWIN: dict[str, Any] = {
    "tokens": 24,
    "prompt": 20,
    "repeats": 2,
    "batches": (1, 2),
    "k": 2,
    "step_tokens": 6.0,
    "device": "cpu",
}


def bench(twin: bool, out: Console) -> tuple[dict[str, Any], str]:
    """`lr bench gpu` with the largest models that fit, and what it says about the goal."""
    for cast in CASTS:
        try:
            found = BenchGpu(**(TWIN if twin else {**cast, "device": "cuda"})).measure(out)
        except MemoryShortError as error:
            out.print(f"{error}", style="yellow")
            continue
        [row] = [
            row
            for row in found["passes"]
            if row["what"] == "decode, batch 1" and row["model"] == found["models"]["target"]
        ]
        share = row["share_of_limit"]
        goal = f"{row['model']}, batch 1: {share:.2f} of the bandwidth limit"
        return (
            found,
            goal if twin else f"{goal} (goal {GOAL}: {'met' if share >= GOAL else 'missed'})",
        )
    raise MemoryShortError("none of the shapes fits on this device.")


def table(facts: dict[str, Any], found: list[Found]) -> str:
    """The outcome as Markdown."""
    lines = [
        f"# GPU checks, {facts['date']}",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()),
        "",
    ]
    lines += ["| check | outcome | what | s |", "|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.word} | {one.what.replace('|', '/')} | {one.seconds:.1f} |"
        for one in found
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--twin", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--skip_bench", action="store_true", help="no timings at real shapes")
    parser.add_argument(
        "--output",
        type=Path,
        help="a folder for the .md and .json; default docs/results/gpu, none with --twin",
    )
    asked = parser.parse_args()
    if not asked.twin and not torch.cuda.is_available():
        print(
            "no CUDA device here: nothing was checked. --twin runs the same checks at tiny sizes on the CPU.",
            file=sys.stderr,
        )
        return 2
    folder = asked.output or (None if asked.twin else RESULTS)
    if folder is not None:
        try:  # before the checks, which take minutes
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            parser.error(
                f"nothing can be kept in {folder}: {error.strerror}; choose another folder with --output"
            )
    device = torch.device("cpu" if asked.twin else "cuda:0")
    if asked.twin:
        torch.set_num_threads(1)
    out = Console(width=120, soft_wrap=True)
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        **conditions(),
        **({} if asked.twin else card_facts()),
    }
    found: list[Found] = []
    for one in run_checks(device, Sizes.twin() if asked.twin else Sizes()):
        found.append(one)
        out.print(
            f"{one.word:<8} {one.name}: {one.what} ({one.seconds:.1f} s)",
            markup=False,
            highlight=False,
        )
    kept: dict[str, Any] = {}

    def timings() -> tuple[bool | None, str]:
        kept["bench"], said = bench(asked.twin, timed)
        return True, said

    timed = Console(width=120, record=True)
    if not asked.skip_bench:
        found.append(guarded("real shapes, all modes", timings))
        out.print(
            f"{found[-1].word:<8} {found[-1].name}: {found[-1].what}", markup=False, highlight=False
        )
    if folder is not None:
        card = "cpu-twin" if asked.twin else str(facts.get("card", platform.machine()))
        name = f"{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-').lower()}_{facts['date']}"
        text = table(facts, found) + (f"\n```\n{timed.export_text()}```\n" if kept else "")
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        document = {"conditions": facts, "checks": [asdict(one) for one in found], **kept}
        (folder / f"{name}.json").write_text(
            json.dumps(document, indent=1) + "\n", encoding="utf-8"
        )
        out.print(f"kept in {folder / name}.md and .json")
    return int(any(one.ok is False for one in found))


if __name__ == "__main__":
    sys.exit(main())
