"""Train the tiny judge from a seed: the target's first layers, taught to tell whether
two steps mean the same.

    python training/train_judge.py --out trained/judge
    python training/train_judge.py --out trained/judge --resume

First the pairs: draft and target write steps from the same prefixes of training
problems (OUT/pairs.json, made once). Then the training: progress goes to standard
output; a checkpoint is written every two minutes and at the end; Ctrl-C writes one and
stops; `--resume` goes on from it. The finished judge is a Hugging Face checkpoint in
OUT/hf, which `lr verify` measures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tiny_training.checkpoint import export
from tiny_training.judge import JudgeRows, pairs_from_runs
from tiny_training.pairs import TextPair
from tiny_training.trainer import Recipe, Trainer, first_layers
from tiny_training.vocabulary import build_tokenizer

from lr.spec.verifiers.judge import BARE_PROMPT

PROBLEMS = {"tiny": 960, "stories": 320}
"""Training problems to take pairs from. Long ones give nine times the pairs."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for checkpoints and the model")
    add("--tokens", type=int, default=10_000_000, help="token budget")
    add("--steps", type=int, help="stop after this many steps")
    add("--layers", type=int, default=4, help="how many of the target's to start from")
    add("--seed", type=int, default=0)
    add("--rate", type=float, default=0.02, help="Muon's learning rate")
    add("--batch", type=int, default=2560, help="tokens of one step")
    add("--real-share", type=float, default=0.3, help="share of pairs from runs")
    add("--target", default="tiny-target", help="whose layers, and whose steps")
    add("--draft", default="tiny-draft", help="whose steps to judge")
    add("--compile", action="store_true", help="compile the layers: faster in the end")
    add("--resume", action="store_true")
    return parser.parse_args()


def kept_pairs(args: argparse.Namespace) -> list[TextPair]:
    """The pairs of OUT/pairs.json, which is written first if it does not exist."""
    path = args.out / "pairs.json"
    if not path.is_file():
        pairs = list[TextPair]()
        for dataset, count in PROBLEMS.items():
            pairs += pairs_from_runs(args.target, args.draft, dataset, count, args.seed)
            print(f"{dataset}: {len(pairs)} pairs from runs", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(pairs))
    return [TextPair(*pair) for pair in json.loads(path.read_text())]


def main() -> None:
    """Make the pairs, train and export."""
    args = arguments()
    real = kept_pairs(args) if args.real_share else []
    rows = JudgeRows(build_tokenizer(), args.seed, real, args.real_share)
    recipe = Recipe(args.tokens, batch=args.batch, matrix_rate=args.rate, drills=0.0)
    model = first_layers(args.target, args.layers)
    trainer = Trainer(model, rows, recipe, compiled=args.compile)
    trainer.train(args.out / "state.pt", args.steps, resume=args.resume)
    export(trainer.model, args.out / "hf", judge_prompt=BARE_PROMPT)


if __name__ == "__main__":
    main()
