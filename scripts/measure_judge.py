"""Measure the tiny judge on held-out pairs from real runs, against the oracle; the tables of
docs/verifiers.md.

    python scripts/measure_judge.py
    python scripts/measure_judge.py --judge training/judge/hf --pairs 200
    python scripts/measure_judge.py --encoder sentence-transformers/all-MiniLM-L6-v2

The pairs are the steps that draft and target write from the same prefixes of test problems, equal
texts left out, as many of equal meaning as of different meaning, each judged in both orders.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from lr.engine.load import asked_model
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.judge import JudgeVerifier
from lr.spec.verifiers.simple import EmbeddingVerifier, load_encoder
from lr.tiny.judge import THRESHOLDS, JudgeReport, PairSource, balanced, judge_pairs, milliseconds
from lr.tiny.language import Split
from lr.tiny.pairs import TextPair, grammar_pair

COSINES = (0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", default="tiny-judge")
    parser.add_argument("--target", default="tiny-target")
    parser.add_argument("--draft", default="tiny-draft")
    parser.add_argument("--pairs", type=int, default=500, help="pairs of each class")
    parser.add_argument(
        "--encoder", help="a sentence encoder: measure the embedding verifier instead of a judge"
    )
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
    print(
        f"{len(pairs)} pairs of different text from {32 * batch} problems; {different} differ in "
        "meaning\n"
    )
    return balanced(pairs, args.pairs)


def show(title: str, report: JudgeReport, default: float, thresholds: Sequence[float]) -> None:
    """The tables of one kind of pairs; the mistakes are those at the threshold `default`."""
    print(f"{title}: {len(report.scores)} verdicts, both orders")
    print(f"  at {default:g}: agreement with the oracle {report.agreement(default):.4f}", end="   ")
    print(
        f"precision {report.precision(default):.4f}   recall {report.recall(default):.4f}",
        end="   ",
    )
    print(f"same verdict in both orders {report.order_agreement(default):.4f}")
    print(f"  area under the ROC curve {report.area:.4f}\n")
    print("  | threshold | agreement | precision | recall | false accepts |")
    print("  | --- | --- | --- | --- | --- |")
    for at in thresholds:
        row = (
            report.agreement(at),
            report.precision(at),
            report.recall(at),
            report.false_accepts(at),
        )
        print(f"  | {at:g} | " + " | ".join(f"{value:.4f}" for value in row) + " |")
    print("\n  what differs      wrong / verdicts")
    for kind, (wrong, count) in report.mistakes(default).items():
        print(f"  {kind or 'nothing':16}  {wrong} / {count}")
    print()


def measured(args: argparse.Namespace) -> tuple[Verifier, float, Sequence[float], str]:
    """The verifier to measure, its default threshold, the thresholds of the table, and what it is
    in words.
    """
    codec = Codec.load(args.judge if args.encoder is None else args.target)
    if args.encoder is not None:
        encoder = load_encoder(args.encoder)
        return EmbeddingVerifier(encoder, codec.decode), 0.95, COSINES, "sentence encoder"
    model = load_model(args.judge, dtype=torch.float32)
    judge = JudgeVerifier(asked_model(model, codec, 1024), codec.decode)
    return judge, 0.5, THRESHOLDS, f"{model.config.num_layers} layers"


def main() -> None:
    """Print everything."""
    args = arguments()
    torch.set_num_threads(1)
    verifier, default, thresholds, size = measured(args)
    encode = Codec.load(args.target).encode
    real = held_out_pairs(args)
    show("pairs from runs", judge_pairs(verifier, encode, real), default, thresholds)
    grammar = [grammar_pair(i, args.seed, Split.TEST) for i in range(2 * args.pairs)]
    show("pairs from the grammar", judge_pairs(verifier, encode, grammar), default, thresholds)
    times = "   ".join(
        f"{batch}: {milliseconds(verifier, encode, real, batch):.1f}" for batch in (1, 4, 8)
    )
    print(f"{size}, one thread, float32; median ms per call, by pairs in it:  {times}")


if __name__ == "__main__":
    main()
