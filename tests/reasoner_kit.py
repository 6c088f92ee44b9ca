"""Small checkpoints in the real format, written once per test session, for the tests of
the front door.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training.checkpoint import save_model
from tiny_training.vocabulary import build_tokenizer

from lr.engine import loading
from lr.model.config import ModelConfig
from lr.model.qwen import CausalLM
from lr.model.weights import load_model


def write_checkpoint(
    folder: Path,
    *,
    seed: int,
    layers: int = 1,
    heads: tuple[int, int] = (2, 1),
    padding: int = 0,
    context: int = 512,
    mode: str | None = "lr",
) -> Path:
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
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=noise)
        parameter.data.copy_(1 + 0.1 * drawn if "norm" in name else 0.3 * drawn)
    save_model(model.eval(), folder, extra={"eos_token_id": tokenizer.eos_token_id})
    tokenizer.save_pretrained(folder)
    settings = {"temperature": 0.7, "top_k": 30, "do_sample": True, "mode": mode}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def load_small(name: str | Path, **how: Any) -> CausalLM:
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
def with_loader(loader: Callable[..., CausalLM]) -> Iterator[None]:
    """Meanwhile a `Reasoner` loads its models by `loader`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_model", loader)
        yield


def write_foreign_checkpoint(folder: Path) -> Path:
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
