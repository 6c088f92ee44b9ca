"""Draws what a threshold buys and costs: the speedup of one way of decoding against how
much of what its verifier accepts is wrong. Wants matplotlib (the extra `plot`).

    lr verify PAIRS.jsonl --verifiers likelihood --json pairs.json
    lr experiment speedup ... --values ar "lr verifier=likelihood:-1" ... --output OUT
    python scripts/draw_thresholds.py --speedup OUT/speedup.json --verdicts pairs.json

One curve for each file of `--verdicts`, through the thresholds of `--speedup`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from lr.watch.figures.plots import Curves, draw_panels


@dataclass(frozen=True)
class Thresholds:
    """The file `speedup.json` of an experiment, the files of `lr verify --json`, and
    where to draw."""

    speedup: Path
    verdicts: tuple[Path, ...]
    verifier: str = "likelihood"
    output: Path = Path("thresholds.png")


def speedups(path: Path, verifier: str) -> dict[float, float]:
    """The speedup of each way with this verifier and nothing else that differs, by its
    threshold."""
    content = json.loads(path.read_text())
    by_threshold: dict[float, float] = {}
    for row in content["rows"]:
        way = " ".join(str(cell) for cell in row.values())
        named = re.search(rf"verifier={verifier}:([-\d.]+)", way)
        if (
            named
        ):  # the first way with a threshold counts, later ones vary something else
            by_threshold.setdefault(float(named[1]), row["speedup"])
    return by_threshold


def wrong_share(curve: list[dict[str, Any]], threshold: float) -> float:
    """How much of what reaches the threshold is wrong."""
    reached = [point for point in curve if point["score"] >= threshold]
    return float(reached[-1]["error"]) if reached else 0.0


def main() -> None:
    """Draw one curve for each file of verdicts."""
    args = tyro.cli(Thresholds)
    found = speedups(args.speedup, args.verifier)
    lines = []
    for path in args.verdicts:
        curve = json.loads(path.read_text())[args.verifier]["curve"]
        points = [(wrong_share(curve, t), s) for t, s in sorted(found.items())]
        lines.append((path.stem, points[::-1]))
    labels = [f"{threshold:g}" for threshold in sorted(found, reverse=True)]
    panel = Curves(
        f"{args.verifier}: a threshold at each point",
        x="wrong share of what is accepted",
        y="speedup over plain decoding",
        lines=lines,
        points=[("thresholds", lines[-1][1])],
        labels=labels,
        line=1.0,
    )
    for path in draw_panels([panel], args.output):
        print(path)


if __name__ == "__main__":
    main()
