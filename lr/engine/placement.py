"""Which model runs on which device, and what that makes of the draft's worker.

The paper's layout is the target on GPUs 0 and 1, the draft on 2, the judge on 3; one GPU for all,
or the CPU, are others. Lookahead Reasoning wants draft and target at work at the same time:

    devices                              the draft's worker of driver "overlapped"
    draft on a GPU of its own            a process: an interpreter and a CUDA context of its own, nothing in the target's way
    draft on a GPU of the target's       a thread with a CUDA stream of its own, on the weights that are there already
    CPU (or MPS)                         a process, on another core

Why a thread where they share a GPU: without NVIDIA's MPS service the kernels of two processes take
turns on a GPU, those of two streams of one process run side by side; the thread waits for its GPU
most of the time, so the interpreter that it shares is not in the way; and the draft's weights are
there once. Why a process everywhere else: two threads would take turns in one interpreter.

This module only decides. `launch.py` starts processes and threads, `draft_worker.py` enters the
stream. Read next: `needs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lr.engine.draft_worker import DraftParts, Load, load_parts
from lr.engine.launch import Where
from lr.engine.remote import DraftWorker
from lr.model.device import find_device
from lr.model.qwen import CausalLM


@dataclass(frozen=True)
class Layout:
    """The devices of the three models; the target's are several where it is split."""

    target: tuple[torch.device, ...]
    draft: torch.device
    judge: torch.device

    @classmethod
    def of(
        cls, device: str | torch.device, elsewhere: Mapping[str, str | torch.device] | None = None
    ) -> Layout:
        """The target on `device`; draft and judge there too, or where `elsewhere` says. Raises
        `SettingError`.
        """
        target = find_device(device)
        draft, judge = (
            find_device((elsewhere or {}).get(role, target)) for role in ("draft", "judge")
        )
        return cls((target,), draft, judge)

    @property
    def worker(self) -> Where:
        """What the draft's worker is; see above. `cuda` means the first GPU."""
        shared = self.draft.type == "cuda" and _number(self.draft) in map(_number, self.target)
        return Where.THREAD if shared else Where.PROCESS


def draft_worker(
    layout: Layout,
    draft: CausalLM,
    name: str | Path,
    dtype: torch.dtype | None,
    tokens: tuple[bytes, ...],
) -> DraftWorker:
    """The worker for a draft that is loaded already: a thread shares its weights, a process loads
    the checkpoint `name` itself.

    `tokens`: the bytes of every token id.
    """
    load: Load = partial(load_parts, name, layout.draft, dtype, tokens)
    if layout.worker is Where.THREAD:
        load = _handing_over(draft, tokens.__getitem__)
    return DraftWorker(load, where=layout.worker)


def _handing_over(model: CausalLM, token_bytes: Callable[[int], bytes]) -> Load:
    return lambda: DraftParts(model, token_bytes)


def _number(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0
