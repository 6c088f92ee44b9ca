"""Starting a team: followers as processes of our own, or those that torchrun has started on one
machine or several.

Both ways end in the same: a connection to each follower, over which it is told its rank and where
the ranks meet. Nothing else is passed on, so that a follower needs no flags: what it loads, it is
ordered to. Under torchrun rank 0 opens a door (a socket on its machine) and puts its number, with a
secret, into torchrun's own store; the others show the secret before anything they send is read. The
network between the machines must be trusted, as with torch.distributed itself.
"""

from __future__ import annotations

import hmac
import json
import multiprocessing
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from lr.engine.launch import undisturbed
from lr.errors import SettingError
from lr.model.device import find_device
from lr.model.dummy import is_dummy
from lr.model.files import resolve
from lr.model.parallel.follower import follow, worker_main
from lr.model.parallel.leader import LeaderLM
from lr.model.parallel.loading import config_of, load_part
from lr.model.parallel.orders import Join
from lr.model.parallel.ranks import RankLost, Ranks, require_no_group, set_free
from lr.model.parallel.slices import part_of
from lr.model.parallel.team import Crew, Team
from lr.model.parallel.watch import Watch, Worker, WorkerError
from lr.model.qwen import CausalLM
from lr.model.weights import load_model

PATIENCE = 10.0
"""Seconds without a sign of life after which a running follower counts as hanging."""
COLLECTIVE = 120.0
"""Seconds after which a collective fails although all followers are alive."""
DOOR = 600.0
"""Seconds that a rank waits for rank 0 under torchrun: rank 0 may have to fetch a checkpoint
first.
"""
LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """What torchrun says about a process: its rank among `size`, its number on its machine, and
    torchrun's store.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    hosts_store: bool

    def store(self) -> dist.Store:
        """Torchrun's store; rank 0 opens it where torchrun has not."""
        store = dist.TCPStore(
            self.address,
            self.port,
            is_master=self.hosts_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=DOOR),
        )
        return dist.PrefixStore("lr", store)


@dataclass(frozen=True)
class Spread:
    """Over what a model is spread: `devices`, one per rank, the first for this process; or what
    torchrun has started (`place`).
    """

    devices: tuple[torch.device, ...]
    place: Place | None = None
    patience: float = PATIENCE

    @property
    def size(self) -> int:
        return len(self.devices) if self.place is None else self.place.size

    def __post_init__(self) -> None:
        kinds = sorted({device.type for device in self.devices})
        if len(kinds) != 1 or kinds[0] not in ("cpu", "cuda"):
            raise SettingError(
                f"a model cannot be spread over {', '.join(map(str, self.devices))}: CUDA devices, or cpu."
            )
        if self.size < 2:
            raise SettingError(
                f"tensor_parallel is {self.size}; a spread model needs at least 2 ranks."
            )
        if kinds == ["cuda"] and len(set(self.devices)) < len(self.devices):
            raise SettingError(
                f"a model cannot be spread over {', '.join(map(str, self.devices))}: each needs its own GPU."
            )


def spread_over(ranks: int, device: str | torch.device) -> Spread:
    """So many ranks from `device` on: cuda:0, cuda:1, ..., or all on the CPU. Raises `SettingError`
    if there are not so many GPUs.
    """
    device = find_device(device)
    if device.type != "cuda":
        return Spread((device,) * ranks)
    first = device.index or 0
    if first + ranks > torch.cuda.device_count():
        raise SettingError(
            f"tensor_parallel is {ranks} from {device} on, and this machine has {torch.cuda.device_count()} CUDA devices. "
            "Take fewer ranks, or torchrun for several machines."
        )
    return Spread(tuple(torch.device("cuda", first + i) for i in range(ranks)))


def load_target(
    source: str | Path, where: torch.device | Spread, dtype: torch.dtype | None
) -> CausalLM:
    """The model on one device, or spread over several."""
    if isinstance(where, Spread):
        return load_parallel(source, where, dtype)
    return load_model(source, device=where, dtype=dtype)


