"""Train the tiny judge from a seed: the target's first layers, taught to tell whether two steps
mean the same.

    python scripts/train_judge.py --out training/judge
    python scripts/train_judge.py --out training/judge --resume

First the pairs: draft and target write steps from the same prefixes of training problems
(OUT/pairs-*.json, made once). Then the training: two processes of one thread each on a CPU, one
process on a GPU. Progress goes to standard output; a checkpoint is written every two minutes and at
the end; Ctrl-C writes one and stops; `--resume` goes on from it. The finished judge is a Hugging
Face checkpoint in OUT/hf. `scripts/measure_judge.py` measures it.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.tiny.judge import JudgeRows, PairSource, batch_of
from lr.tiny.language import Split
from lr.tiny.pairs import TextPair, grammar_pair
from lr.tiny.training import Recipe, Trainer, export, start, token_losses
from lr.tiny.vocabulary import build_tokenizer

SAVE_SECONDS, SHOW_SECONDS = 120.0, 15.0
CHECKED = 512  # held-out grammar pairs in each accuracy check


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for checkpoints and the finished model"
    )
    parser.add_argument(
        "--tokens", type=int, default=10_000_000, help="token budget of the schedule"
    )
    parser.add_argument(
        "--steps", type=int, help="stop after this many steps, wherever the schedule is"
    )
    parser.add_argument(
        "--layers", type=int, default=6, help="how many of the target's layers to start from"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.02, help="Muon's learning rate")
    parser.add_argument(
        "--batch", type=int, default=2560, help="tokens of one step over all processes"
    )
    parser.add_argument(
        "--real-batches",
        type=int,
        default=40,
        help="batches of 32 training problems to take pairs from",
    )
    parser.add_argument(
        "--real-share",
        type=float,
        default=0.3,
        help="share of the training pairs that come from runs",
    )
    parser.add_argument(
        "--target",
        default="tiny-target",
        help="whose layers to start from, and whose steps to judge",
    )
    parser.add_argument("--draft", default="tiny-draft", help="whose steps to judge")
    parser.add_argument("--processes", type=int, default=1 if torch.cuda.is_available() else 2)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def pairs_from_runs(rank: int, args: argparse.Namespace) -> list[TextPair]:
    """The pairs of OUT/pairs-*.json, one file per process; each process first writes its own if it
    does not exist.
    """
    path = args.out / f"pairs-{rank}.json"
    if not path.is_file():
        source, pairs = PairSource(args.target, args.draft), []
        for batch in range(rank, args.real_batches, args.processes):
            pairs += source.pairs(Split.TRAIN, batch, args.seed)
            if rank == 0:
                same = sum(pair.same for pair in pairs)
                print(
                    f"batch {batch} of {args.real_batches}: {len(pairs)} pairs, {same} of equal meaning",
                    flush=True,
                )
        path.write_text(json.dumps(pairs))
    if args.processes > 1:
        dist.barrier()
    files = [args.out / f"pairs-{i}.json" for i in range(args.processes)]
    return [TextPair(*pair) for file in files for pair in json.loads(file.read_text())]


def first_layers(name: str, count: int) -> CausalLM:
    """A model made of the first layers of another, in fp32."""
    whole = load_model(name, dtype=torch.float32)
    model = CausalLM(replace(whole.config, num_layers=count))
    state = whole.state_dict()
    model.load_state_dict({key: state[key] for key in model.state_dict()})
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def work(rank: int, args: argparse.Namespace) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    if args.processes > 1:
        dist.init_process_group(
            "gloo", f"file://{args.out.resolve()}/rendezvous", rank=rank, world_size=args.processes
        )
    real = pairs_from_runs(rank, args) if args.real_share else []
    rows = JudgeRows(build_tokenizer(), args.seed, real, args.real_share)
    recipe = Recipe(args.tokens, batch=args.batch, matrix_rate=args.rate, drills=0.0)
    trainer = Trainer(first_layers(args.target, args.layers), rows, recipe)
    if args.resume:
        trainer.load(args.out / "state.pt")
    train(trainer, args)
    trainer.save(args.out / "state.pt")
    right = check(trainer)
    if rank == 0:
        print(f"held-out grammar pairs: {right:.4f} right", flush=True)
        export(trainer.model, args.out / "hf")
    if args.processes > 1:
        dist.destroy_process_group()


def train(trainer: Trainer, args: argparse.Namespace) -> None:
    """Steps until the budget is spent, with progress and checkpoints."""
    asked: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: asked.append(number))
    began = saved = shown = time.perf_counter()
    first, mean = trainer.progress.tokens, 0.7
    last_step = args.steps or 10**9
    while trainer.progress.tokens < trainer.recipe.tokens and trainer.progress.step < last_step:
        due = trainer.rank == 0 and time.perf_counter() - saved > SAVE_SECONDS
        losses, stop, save = trainer.step(stop=bool(asked), save=due)
        mean = 0.98 * mean + 0.02 * losses["words"]
        now = time.perf_counter()
        if trainer.rank == 0 and now - shown > SHOW_SECONDS:
            speed = (trainer.progress.tokens - first) / (now - began)
            left = (trainer.recipe.tokens - trainer.progress.tokens) / speed / 60
            print(
                f"{(now - began) / 60:5.1f} min  step {trainer.progress.step:5d}  {trainer.progress.tokens / 1e6:.3f}M tokens  "
                f"loss of the answers {mean:.4f}  {speed:.0f} tokens/s  {left:.0f} min left",
                flush=True,
            )
            shown = now
        if save or stop:
            trainer.save(args.out / "state.pt")
            saved = time.perf_counter()
        if stop:
            return


@torch.no_grad()
def check(trainer: Trainer) -> float:
    """The share of held-out grammar pairs for which the right answer is the likelier one."""
    rows = trainer.rows
    assert isinstance(rows, JudgeRows)
    pairs = [grammar_pair(i, rows.seed, Split.TEST) for i in range(CHECKED)]
    batch = batch_of([rows.pair_row(pair) for pair in pairs], rows.tokenizer.pad_token_id)
    final = (batch.weights == 1.0).float()
    assert batch.labels is not None
    device = trainer.model.device
    losses, _ = token_losses(
        trainer.model, batch.tokens.to(device), final.to(device), batch.labels.to(device)
    )
    return float((losses < 0.6931).float().mean())


def main() -> None:
    """Start the processes."""
    start(work, arguments())


if __name__ == "__main__":
    main()
