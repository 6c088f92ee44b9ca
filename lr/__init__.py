"""Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch. Public names load on first
use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lr import tiny  # noqa: F401  # enters the names of its checkpoints and its verifier

if TYPE_CHECKING:
    from lr.engine.runner import ModelRunner
    from lr.kvcache.branch import Branch
    from lr.model.qwen import CausalLM
    from lr.model.weights import load_model
    from lr.options import GenerateOptions
    from lr.reasoner import Reasoner
    from lr.result import Result

__version__ = "0.1.0"
__all__ = [
    "Branch",
    "CausalLM",
    "GenerateOptions",
    "ModelRunner",
    "Reasoner",
    "Result",
    "load_model",
]

_HOMES = {
    "Branch": "lr.kvcache.branch",
    "CausalLM": "lr.model.qwen",
    "GenerateOptions": "lr.options",
    "ModelRunner": "lr.engine.runner",
    "Reasoner": "lr.reasoner",
    "Result": "lr.result",
    "load_model": "lr.model.weights",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'lr' has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
