"""Measure the tiny judge on held-out pairs from real runs, against the oracle; the tables of docs/verifiers.md.

    python scripts/measure_judge.py
    python scripts/measure_judge.py --judge training/judge/hf --pairs 200

The pairs are the steps that draft and target write from the same prefixes of test problems, equal texts left out, as many of equal
meaning as of different meaning, each judged in both orders.
"""

from __future__ import annotations

import argparse

import torch

from lr.engine.verification import asked_model
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.spec.verifiers.judge import JudgeVerifier
from lr.tiny.judge_eval import THRESHOLDS, JudgeReport, judge_pairs, milliseconds
from lr.tiny.language import Split
from lr.tiny.pairs import TextPair, grammar_pair
from lr.tiny.real_pairs import PairSource, balanced


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", default="tiny-judge")
    parser.add_argument("--target", default="tiny-target")
    parser.add_argument("--draft", default="tiny-draft")
    parser.add_argument("--pairs", type=int, default=500, help="pairs of each class")
    parser.add_argument("--seed", type=int, default=0, help="of the test problems and the draws")
    return parser.parse_args()


def held_out_pairs(args: argparse.Namespace) -> list[TextPair]:
    """As many pairs of each class as asked for, from runs on test problems."""
    source = PairSource(args.target, args.draft)
    pairs: list[TextPair] = []
    batch = 0
    while min(sum(pair.same is same for pair in pairs) for same in (True, False)) < args.pairs:
        pairs += source.pairs(Split.TEST, batch, args.seed)
        batch += 1
    different = sum(not pair.same for pair in pairs)
    print(f"{len(pairs)} pairs of different text from {32 * batch} problems; {different} differ in meaning\n")
    return balanced(pairs, args.pairs)


def show(title: str, report: JudgeReport) -> None:
    """The tables of one kind of pairs."""
    print(f"{title}: {len(report.scores)} verdicts, both orders")
    print(f"  agreement with the oracle {report.agreement():.4f}   precision {report.precision():.4f}", end="   ")
    print(f"recall {report.recall():.4f}   area under the ROC curve {report.area:.4f}")
    print(f"  same verdict in both orders {report.order_agreement():.4f}\n")
    print("  | threshold | agreement | precision | recall | false accepts |")
    print("  | --- | --- | --- | --- | --- |")
    for at in THRESHOLDS:
        row = (report.agreement(at), report.precision(at), report.recall(at), report.false_accepts(at))
        print(f"  | {at:g} | " + " | ".join(f"{value:.4f}" for value in row) + " |")
    print("\n  what differs      wrong / verdicts")
    for kind, (wrong, count) in report.mistakes().items():
        print(f"  {kind or 'nothing':16}  {wrong} / {count}")
    print()


def main() -> None:
    """Print everything."""
    args = arguments()
    torch.set_num_threads(1)
    codec, model = Codec.load(args.judge), load_model(args.judge, dtype=torch.float32)
    judge = JudgeVerifier(asked_model(model, codec, 16384), codec.decode)
    real = held_out_pairs(args)
    show("pairs from runs", judge_pairs(judge, codec.encode, real))
    grammar = [grammar_pair(i, args.seed, Split.TEST) for i in range(2 * args.pairs)]
    show("pairs from the grammar", judge_pairs(judge, codec.encode, grammar))
    times = "   ".join(f"{batch}: {milliseconds(judge, codec.encode, real, batch):.1f}" for batch in (1, 4, 8))
    print(f"{model.config.num_layers} layers, one thread, float32; median ms per call, by pairs in it:  {times}")


if __name__ == "__main__":
    main()
