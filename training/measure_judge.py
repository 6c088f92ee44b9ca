"""Measure the tiny judge on held-out pairs from real runs, against the oracle; the
tables of docs/verifiers.md.

    python training/measure_judge.py
    python training/measure_judge.py --judge trained/judge/hf --pairs 200
    python training/measure_judge.py --encoder sentence-transformers/all-MiniLM-L6-v2

The pairs are the steps that draft and target write from the same prefixes of test
problems, equal texts left out, as many of equal meaning as of different meaning, each
judged in both orders.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import torch
from tiny_training.judge import PairSource, as_pair
from tiny_training.pairs import TextPair, grammar_pair, kind_of_difference

from lr.engine.verifiers import asked_model, load_encoder
from lr.measure.verifier_eval import auc, replay, swapped
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.judge import JudgeVerifier
from lr.spec.verifiers.named import EmbeddingVerifier
from lr.tiny.language import Split
from lr.tiny.stories import DATASETS

THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
CALLS = 30
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
        "--encoder",
        help="a sentence encoder: measure the embedding verifier instead of a judge",
    )
    parser.add_argument("--dataset", choices=sorted(DATASETS), default="stories")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the test problems and the draws"
    )
    return parser.parse_args()


def held_out_pairs(args: argparse.Namespace) -> list[TextPair]:
    """As many pairs of each class as asked for, from runs on test problems."""
    source = PairSource(args.target, args.draft)
    pairs: list[TextPair] = []
    batch = 0
    while min(len(of_class(pairs, same)) for same in (True, False)) < args.pairs:
        pairs += source.pairs(Split.TEST, batch, args.seed, args.dataset)
        batch += 1
    different = len(of_class(pairs, False))
    print(
        f"{len(pairs)} pairs of different text from {32 * batch} problems; {different} differ in "
        "meaning\n"
    )
    return [
        pair for same in (True, False) for pair in of_class(pairs, same)[: args.pairs]
    ]


def of_class(pairs: Sequence[TextPair], same: bool) -> list[TextPair]:
    """The pairs of equal meaning, or those of different meaning."""
    return [pair for pair in pairs if pair.same is same]


def rates(
    scores: Sequence[float], truths: Sequence[bool], at: float
) -> tuple[float, ...]:
    """Agreement with the truth, precision, recall and false accepts, where scores from
    `at` on are accepted."""
    right = [s for s, truth in zip(scores, truths, strict=True) if truth]
    wrong = [s for s, truth in zip(scores, truths, strict=True) if not truth]
    true, false = (
        sum(score >= at for score in scores_of_class)
        for scores_of_class in (right, wrong)
    )
    agreement = (true + len(wrong) - false) / len(scores)
    precision = true / (true + false) if true + false else 1.0
    return agreement, precision, true / max(1, len(right)), false / max(1, len(wrong))


def show(
    title: str,
    verifier: Verifier,
    judged_pairs: Sequence[Pair],
    pairs: Sequence[TextPair],
    default: float,
    thresholds: Sequence[float],
) -> None:
    """The tables of one kind of pairs, each put in both orders; the mistakes are those
    at the threshold `default`."""
    scores = replay(verifier, [*judged_pairs, *swapped(judged_pairs)], batch=64).scores
    truths = [p.same for p in pairs] * 2
    kinds = [kind_of_difference(p) for p in pairs] * 2
    agreement, precision, recall, _ = rates(scores, truths, default)
    verdicts = [score >= default for score in scores]
    alike = fmean(
        a == b for a, b in zip(verdicts, verdicts[len(pairs) :], strict=False)
    )
    print(f"{title}: {len(scores)} verdicts, both orders")
    print(f"  at {default:g}: agreement with the oracle {agreement:.4f}", end="   ")
    print(f"precision {precision:.4f}   recall {recall:.4f}", end="   ")
    print(f"same verdict in both orders {alike:.4f}")
    print(f"  area under the ROC curve {auc(scores, truths):.4f}\n")
    print("  | threshold | agreement | precision | recall | false accepts |")
    print("  | --- | --- | --- | --- | --- |")
    for at in thresholds:
        row = " | ".join(f"{value:.4f}" for value in rates(scores, truths, at))
        print(f"  | {at:g} | {row} |")
    print("\n  what differs      wrong / verdicts")
    mistakes = Counter(
        k for k, a, b in zip(kinds, verdicts, truths, strict=True) if a != b
    )
    for kind, count in sorted(Counter(kinds).items()):
        print(f"  {kind or 'nothing':16}  {mistakes[kind]} / {count}")
    print()


def measured(args: argparse.Namespace) -> tuple[Verifier, float, Sequence[float], str]:
    """The verifier to measure, its default threshold, the thresholds of the table, and
    what it is in words.
    """
    codec = Codec.load(args.judge if args.encoder is None else args.target)
    if args.encoder is not None:
        encoder = load_encoder(args.encoder)
        return (
            EmbeddingVerifier(encoder, codec.decode),
            0.95,
            COSINES,
            "sentence encoder",
        )
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
    grammar = [grammar_pair(i, args.seed, Split.TEST) for i in range(2 * args.pairs)]
    for title, pairs in (
        ("pairs from runs", real),
        ("pairs from the grammar", grammar),
    ):
        judged_pairs = [as_pair(pair, encode) for pair in pairs]
        show(title, verifier, judged_pairs, pairs, default, thresholds)
    times = []
    for batch in (1, 4, 8):
        calls = [as_pair(pair, encode) for pair in (real * CALLS)[: CALLS * batch]]
        times.append(
            f"{batch}: {1e3 * replay(verifier, calls, batch).seconds / CALLS:.1f}"
        )
    print(
        f"{size}, one thread, float32; mean ms per call, by pairs in it:  {'   '.join(times)}"
    )


if __name__ == "__main__":
    main()
