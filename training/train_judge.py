"""Train the tiny judge from a seed: the target's first layers, taught to tell whether
two steps mean the same.

    python training/train_judge.py --out trained/judge
    python training/train_judge.py --out trained/judge --resume

First the pairs: draft and target write steps from the same prefixes of training
problems (OUT/pairs-*.json, made once). Then the training: two processes of one thread
each on a CPU, one process on a GPU. Progress goes to standard output; a checkpoint is
written every two minutes and at the end; Ctrl-C writes one and stops; `--resume` goes
on from it. The finished judge is a Hugging Face checkpoint in OUT/hf.
`training/measure_judge.py` measures it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_training.judge import JudgeRows, PairSource
from tiny_training.pairs import TextPair, grammar_pair
from tiny_training.rows import batch_of
from tiny_training.trainer import Recipe, Trainer, start, token_losses

from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.spec.verifiers.judge import BARE_PROMPT
from lr.tiny.language import Split
from lr.tiny.vocabulary import build_tokenizer, export

LONG_EVERY = 4
"""One batch of problems in so many is of long ones: they give nine times the pairs."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        required=True,
        help="folder for checkpoints and the finished model",
    )
    add("--tokens", type=int, default=10_000_000, help="token budget of the schedule")
    add(
        "--steps", type=int, help="stop after this many steps, wherever the schedule is"
    )
    add(
        "--layers",
        type=int,
        default=4,
        help="how many of the target's layers to start from",
    )
    add("--seed", type=int, default=0)
    add("--rate", type=float, default=0.02, help="Muon's learning rate")
    add("--batch", type=int, default=2560, help="tokens of one step over all processes")
    add(
        "--real-batches",
        type=int,
        default=40,
        help="batches of 32 problems to take pairs from",
    )
    add(
        "--real-share",
        type=float,
        default=0.3,
        help="share of the pairs that come from runs",
    )
    add(
        "--target", default="tiny-target", help="whose layers, and whose steps to judge"
    )
    add("--draft", default="tiny-draft", help="whose steps to judge")
    add(
        "--check",
        type=int,
        default=512,
        help="held-out grammar pairs of the accuracy check",
    )
    add("--processes", type=int, default=1 if torch.cuda.is_available() else 2)
    add(
        "--compile",
        action="store_true",
        help="compile the layers: faster after some minutes",
    )
    add("--resume", action="store_true")
    return parser.parse_args()


def say(line: str) -> None:
    """Show a line at once."""
    print(line, flush=True)


def pairs_from_runs(rank: int, args: argparse.Namespace) -> list[TextPair]:
    """The pairs of OUT/pairs-*.json, one file per process; each process first writes
    its own if it does not exist."""
    path = args.out / f"pairs-{rank}.json"
    if not path.is_file():
        source = PairSource(args.target, args.draft)
        pairs = list[TextPair]()
        for batch in range(rank, args.real_batches, args.processes):
            dataset = "tiny" if batch % LONG_EVERY else "stories"
            pairs += source.pairs(Split.TRAIN, batch, args.seed, dataset)
            same = sum(pair.same for pair in pairs)
            if rank == 0:
                say(
                    f"batch {batch} of {args.real_batches}: {len(pairs)} pairs, {same} equal"
                )
        path.write_text(json.dumps(pairs))
    if args.processes > 1:
        dist.barrier()
    files = [args.out / f"pairs-{i}.json" for i in range(args.processes)]
    return [TextPair(*pair) for file in files for pair in json.loads(file.read_text())]


def first_layers(name: str, count: int) -> CausalLM:
    """A model made of the first layers of another, in fp32."""
    larger = load_model(name, dtype=torch.float32)
    model = CausalLM(replace(larger.config, num_layers=count))
    state = larger.state_dict()
    model.load_state_dict({key: state[key] for key in model.state_dict()})
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def accuracy(model: CausalLM, rows: JudgeRows, count: int) -> float:
    """The share of held-out grammar pairs for which the right answer is the likelier
    one."""
    pairs = [grammar_pair(i, rows.seed, Split.TEST) for i in range(count)]
    batch = batch_of(
        [rows.pair_row(pair) for pair in pairs], rows.tokenizer.pad_token_id
    )
    final = (batch.weights == 1.0).float()
    tokens, weights, labels = (
        part.to(model.device) for part in (batch.tokens, final, batch.labels)
    )
    losses, _ = token_losses(model, tokens, weights, labels)
    return float((losses < 0.6931).float().mean())


def work(rank: int, args: argparse.Namespace) -> None:
    """What one process does."""
    real = pairs_from_runs(rank, args) if args.real_share else []
    rows = JudgeRows(build_tokenizer(), args.seed, real, args.real_share)
    recipe = Recipe(args.tokens, batch=args.batch, matrix_rate=args.rate, drills=0.0)
    trainer = Trainer(
        first_layers(args.target, args.layers), rows, recipe, compiled=args.compile
    )
    if args.resume:
        trainer.load(args.out / "state.pt")
    trainer.train(args.out / "state.pt", say, args.steps)
    if rank == 0:
        right = accuracy(trainer.model, rows, args.check)
        say(f"held-out grammar pairs: {right:.4f} right")
        export(trainer.model, args.out / "hf", judge_prompt=BARE_PROMPT)


if __name__ == "__main__":
    start(work, arguments())