def load_parallel(source: str | Path, spread: Spread, dtype: torch.dtype | None = None) -> LeaderLM:
    """A model over several ranks, as `load_model` on one. Ended by its `close`, or when it is
    forgotten.

    Raises as `load_model` does; `SettingError` if it cannot be divided so, before anything is
    started; `WorkerError` if a rank is lost.
    """
    part_of(config_of(source), spread.size)
    if spread.place is None and not is_dummy(source):
        source = resolve(source).resolve()  # found once; on several machines by each for itself
    team = start_team(spread)
    try:
        return load_on(team, source, dtype)
    except BaseException:
        team.close()
        raise


def load_on(team: Team, source: str | Path, dtype: torch.dtype | None = None) -> LeaderLM:
    """A model on a team that is there already, beside its others. On several machines `source` is
    found by each for itself.
    """
    part_of(config_of(source), team.ranks.size)
    number = team.number()
    team.load(source, number, dtype)
    model = load_part(source, team.ranks, team.device, dtype, LeaderLM)
    model.lead(team, number)
    team.loaded(number)
    return model


def start_team(spread: Spread) -> Team:
    """The followers, started and met. Raises `WorkerError` if one is lost on the way,
    `SettingError` if there is a team already.
    """
    require_no_group()
    place, device = spread.place, spread.devices[0]
    address = LOCAL if place is None else place.address
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    workers = _children(spread.size) if place is None else _comers(place)
    crew = Crew(workers, Watch(workers, spread.patience, set_free))
    team = Team(Ranks(0, spread.size), device, crew)
    try:
        for worker in workers:
            own = None if place is not None else str(spread.devices[worker.rank])
            threads = torch.get_num_threads()
            where = (address, store.port, device.type == "cuda", own, threads, COLLECTIVE)
            worker.connection.send([Join(worker.rank, spread.size, *where)])
        crew.meet(team.ranks, store, device, COLLECTIVE)
    except BaseException as error:
        crew.failed = True
        cause = crew.watch.cause() if isinstance(error, (OSError, RankLost)) else None
        team.close()
        if cause is not None:
            raise cause from error
        raise
    return team


def follow_torchrun(place: Place) -> bool:
    """The whole life of a rank > 0 under torchrun. False if it failed, or the leader did. Raises
    `WorkerError` if there is no leader.
    """
    try:
        host, port, secret = json.loads(place.store().get("door"))
        link = socket.create_connection((host, port), timeout=DOOR)
    except (OSError, RuntimeError) as error:
        raise WorkerError(
            f"rank {place.rank} has not found rank 0 at {place.address}:{place.port}: {error}"
        ) from error
    connection = _connection(link)
    connection.send_bytes(bytes.fromhex(secret))
    connection.send(place.rank)
    return follow(connection, place.local_rank)


def _children(size: int) -> list[Worker]:
    """Processes of our own, one per rank above 0. Started afresh, not forked: a fork of a threaded
    torch may hang.
    """
    context = multiprocessing.get_context("spawn")
    workers = []
    for rank in range(1, size):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=worker_main, args=(theirs, rank), name=f"lr rank {rank}", daemon=True
        )
        with undisturbed():
            process.start()
        theirs.close()  # so that both ends notice when the other is gone
        workers.append(Worker(rank, ours, process, process.pid))
    return workers


def _comers(place: Place) -> list[Worker]:
    """The ranks that torchrun has started, as they come through the door."""
    try:
        door = socket.create_server((place.address, 0))
    except OSError:  # the address is this machine's name elsewhere: behind a translation of addresses, for instance
        door = socket.create_server(("", 0))
    secret = secrets.token_bytes(32)
    with door:
        door.settimeout(DOOR)
        place.store().set("door", json.dumps([place.address, door.getsockname()[1], secret.hex()]))
        workers: dict[int, Worker] = {}
        while len(workers) < place.size - 1:
            try:
                link, _ = door.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, place.size)) - set(workers))
                raise WorkerError(
                    f"ranks {missing} have not come within {DOOR:g} seconds; see their machines."
                ) from error
            connection = _connection(link)
            if hmac.compare_digest(connection.recv_bytes(64), secret):
                rank = connection.recv()
                workers[rank] = Worker(rank, connection)
    return [workers[rank] for rank in sorted(workers)]


def _connection(link: socket.socket) -> Connection:
    """A socket as a connection. Small messages go at once: an order must not wait for the next."""
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(link.detach())
