"""Measure the tiny models on held-out problems: accuracy, step acceptance by the oracle,
exact text, token acceptance, by kind of step.

    python training/measure_tiny.py --problems 256
    python training/measure_tiny.py --target trained/target/hf --draft trained/draft/hf

It prints Markdown. 64 short problems take about 20 seconds on two cores, long ones
(`--dataset stories`) ten times as long.
"""

from __future__ import annotations

import argparse
from dataclasses import fields

import torch
from tiny_training.evaluate import EvalSettings, evaluate

from lr.tiny.stories import DATASETS


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", default="tiny-target", help="a tiny model, or a directory")
    add("--draft", default="tiny-draft", help="a tiny model, or a directory")
    add("--problems", type=int, default=64, help="how many held-out problems")
    add("--seed", type=int, default=0, help="decides the problems and the draws")
    add("--temperature", type=float, default=0.6, help="0 is greedy")
    add("--dataset", choices=sorted(DATASETS), default="tiny")
    return parser.parse_args()


def main() -> None:
    """Measure and print the report."""
    args = arguments()
    torch.set_num_threads(1)
    settings = {field.name: getattr(args, field.name) for field in fields(EvalSettings)}
    report = evaluate(args.target, args.draft, EvalSettings(**settings))
    print(report.table())


if __name__ == "__main__":
    main()
