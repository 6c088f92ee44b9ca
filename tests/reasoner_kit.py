"""Small checkpoints in the real format, written once per test session, for the tests of
the front door.
"""

import json
from contextlib import contextmanager

import pytest
import torch
from tiny_training.checkpoint import save_model
from tiny_training.vocabulary import build_tokenizer
from toy_kit import randomised

from lr.engine import loading
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import make_options


def write_checkpoint(
    folder, *, seed, layers=1, heads=(2, 1), padding=0, context=512, mode="lr"
):
    """A random checkpoint that speaks the tiny language's tokens (and babbles).
    `heads`: of queries and of keys; `padding`: unused rows of the embedding.
    `mode`: the one that it names.
    """
    tokenizer = build_tokenizer()
    vocabulary = len(tokenizer) + padding
    model = CausalLM(
        ModelConfig(
            vocabulary, 16, 24, layers, *heads, 8, context, 1e-6, 1e4, False, True, True
        )
    )
    save_model(
        randomised(model.eval(), seed),
        folder,
        extra={"eos_token_id": tokenizer.eos_token_id},
    )
    tokenizer.save_pretrained(folder)
    settings = {"temperature": 0.7, "top_k": 30, "do_sample": True, "mode": mode}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


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


@contextmanager
def with_loader(loader):
    """Meanwhile a `Reasoner` loads its models by `loader`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_model", loader)
        yield


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


CHOICES = {
    "mode": ["ar", "sd", "lr", "lr", "lr+sd", "lr+sd"],
    "drafter": ["ngram", "draft", "tree"],
    "acceptance": ["match"],
    "width": [1, 1, 2, 3],
    "schedule": ["sync", "paper", "depth"],
    "num_speculative_tokens": range(1, 8),
    "draft_confidence": [0.0, 0.5],
    "draft_forwards": [1, 3, 8],
    "branching": [(2, 2), (3, 1), (1, 1, 1), (4,), (2, 1, 2)],
    "temperature": [0.0, 0.6, 1.0],
    "top_k": [0, 0, 20],
    "top_p": [1.0, 0.9],
    "max_step_tokens": [3, 12, 40, 100],
    "segmenter": ["blank_line", "sentence", "fixed"],
    "segment_tokens": [3],
    "max_target_rows": [None, None, 1, 3],
    "max_tokens": range(1, 41),
    "ignore_half_sentence": [True, False],
    "coupling": ["independent", "shared"],
    "driver": ["lockstep", "overlapped"],
    "seed": range(1000),
}


def random_options(rng, **choices):
    """Random options that fit each other. `choices`: among other values."""
    drawn = {name: rng.choice(values) for name, values in (CHOICES | choices).items()}
    drawn["depth"] = rng.randint(1, 4 if drawn["width"] == 1 else 2)
    if drawn["acceptance"] == "block":  # it takes chains, and fresh noise
        drawn |= {"coupling": "independent", "drafter": rng.choice(["ngram", "draft"])}
    return make_options(**drawn)
