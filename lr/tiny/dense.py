"""The network on rectangles: plain causal rows for training, and a small batched sampler for
accuracy checks while training.

This is not the engine (`lr/engine`): no paging, no ragged batches, no speculation. It is what
training needs and nothing else. All rows of the sampler advance together from position 0; a row
that is still inside its prompt is fed the prompt, so nothing is padded.

Quick accuracy checks for the training loop: whole solutions, and single steps from a true
prefix. The real measurement is `evaluate.py`, with the engine and with both models.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.model.layers import Attend
from lr.model.qwen import CausalLM
from lr.tiny.grammar import Style
from lr.tiny.language import Kind, Split
from lr.tiny.rows import RowMaker


def causal_attend(rows: int, width: int) -> Attend:
    """Attention within each of `rows` rows of `width` tokens, given flat: q [rows * width, h, d]
    and so on.

    Written with two matrix products: on a CPU the backward of fused attention is several times
    slower than these in bf16. The query heads that share a KV head are stacked, so k and v are
    never repeated.
    """
    mask = torch.full((width, width), float("-inf")).triu(1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, kv, d = q.shape[1], k.shape[1], q.shape[2]
        if q.is_cuda:
            q, k, v = (x.view(rows, width, -1, d).transpose(1, 2).to(v.dtype) for x in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2).reshape(rows * width, heads, d)
        share = heads // kv
        # [rows * width, heads, d] -> [rows, heads, width, d] -> one matrix of share * width queries
        # per (row, KV head)
        q = (
            (q * d**-0.5)
            .to(v.dtype)
            .view(rows, width, heads, d)
            .transpose(1, 2)
            .reshape(rows * kv, share * width, d)
        )
        k = k.to(v.dtype).view(rows, width, kv, d).transpose(1, 2).reshape(rows * kv, width, d)
        v = v.view(rows, width, kv, d).transpose(1, 2).reshape(rows * kv, width, d)
        scores = (q @ k.mT).view(rows * kv, share, width, width) + mask.to(v.dtype)
        mixed = scores.softmax(-1, dtype=v.dtype).view(rows * kv, share * width, width) @ v
        return mixed.view(rows, heads, width, d).transpose(1, 2).reshape(rows * width, heads, d)

    return attend


def hidden_rows(model: CausalLM, tokens: Tensor) -> Tensor:
    """Final hidden states [r, t, e] of rows of tokens [r, t]."""
    rows, width = tokens.shape
    positions = torch.arange(width, device=tokens.device).repeat(rows)
    return model.trunk(tokens.flatten(), positions, causal_attend(rows, width)).view(
        rows, width, -1
    )


@torch.no_grad()
def sample_rows(
    model: CausalLM,
    prompts: list[list[int]],
    stops: set[int],
    length: int,
    temperature: float,
    noise: torch.Generator,
) -> list[list[int]]:
    """Continue each prompt until a stop token (kept) or `length` tokens in all; returns the
    continuations.

    Temperature 0 is greedy. The noise comes from `noise` alone.
    """
    rows, device = len(prompts), model.device
    config = model.config
    shape = (config.num_layers, 2, rows, config.num_kv_heads, length, config.head_dim)
    cache = torch.zeros(shape, dtype=model.dtype, device=device)
    written: list[list[int]] = [[] for _ in prompts]
    current = torch.tensor([prompt[0] for prompt in prompts], device=device)
    for at in range(length - 1):

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, at: int = at) -> Tensor:
            cache[layer, 0, :, :, at], cache[layer, 1, :, :, at] = k, v
            keys, values = cache[layer, 0, :, :, : at + 1], cache[layer, 1, :, :, : at + 1]
            q = q.view(rows, config.num_kv_heads, -1, config.head_dim)
            return (
                ((q * config.head_dim**-0.5) @ keys.mT)
                .softmax(-1)
                .matmul(values)
                .view(rows, -1, config.head_dim)
            )

        hidden = model.trunk(current, torch.full((rows,), at, device=device), attend)
        chosen = _choose(model.logits(hidden), temperature, noise)
        done = 0
        for i, prompt in enumerate(prompts):
            if at + 1 < len(prompt):
                chosen[i] = prompt[at + 1]
            elif written[i] and written[i][-1] in stops:
                done += 1
            else:
                written[i].append(chosen[i])
        if done == rows:
            break
        current = torch.tensor(chosen, device=device)
    return written


def _choose(logits: Tensor, temperature: float, noise: torch.Generator) -> list[int]:
    if temperature == 0:
        chosen: list[int] = logits.argmax(-1).tolist()
        return chosen
    p = (logits.float() / temperature).softmax(-1).cpu()
    sampled: list[int] = torch.multinomial(p, 1, generator=noise)[:, 0].tolist()
    return sampled


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
