"""Quick accuracy checks for the training loop: whole solutions, and single steps from a true
prefix. The real measurement is `evaluate.py`, with the engine and with both models."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from lr.model.qwen import CausalLM
from lr.tiny.dense import sample_rows
from lr.tiny.grammar import Style
from lr.tiny.language import Kind, Split
from lr.tiny.rows import RowMaker

LENGTH, TEMPERATURE = 400, 0.6


def solve(model: CausalLM, rows: RowMaker, indices: Iterable[int]) -> list[int]:
    """[problems, right answers] of sampled solutions of held-out problems."""
    problems = [rows.language.problem(Split.TEST, i, 0) for i in indices]
    prompts = [rows.prompt(what.question) for what in problems]
    noise = torch.Generator().manual_seed(1)
    written = sample_rows(model, prompts, {rows.end}, LENGTH, TEMPERATURE, noise)
    right = sum(
        rows.language.boxed(rows.tokenizer.decode(ids)) == what.answer
        for ids, what in zip(written, problems, strict=True)
    )
    return [len(problems), right]


def write_steps(model: CausalLM, rows: RowMaker, indices: Iterable[int]) -> list[int]:
    """[steps, right steps, operation steps, right ones]: from a true prefix in mixed styles the
    model writes one step.
    """
    (blank,) = rows.tokenizer.encode("\n\n", add_special_tokens=False)
    prompts, wanted = [], []
    for i in indices:
        what, rng = rows.language.problem(Split.TEST, i, 0), random.Random(i)
        at = rng.randrange(len(what.steps))
        text = "".join(
            rows.language.render(step, rng.choice(list(Style)), rng) + "\n\n"
            for step in what.steps[:at]
        )
        prompts.append(
            rows.prompt(what.question) + rows.tokenizer.encode(text, add_special_tokens=False)
        )
        wanted.append(what.steps[at])
    written = sample_rows(
        model, prompts, {rows.end, blank}, LENGTH, TEMPERATURE, torch.Generator().manual_seed(2)
    )
    texts = [rows.tokenizer.decode(ids, skip_special_tokens=True) for ids in written]
    right = [rows.language.parse(text) == step for text, step in zip(texts, wanted, strict=True)]
    on_operations = [
        ok for ok, step in zip(right, wanted, strict=True) if step.kind is Kind.OPERATION
    ]
    return [len(right), sum(right), len(on_operations), sum(on_operations)]


def report_line(counts: list[float]) -> str:
    """The sums of `solve` and `write_steps` over all processes, in words."""
    problems, solved, steps, right, operations, right_operations = (int(count) for count in counts)
    return (
        f"held-out: {solved}/{problems} solved, {right}/{steps} steps right, "
        f"{right_operations}/{operations} operation steps right"
    )
