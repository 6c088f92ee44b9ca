"""Train a tiny model from a seed: the target first, then the draft from the target's first layers.

    python scripts/train_tiny.py --role target --out training/target --rate 0.02 --steps 805 python
    scripts/train_tiny.py --role target --out training/target --resume python scripts/train_tiny.py
    --role draft --out training/draft --from training/target/state.pt python scripts/train_tiny.py
    --language plans --role target --out training/plans-target python scripts/train_tiny.py
    --language plans --role draft --out training/plans-draft --from training/plans-target/state.pt

Two processes of one thread each on a CPU, one process on a GPU. Progress goes to standard output; a
checkpoint is written every two minutes and at the end; Ctrl-C writes one and stops; `--resume` goes
on from it. The finished model is a Hugging Face checkpoint in OUT/hf.
"""

from __future__ import annotations

import argparse
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.tiny.dense import report_line, solve, write_steps
from lr.tiny.grammar import Style
from lr.tiny.languages import LANGUAGES
from lr.tiny.rows import RowMaker
from lr.tiny.training import Recipe, Trainer, export, fresh_model, start, tiny_config
from lr.tiny.vocabulary import build_tokenizer


@dataclass(frozen=True)
class Size:
    """How large a model is and how long and how fast it learns, where nothing else is said."""

    layers: int
    tokens: int
    rate: float
    mlp: int = 384
    drills: float = 0.4


SIZES = {
    ("tiny", "target"): Size(20, 7_500_000, 0.008),
    ("tiny", "draft"): Size(2, 4_500_000, 0.02),
    ("plans", "target"): Size(10, 2_500_000, 0.015, mlp=256, drills=0.2),
    ("plans", "draft"): Size(2, 600_000, 0.02, mlp=256, drills=0.2),
}
"""By language and role."""
SAVE_SECONDS = 120.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=[style.value for style in Style], required=True)
    parser.add_argument(
        "--language",
        choices=sorted(LANGUAGES),
        default="tiny",
        help="tiny: quantities; plans: a robot",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints and the finished model"
    )
    parser.add_argument(
        "--tokens", type=int, help="token budget of the schedule (default: see SIZES)"
    )
    parser.add_argument(
        "--steps", type=int, help="stop after this many steps, wherever the schedule is"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--drills", type=float, help="share of the tokens that are drills (default: see SIZES)"
    )
    parser.add_argument("--rate", type=float, help="Muon's learning rate (default: see SIZES)")
    parser.add_argument("--processes", type=int, default=1 if torch.cuda.is_available() else 2)
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        help="state.pt or checkpoint whose first layers to start from",
    )
    parser.add_argument(
        "--eval-every", type=int, default=1_000_000, help="tokens between accuracy checks"
    )
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def initial_model(args: argparse.Namespace, vocab_size: int) -> CausalLM:
    """Fresh weights from the seed, or the first layers of another model."""
    size = SIZES[args.language, args.role]
    model = fresh_model(tiny_config(size.layers, vocab_size, size.mlp), args.seed)
    if args.start:
        trained = args.start.is_file()
        state = (
            torch.load(args.start, weights_only=True)["model"]
            if trained
            else load_model(str(args.start)).state_dict()
        )
        mine = model.state_dict()
        model.load_state_dict({name: state[name] for name in mine})
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def work(rank: int, args: argparse.Namespace) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    if args.processes > 1:
        dist.init_process_group(
            "gloo", f"file://{args.out.resolve()}/rendezvous", rank=rank, world_size=args.processes
        )
    language, size = LANGUAGES[args.language], SIZES[args.language, args.role]
    tokenizer = build_tokenizer(language)
    rows = RowMaker(tokenizer, Style(args.role), args.seed, language)
    drills = size.drills if args.drills is None else args.drills
    recipe = Recipe(args.tokens or size.tokens, drills=drills, matrix_rate=args.rate or size.rate)
    trainer = Trainer(initial_model(args, len(tokenizer)), rows, recipe)
    if args.resume:
        trainer.load(args.out / "state.pt")
    train(trainer, args)
    trainer.save(args.out / "state.pt")
    if rank == 0:
        export(trainer.model, args.out / "hf", trainer.rows.language)
    if args.processes > 1:
        dist.destroy_process_group()


def train(trainer: Trainer, args: argparse.Namespace) -> None:
    """Steps until the budget is spent, with progress, checkpoints and accuracy checks."""
    asked: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: asked.append(number))
    began = saved = shown = time.perf_counter()
    first = trainer.progress.tokens
    means: dict[str, float] = {}
    last_step = args.steps or 10**9
    while trainer.progress.tokens < trainer.recipe.tokens and trainer.progress.step < last_step:
        due = trainer.rank == 0 and time.perf_counter() - saved > SAVE_SECONDS
        before = trainer.progress.tokens
        losses, stop, save = trainer.step(stop=bool(asked), save=due)
        means = {name: 0.95 * means.get(name, loss) + 0.05 * loss for name, loss in losses.items()}
        now, spent = time.perf_counter(), trainer.progress.tokens
        if trainer.rank == 0 and now - shown > 15:
            print(progress_line(trainer, means, now - began, spent - first), flush=True)
            shown = now
        if save or stop:
            trainer.save(args.out / "state.pt")
            saved = now
        if stop:
            return
        if spent // args.eval_every != before // args.eval_every:
            check(trainer, args)
    check(trainer, args)


def progress_line(trainer: Trainer, means: dict[str, float], seconds: float, tokens: int) -> str:
    """Time, place in the schedule, mean losses by class of token, speed, and the minutes that are
    left.
    """
    spent, speed = trainer.progress.tokens, tokens / seconds
    losses = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    left = (trainer.recipe.tokens - spent) / speed / 60
    return (
        f"{seconds / 60:6.1f} min  step {trainer.progress.step:5d}  {spent / 1e6:6.3f}M tokens  {losses}  "
        f"{speed:.0f} tokens/s  {left:.0f} min left"
    )


def check(trainer: Trainer, args: argparse.Namespace) -> None:
    """Accuracy on held-out problems, the problems shared out over the processes; and a fresh
    exported copy.
    """
    torch.manual_seed(0)
    trainer.model.eval()
    mine = range(trainer.rank, 48, trainer.world)
    counts = solve(trainer.model, trainer.rows, mine) + write_steps(
        trainer.model, trainer.rows, mine
    )
    total = torch.tensor(counts, dtype=torch.float64)
    if trainer.world > 1:
        dist.all_reduce(total)
    if trainer.rank == 0:
        print("        " + report_line(total.tolist()), flush=True)
        export(trainer.model, args.out / "hf", trainer.rows.language)
    trainer.model.train()


def main() -> None:
    """Start the processes."""
    start(work, arguments())


if __name__ == "__main__":
    main()
