"""Attacks on single parts: the scheduler under random orders, the cache under random
programs.

An attack is made once, with a folder to write to, and is called once per case with its
randomness. A call raises what it finds and returns, in a word or two, what kind of case
it was.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from kvcache_kit import (
    assert_contents,
    blocks_needed,
    small_cache,
    snapshot,
    write_tokens,
)
from scheduler_kit import RandomScript, oracle, run_and_check

from lr.errors import OutOfBlocks
from lr.kvcache.branch import BlockTable
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.variants.kit.cache import check_cache
from lr.watch.scripted import ScriptedRun, newest, oldest, shuffled

OPERATIONS = 100
"""Of one case of the attack on the cache."""


class orders:
    """Steps, origins, verdicts and surviving branches are the oracle's, whatever
    happens first."""

    def __init__(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, rng: Random) -> str:
        chance = [0.0, 0.05, 0.2]
        script = RandomScript(
            seed=rng.getrandbits(32),
            aligned=rng.choice([0.0, 0.4, 0.7, 0.9, 1.0]),
            eos=rng.choice(chance),
            cut=rng.choice(chance),
            fails=rng.choice(chance),
            unsure=rng.choice([0.0, 0.3, 1.0]),
        )
        schedule, width = rng.choice(list(Schedule)), rng.choice([1, 1, 2, 3])
        config = SchedulerConfig(
            limits=Limits(rng.randint(1, 40), rng.randint(1, 6), rng.random() < 0.5),
            schedule=schedule,
            depth=rng.randint(
                1 if schedule is Schedule.PAPER else 0, 6 if width == 1 else 3
            ),
            width=width,
            max_target_rows=rng.choice([None, 1, 2, 3, 6]),
            needs_target_step=rng.random() < 0.7,
        )
        told, seed = oracle(script, config), rng.getrandbits(32)
        for order in (
            oldest,
            newest,
            shuffled(seed),
            shuffled(seed + 1),
            shuffled(seed + 2),
        ):
            run = ScriptedRun(config, script, order)
            clerk = run_and_check(run, Random(seed))
            assert run.emitted == told.chain, (config, script, seed)
            assert clerk.survivors == told.survivors, (config, script, seed)
        return schedule.value


class ForwardFailed(Exception):
    """Stands for whatever goes wrong in a forward."""


class cache:
    """A cache of few small blocks against lists of tokens: after every operation the
    conservation law holds, every branch holds exactly its keys and values, and freed
    blocks are full of NaN. What an append takes and copies is what the formula says;
    one that fails changes nothing."""

    def __init__(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, rng: Random) -> str:
        size = rng.choice([1, 2, 3, 4, 16])
        self.cache = small_cache(rng.choice([10, 20, 40]), size)
        self.tables: list[BlockTable] = []
        self.tokens: list[list[int]] = []
        self.next = 1
        for number in range(OPERATIONS):
            what = rng.random()
            if not self.tables or (what < 0.06 and len(self.tables) < 7):
                self.tables.append(self.cache.new())
                self.tokens.append([])
            elif what < 0.2 and len(self.tables) < 7:
                place = rng.randrange(len(self.tables))
                keep = max(0, len(self.tokens[place]) - rng.choice([0, 0, 1, 3]))
                self.tables.append(self.cache.fork(self.tables[place]))
                self.cache.truncate(self.tables[-1], keep)
                self.tokens.append(self.tokens[place][:keep])
            elif what < 0.3:
                place = rng.randrange(len(self.tables))
                length = rng.randint(0, len(self.tokens[place]))
                self.cache.truncate(self.tables[place], length)
                del self.tokens[place][length:]
            elif what < 0.4:
                self.release(rng.randrange(len(self.tables)))
            else:
                self.extend(rng)
            self.check(contents=number % 5 == 0)
        while self.tables:
            self.release(0)
        assert self.cache.pool.num_free == self.cache.num_blocks
        return f"blocks of {size}"

    def release(self, place: int) -> None:
        self.cache.release(self.tables.pop(place))
        self.tokens.pop(place)

    def extend(self, rng: Random) -> None:
        """Append to some branches, in any order; a tenth of the forwards fails after
        its writes."""
        chosen = rng.sample(range(len(self.tables)), rng.randint(1, len(self.tables)))
        counts = [rng.choice([0, 1, 1, 2, 5]) for _ in chosen]
        tables, fails = [self.tables[place] for place in chosen], rng.random() < 0.1
        new = [
            list(range(self.next + 9 * i, self.next + 9 * i + n))
            for i, n in enumerate(counts)
        ]
        self.next += 9 * len(counts)
        blocks, copies = blocks_needed(tables, counts, self.cache.live_tables)
        before, copied = snapshot(self.cache), self.cache.copied_blocks
        kept, free = ("tables", "refcounts", "free"), self.cache.pool.num_free
        full = False
        try:
            with self.cache.append(tables, counts) as slots:
                assert self.cache.copied_blocks == copied + copies
                write_tokens(
                    self.cache, slots, [token for some in new for token in some]
                )
                if fails:
                    raise ForwardFailed
        except (ForwardFailed, OutOfBlocks) as error:
            full = isinstance(error, OutOfBlocks)
            after = snapshot(self.cache)
            assert all(after[part] == before[part] for part in kept)
            if full:
                self.release(rng.randrange(len(self.tables)))
        else:
            for place, some in zip(chosen, new, strict=True):
                self.tokens[place] += some
        assert full is (blocks + copies > free)

    def check(self, *, contents: bool) -> None:
        check_cache(self.cache, self.tables)
        if contents:
            assert_contents(self.cache, self.tables, self.tokens)
            pool = self.cache.pool
            free = [
                block
                for block in range(self.cache.num_blocks)
                if not pool.refcount(block)
            ]
            assert self.cache.keys[:, free].isnan().all()
