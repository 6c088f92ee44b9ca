"""What the tests of `lr.model.ranks` share: a scenario that uses every way in which a
cache changes, and looks at processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from lr.engine.readings import read
from lr.engine.runner import ModelRunner
from lr.model.qwen import CausalLM
from lr.model.ranks import RankGroup, load_parallel, spread_over

SHARED_MEMORY = Path("/dev/shm")


def readings(model: CausalLM, vocabulary: int) -> Tensor:
    """Everything a model says in a scenario with a prompt in pieces, forks, copy on
    write, cut branches and hidden states, in a row.
    """
    runner = ModelRunner(model, num_blocks=24, block_size=4, max_batch_tokens=8)
    noise = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=noise).tolist()

    said: list[Tensor] = []
    trunk = runner.open(tokens(11))  # more than one forward takes
    said += runner.forward([trunk], "all")
    fork = runner.fork(trunk)  # block 3 is shared and partly filled
    trunk.extend(tokens(1))
    fork.extend(tokens(3))
    said += runner.forward([trunk, fork], [1, 2])  # one of them copies the block
    other = runner.open(tokens(4))
    for _ in range(3):
        for branch in (trunk, fork, other):
            branch.extend(tokens(1))
        said += runner.forward([trunk, fork, other])
    runner.rewind(fork, 9)
    fork.extend(tokens(2))
    for reading in read(runner, [fork]):
        said += reading
    runner.close(trunk)
    other.extend(tokens(5))
    said += runner.forward([other], "all")  # into blocks that another branch had
    assert runner.cache.copied_blocks == 1
    for branch in (fork, other):
        runner.close(branch)
    return torch.cat([one.double().flatten() for one in said])


def children(pid: int) -> set[int]:
    """The processes that a process has started, those that have ended but were not
    waited for excepted.
    """
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(stat.parent.name))
    return found


def pids_of(group: RankGroup) -> list[int]:
    """The processes of the other ranks that were started here, in order."""
    return [process.pid for process in group.processes if process.pid is not None]


def lead(told: Connection) -> None:
    """A program with two ranks, which tells the processes of the others and waits. They
    too are forks of the server that it is a fork of (`conftest.py`).
    """
    server = multiprocessing.get_context("forkserver")
    multiprocessing.get_context = lambda how=None: server  # type: ignore[assignment]
    model = load_parallel("tiny-target", spread_over(2, "cpu"))
    told.send(pids_of(model.group))
    told.recv()


def ranks_of(pid: int) -> set[int]:
    """The followers among the children of a leader."""
    return {child for child in children(pid) if b"spawn_main" in _command(child)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(true: Callable[[], object], seconds: float) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def shared_memory() -> set[str]:
    """What lies in the memory that processes share."""
    return (
        {path.name for path in SHARED_MEMORY.iterdir()}
        if SHARED_MEMORY.is_dir()
        else set()
    )
