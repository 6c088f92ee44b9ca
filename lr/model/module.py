"""`nn.Module` without the two things in it that cost a small model dearly: hooks, and the search
for attributes.

One decoding step of a tiny model is some hundred calls of a few microseconds each. In an
`nn.Module` every call first looks for hooks, and every `self.weight` fails as an ordinary attribute
before Python asks `nn.Module.__getattr__` for it; together that is a sixth of the step. For large
models it is nothing. Loading, training, `to`, `state_dict` and `deepcopy` work as ever. Read next:
`layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Direct(nn.Module):
    """A module whose call is its `forward` (hooks do not fire) and whose parameters and submodules
    are ordinary attributes too.
    """

    def __init_subclass__(cls) -> None:
        """Calling a module is calling its `forward`, with no function in between."""
        super().__init_subclass__()
        type.__setattr__(cls, "__call__", cls.forward)

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (nn.Parameter, nn.Module)):
            self.__dict__[name] = value

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self.__dict__[name] = param

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Direct:
        """What `to`, `double`, `to_empty` do their work with: it may put new parameters in the
        place of the old.
        """
        super()._apply(fn, recurse)
        self.__dict__.update(self._parameters)
        return self


class Linear(Direct, nn.Linear):
    """y = W x (+ b)."""

    def reset_parameters(self) -> None:
        """As in `nn.Linear`, but without storage there is nothing to initialise (and torch would
        load its compiler to find out).
        """
        if not self.weight.is_meta:
            super().reset_parameters()


class Embedding(nn.Embedding):
    """A row per token id."""

    def reset_parameters(self) -> None:
        """As in `nn.Embedding`, but not without storage; see `Linear`."""
        if not self.weight.is_meta:
            super().reset_parameters()
