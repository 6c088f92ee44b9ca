"""Train a tiny model from a seed: the target first, then the draft from the target's
first layers.

    python training/train_tiny.py --role target --out trained/target --compile
    python training/train_tiny.py --role target --out trained/target --compile --resume
    python training/train_tiny.py --role draft --out trained/draft --from trained/target/hf

Progress goes to standard output; a checkpoint is written every two minutes and at the
end; Ctrl-C writes one and stops; `--resume` goes on from it. The finished model is a
Hugging Face checkpoint in OUT/hf, which `lr run` measures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from tiny_training.checkpoint import export, tiny_config
from tiny_training.rows import RowMaker
from tiny_training.trainer import Recipe, Trainer, first_layers, fresh_model
from tiny_training.vocabulary import build_tokenizer
from tiny_training.wording import Style


class Size(NamedTuple):
    """How large a model is and how long and how fast it learns, where nothing else is
    said."""

    layers: int
    tokens: int
    rate: float


SIZES = {
    "target": Size(20, 8_500_000, 0.01),
    "draft": Size(2, 6_000_000, 0.015),
}
"""By role."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--role", choices=[style.value for style in Style], required=True)
    add("--out", type=Path, required=True, help="folder for checkpoints and the model")
    add("--from", dest="start", help="checkpoint to take the layers from")
    add("--tokens", type=int, help="token budget (default: see SIZES)")
    add("--steps", type=int, help="stop after this many steps")
    add("--seed", type=int, default=0)
    add("--rate", type=float, help="Muon's learning rate (default: see SIZES)")
    add("--batch", type=int, default=2560, help="tokens of one step")
    add("--compile", action="store_true", help="compile the layers: faster in the end")
    add("--resume", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Train and export."""
    args = arguments()
    size = SIZES[args.role]
    tokenizer = build_tokenizer()
    if args.start:
        model = first_layers(args.start, size.layers)
    else:
        model = fresh_model(tiny_config(size.layers, len(tokenizer)), args.seed)
    rows = RowMaker(tokenizer, Style(args.role), args.seed)
    tokens = args.tokens or size.tokens
    recipe = Recipe(tokens, batch=args.batch, matrix_rate=args.rate or size.rate)
    trainer = Trainer(model, rows, recipe, compiled=args.compile)
    trainer.train(args.out / "state.pt", args.steps, resume=args.resume)
    export(trainer.model, args.out / "hf", judge="tiny-judge")


if __name__ == "__main__":
    main()
