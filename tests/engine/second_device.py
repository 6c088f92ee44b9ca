"""A second kind of device on the CPU: its tensors are those of the CPU, but they say
that they are elsewhere, and whatever mixes the two raises, as it would with a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lr.model.qwen import CausalLM
from lr.model.weights import load_model

ELSEWHERE = torch.device("xla")
"""Its name. PyTorch knows the kind, and has none of it."""


class Distant(Tensor):
    """A tensor of the second device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: ELSEWHERE)  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]


class SecondDevice(TorchFunctionMode):
    """Inside, tensors are made on `ELSEWHERE` and moved to and from it by the ordinary
    calls. A number (no dimensions) of the CPU may meet tensors of the other device, and
    only that.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.as_subclass, torch.device):
            return func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        places = [one for one in given if isinstance(one, torch.device)]
        if any(isinstance(one, list | tuple | dict) for one in given):
            given = tree_leaves(given)
        tensors = [one for one in given if isinstance(one, Tensor)]
        there = [isinstance(one, Distant) for one in tensors]
        if places:
            distant = ELSEWHERE in places
        elif func is Tensor.cpu:
            distant = False
        elif func is Tensor.copy_:
            distant = there[0]
        else:
            distant = any(there)
            near = [
                one
                for one, far in zip(tensors, there, strict=True)
                if one.dim() and not far
            ]
            if distant and (near or func is Tensor.numpy):
                raise RuntimeError(
                    f"{func.__name__} of tensors on {ELSEWHERE} and on the CPU"
                )
        here = {ELSEWHERE: torch.device("cpu")}
        args = tuple(
            here.get(one, one) if isinstance(one, torch.device) else one for one in args
        )
        for name, one in kwargs.items():
            kwargs = {**kwargs, name: here[one]} if one == ELSEWHERE else kwargs
        made = func(*args, **kwargs)
        if isinstance(made, Tensor):
            return placed(made, distant)
        return tree_map(lambda one: placed(one, distant), made)


def placed(value: Any, distant: bool) -> Any:
    """A tensor on the device that it belongs to; anything else as it is."""
    if not isinstance(value, Tensor) or isinstance(value, Distant) is distant:
        return value
    return value.as_subclass(Distant if distant else Tensor)


def load(
    name: str | Path, *, device: torch.device, dtype: torch.dtype | None = None
) -> CausalLM:
    """`load_model`, which also takes the second device."""
    model = load_model(name, device=torch.device("cpu"), dtype=dtype)
    if device == ELSEWHERE:
        for module in model.modules():
            for part, weight in list(module.named_parameters(recurse=False)):
                far = weight.detach().as_subclass(Distant)
                setattr(module, part, nn.Parameter(far, requires_grad=False))
    return model
