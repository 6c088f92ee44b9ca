"""Train a tiny model from a seed: the target first, then the draft from the target's
first layers.

    python training/train_tiny.py --role target --out trained/target --compile
    python training/train_tiny.py --role target --out trained/target --compile --resume
    python training/train_tiny.py --role draft --out trained/draft --from trained/target/state.pt

Two processes of one thread each on a CPU, one process on a GPU. Progress goes to
standard output; a checkpoint is written every two minutes and at the end; Ctrl-C writes
one and stops; `--resume` goes on from it. The finished model is a Hugging Face
checkpoint in OUT/hf.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_training.rows import RowMaker
from tiny_training.trainer import Recipe, Trainer, fresh_model, held_out_counts, start
from transformers import PreTrainedTokenizerFast

from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.tiny.grammar import Style
from lr.tiny.names import tiny_config
from lr.tiny.vocabulary import build_tokenizer, export


@dataclass(frozen=True)
class Size:
    """How large a model is and how long and how fast it learns, where nothing else is
    said."""

    layers: int
    tokens: int
    rate: float
    drills: float = 0.1


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
    add(
        "--out",
        type=Path,
        required=True,
        help="folder for checkpoints and the finished model",
    )
    add("--tokens", type=int, help="token budget of the schedule (default: see SIZES)")
    add(
        "--steps", type=int, help="stop after this many steps, wherever the schedule is"
    )
    add("--seed", type=int, default=0)
    add(
        "--drills",
        type=float,
        help="share of the tokens that are drills (default: see SIZES)",
    )
    add("--rate", type=float, help="Muon's learning rate (default: see SIZES)")
    add("--batch", type=int, default=2560, help="tokens of one step over all processes")
    add("--processes", type=int, default=1 if torch.cuda.is_available() else 2)
    add(
        "--from",
        dest="start",
        type=Path,
        help="state.pt or checkpoint to take the layers from",
    )
    add(
        "--eval-every",
        type=int,
        default=1_000_000,
        help="tokens between accuracy checks",
    )
    add("--eval-problems", type=int, default=48, help="held-out problems of each check")
    add(
        "--compile",
        action="store_true",
        help="compile the layers: faster after some minutes",
    )
    add("--resume", action="store_true")
    return parser.parse_args()


def initial_model(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast
) -> CausalLM:
    """Fresh weights from the seed, or the first layers of another model."""
    size = SIZES[args.role]
    model = fresh_model(tiny_config(size.layers, len(tokenizer)), args.seed)
    if args.start and args.start.is_file():
        state = torch.load(args.start, weights_only=True)["model"]
        model.load_state_dict({name: state[name] for name in model.state_dict()})
    elif args.start:
        state = load_model(str(args.start), dtype=torch.float32).state_dict()
        fresh = model.state_dict()
        # words that its vocabulary does not have begin at random
        theirs = Codec.load(str(args.start)).tokenizer.get_vocab()
        table = fresh["embedding.weight"].clone()
        for word, token in tokenizer.get_vocab().items():
            if word in theirs:
                table[token] = state["embedding.weight"][theirs[word]]
        state["embedding.weight"] = table
        model.load_state_dict({name: state[name] for name in fresh})
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def work(rank: int, args: argparse.Namespace) -> None:
    """What one process does."""
    size = SIZES[args.role]
    tokenizer = build_tokenizer()
    rows = RowMaker(tokenizer, Style(args.role), args.seed)
    recipe = Recipe(
        args.tokens or size.tokens,
        batch=args.batch,
        matrix_rate=args.rate or size.rate,
        drills=size.drills if args.drills is None else args.drills,
    )
    trainer = Trainer(
        initial_model(args, tokenizer), rows, recipe, compiled=args.compile
    )
    state = args.out / "state.pt"
    if args.resume:
        trainer.load(state)

    def say(line: str) -> None:
        print(line, flush=True)

    def check() -> None:
        """Accuracy on held-out problems, shared out over the processes; and an exported
        copy."""
        indices = range(rank, args.eval_problems, trainer.world)
        codec = Codec(tokenizer, name="tiny")
        counts = held_out_counts(trainer.model, codec, indices)
        total = torch.tensor(counts, dtype=torch.float64)
        if trainer.world > 1:
            dist.all_reduce(total)
        problems, solved, steps, right, hard, hard_right = map(int, total.tolist())
        if rank == 0:
            say(
                f"        held-out: {solved}/{problems} solved, {right}/{steps} steps right, "
                f"{hard_right}/{hard} operation steps right"
            )
            export(trainer.model, args.out / "hf", judge="tiny-judge")

    trainer.train(state, say, args.steps, check, args.eval_every)
    if rank == 0:
        export(trainer.model, args.out / "hf", judge="tiny-judge")


if __name__ == "__main__":
    start(work, arguments())
