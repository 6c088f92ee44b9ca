"""Models for the tests: small random ones with a runner, as networks of ours, as models
of transformers and as checkpoints on disk; and how models are loaded.

Hugging Face initialises biases to zero and norms to one, which would hide a bias left
out or two norms mixed up; here every parameter is random.
"""

import json
import random
from dataclasses import replace
from unittest.mock import patch

import torch
from torch.nn import functional as F

from lr.engine.runner import ModelRunner
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import load_model

SMALL = ModelConfig(12, 32, 48, 1, 4, 2, 8, 512, 1e-6, 1e4, False, True, True)
"""One layer; the vocabulary of `toy_kit.py`."""


def random_model(seed, dtype=torch.float64, **changes):
    """A random model whose distributions are neither flat nor one-hot. `changes`: of
    the sizes in `SMALL`."""
    model = CausalLM(replace(SMALL, **changes)).to(dtype)
    return randomised(model.requires_grad_(False).eval(), seed)


def randomised(model, seed):
    """The model, every parameter drawn anew: weights around 0, norms around 1."""
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype)
        parameter.data.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    return model


def runner_on(model, num_blocks=400, **settings):
    """A runner with blocks of four tokens."""
    return ModelRunner(model, num_blocks=num_blocks, **{"block_size": 4} | settings)


def poisoned(runner):
    """The runner; its cache shows NaN to whoever looks where nothing is written."""
    runner.cache.poison_freed = True
    runner.cache.keys.fill_(torch.nan)
    runner.cache.values.fill_(torch.nan)
    return runner


def compute_alike(runners, seed, steps=40):
    """Branches open, fork, rewind and close at random between batches of every size:
    all runners give the same logits."""
    chance = random.Random(seed)
    branches = []  # each a list with one of every runner

    def tokens(count):
        vocab_size = runners[0].model.config.vocab_size
        return [chance.randrange(vocab_size) for _ in range(count)]

    def each(act, i, *arguments):
        pairs = zip(runners, branches[i], strict=True)
        return [act(runner, branch, *arguments) for runner, branch in pairs]

    def forward(chosen, wanted):
        expected, *results = [
            runner.forward([branches[i][side] for i in chosen], wanted)
            for side, runner in enumerate(runners)
        ]
        for result in results:
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)

    for _ in range(steps):
        act = chance.random()
        if act < 0.25 or not branches:
            prompt = tokens(chance.randint(1, 12))
            branches.append([runner.open(prompt) for runner in runners])
            forward([len(branches) - 1], "last")
        i = chance.randrange(len(branches))
        if 0.25 < act < 0.4 and len(branches) < 7:
            branches.append(each(ModelRunner.fork, i))
        elif 0.4 < act < 0.5 and len(branches) > 1:
            each(ModelRunner.close, i)
            del branches[i]
        elif 0.5 < act < 0.6:
            each(ModelRunner.rewind, i, chance.randint(1, len(branches[i][0])))
        chosen = chance.sample(range(len(branches)), chance.randint(1, len(branches)))
        for i in chosen:
            new = tokens(chance.choice([1, 1, 1, 3]))
            for branch in branches[i]:
                branch.extend(new)
        forward(chosen, chance.choice(["last", "all", [1] * len(chosen)]))
    for i in range(len(branches)):
        each(ModelRunner.close, i)


# Of transformers

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS = ("qwen3", "qwen2")


def hf_model(kind, *, seed=0, **changes):
    """A random transformers model in fp64, in eval mode. Qwen3 heads have 16 dimensions
    (hidden / heads would be 8).
    """
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    settings = {**SIZES, "attn_implementation": "sdpa", **changes}
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**settings))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16, **settings}))
    return randomised(model.double().eval(), seed)


def our_logits(model, tokens):
    """Logits [t, v] of tokens [t], by our network with plain causal attention and no
    cache."""

    def attend(layer, q, k, v):
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[
            0
        ].transpose(0, 1)

    with torch.no_grad():
        return model.logits(model.trunk(tokens, torch.arange(len(tokens)), attend))


def random_tokens(count, seed=1):
    return torch.randint(
        SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)
    )


# On disk


def write_checkpoint(
    folder, *, seed, layers=1, heads=(2, 1), padding=0, context=512, mode="lr"
):
    """A random checkpoint that speaks the tiny language's tokens (and babbles).
    `heads`: of queries and of keys; `padding`: unused rows of the embedding.
    `mode`: the one that it names.
    """
    from tiny_training.checkpoint import save_model  # loads transformers
    from tiny_training.vocabulary import build_tokenizer

    tokenizer = build_tokenizer()
    model = random_model(
        seed,
        torch.float32,
        vocab_size=len(tokenizer) + padding,
        hidden_size=16,
        intermediate_size=24,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        max_position_embeddings=context,
    )
    save_model(model, folder, extra={"eos_token_id": tokenizer.eos_token_id})
    tokenizer.save_pretrained(folder)
    settings = {"temperature": 0.7, "top_k": 30, "do_sample": True, "mode": mode}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def write_foreign_checkpoint(folder):
    """The same network under a tokenizer that is not the tiny language's: two words
    have changed places.
    """
    write_checkpoint(folder, seed=9)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content))
    return folder


def edit_json(path, **changes):
    """Change entries of a JSON file; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )


def load_small(name, **how):
    """As `load_model`, but the tiny target has two layers, not
    twenty: the weights of its draft, each changed by about 5 %.
    """
    if name != "tiny-target":
        return load_model(name, **how)
    model = load_model(str(name).replace("target", "draft"), **how)
    noise = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data *= 1 + 0.05 * torch.randn(weight.shape, generator=noise).to(weight)
    return model


def with_loader(loader):
    """Meanwhile a `Reasoner` loads its models by `loader`."""
    return patch("lr.engine.loading.load_model", loader)
