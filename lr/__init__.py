"""Lookahead Reasoning (arXiv 2506.19830) in pure PyTorch. Public names load on first
use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lr.model.weights import load_model
    from lr.options import GenerateOptions
    from lr.reasoner import Reasoner

__version__ = "0.1.0"
__all__ = ["GenerateOptions", "Reasoner", "load_model"]

_HOMES = {
    "GenerateOptions": "lr.options",
    "Reasoner": "lr.reasoner",
    "load_model": "lr.model.weights",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'lr' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
