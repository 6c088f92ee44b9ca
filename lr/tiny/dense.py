"""The network on rectangles: plain causal rows for training, and a batched sampler for quick
accuracy checks while training.

This is not the engine (`lr/engine`): no paging, no ragged batches, no speculation. All rows of the
sampler advance together from position 0; a row that is still inside its prompt is fed the prompt,
so nothing is padded. The real measurement is `evaluate.py`.
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

LENGTH, TEMPERATURE = 400, 0.6


def causal_attend(rows: int, width: int) -> Attend:
    """Attention within each of `rows` rows of `width` tokens, given flat: q [rows * width, h, d]
    and so on.

    Written with two matrix products: on a CPU the backward of fused attention is several times
    slower than these in bf16. The query heads that share a KV head are stacked, so k and v are
    never repeated."""
    mask = torch.full((width, width), float("-inf")).triu(1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, kv, d = q.shape[1], k.shape[1], q.shape[2]
        # [rows * width, heads, d] -> [rows, heads, width, d]
        q, k, v = (x.view(rows, width, -1, d).transpose(1, 2).to(v.dtype) for x in (q, k, v))
        if q.is_cuda:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            # one matrix of share * width queries per (row, KV head)
            share = heads // kv
            q = (q * d**-0.5).reshape(rows * kv, share * width, d)
            k, v = (x.reshape(rows * kv, width, d) for x in (k, v))
            scores = (q @ k.mT).view(rows * kv, share, width, width) + mask.to(v.dtype)
            p = scores.softmax(-1, dtype=v.dtype).view(rows * kv, share * width, width)
            mixed = (p @ v).view(rows, heads, width, d)
        return mixed.transpose(1, 2).reshape(rows * width, heads, d)

    return attend


def hidden_rows(model: CausalLM, tokens: Tensor) -> Tensor:
    """Final hidden states [r, t, e] of rows of tokens [r, t]."""
    rows, width = tokens.shape
    positions = torch.arange(width, device=tokens.device).repeat(rows)
    hidden = model.trunk(tokens.flatten(), positions, causal_attend(rows, width))
    return hidden.view(rows, width, -1)


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
    continuations. Temperature 0 is greedy. The noise comes from `noise` alone."""
    rows, device, config = len(prompts), model.device, model.config
    kv, d = config.num_kv_heads, config.head_dim
    cache = torch.zeros(
        (config.num_layers, 2, rows, kv, length, d), dtype=model.dtype, device=device
    )
    written: list[list[int]] = [[] for _ in prompts]
    current = torch.tensor([prompt[0] for prompt in prompts], device=device)
    for at in range(length - 1):

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, at: int = at) -> Tensor:
            cache[layer, 0, :, :, at], cache[layer, 1, :, :, at] = k, v
            keys, values = cache[layer, :, :, :, : at + 1]
            q = q.view(rows, kv, -1, d) * d**-0.5
            return ((q @ keys.mT).softmax(-1) @ values).view(rows, -1, d)

        hidden = model.trunk(current, torch.full((rows,), at, device=device), attend)
        logits = model.logits(hidden)
        if temperature == 0:
            chosen = logits.argmax(-1).tolist()
        else:
            p = (logits.float() / temperature).softmax(-1).cpu()
            chosen = torch.multinomial(p, 1, generator=noise)[:, 0].tolist()
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


def solve(model: CausalLM, rows: RowMaker, indices: Iterable[int]) -> list[int]:
    """[problems, right answers] of sampled solutions of held-out problems."""
    problems = [rows.language.problem(Split.TEST, i, 0) for i in indices]
    prompts = [rows.prompt(what.question) for what in problems]
    noise = torch.Generator().manual_seed(1)
    written = sample_rows(model, prompts, {rows.end}, LENGTH, TEMPERATURE, noise)
    answers = [rows.language.boxed(rows.tokenizer.decode(ids)) for ids in written]
    right = sum(got == what.answer for got, what in zip(answers, problems, strict=True))
    return [len(problems), right]


def write_steps(model: CausalLM, rows: RowMaker, indices: Iterable[int]) -> list[int]:
    """[steps, right steps, operation steps, right ones]: from a true prefix in mixed styles the
    model writes one step."""
    language, tokenizer = rows.language, rows.tokenizer
    (blank,) = tokenizer.encode("\n\n", add_special_tokens=False)
    prompts, wanted = [], []
    for i in indices:
        what, rng = language.problem(Split.TEST, i, 0), random.Random(i)
        at = rng.randrange(len(what.steps))
        said = [language.render(s, rng.choice(list(Style)), rng) + "\n\n" for s in what.steps[:at]]
        text = tokenizer.encode("".join(said), add_special_tokens=False)
        prompts.append(rows.prompt(what.question) + text)
        wanted.append(what.steps[at])
    noise = torch.Generator().manual_seed(2)
    written = sample_rows(model, prompts, {rows.end, blank}, LENGTH, TEMPERATURE, noise)
    read = [language.parse(tokenizer.decode(ids, skip_special_tokens=True)) for ids in written]
    right = [meaning == step for meaning, step in zip(read, wanted, strict=True)]
    hard = [r for r, step in zip(right, wanted, strict=True) if step.kind is Kind.OPERATION]
    return [len(right), sum(right), len(hard), sum(hard)]
