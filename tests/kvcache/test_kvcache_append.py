"""Growing: what is copied, what is shared, and that a failure leaves no trace."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kvcache_kit import (
    ForwardFailed,
    assert_contents,
    blocks_needed,
    extend,
    filled,
    small_cache,
    snapshot,
    write_tokens,
)

from lr.errors import OutOfBlocks, ProtocolError
from lr.kvcache.invariant import check_cache


def test_fork_costs_no_block_and_no_copy_and_the_prefix_is_stored_once() -> None:
    cache = small_cache()
    root = filled(cache, 10)
    free = cache.pool.num_free
    twins = [cache.fork(root) for _ in range(5)]
    assert (cache.pool.num_free, cache.copied_blocks) == (free, 0)
    assert [cache.pool.refcount(block) for block in root.blocks] == [6, 6, 6]
    assert_contents(cache, twins, [list(range(1, 11))] * 5)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "one batch"])
@pytest.mark.parametrize("root_writes", [False, True])
@pytest.mark.parametrize("forks", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_copies_by_formula(
    block_size: int, forks: int, root_writes: bool, together: bool
) -> None:
    """Of r = forks + 1 owners, w write: min(w, r - 1) copies if the last block is
    partly filled, else none.
    """
    for prefix in range(1, 9):
        cache = small_cache(64, block_size)
        root = filled(cache, prefix)
        twins = [cache.fork(root) for _ in range(forks)]
        writers, idle = ([*twins, root], []) if root_writes else (twins, [root])
        new = [[100 + row, 200 + row] for row in range(len(writers))]
        num_used = cache.pool.num_used
        for rows in [range(len(writers))] if together else [[r] for r in range(len(writers))]:  # fmt: skip
            extend(cache, [writers[r] for r in rows], [new[r] for r in rows])
        copies = min(len(writers), forks) if prefix % block_size else 0
        blocks = -(-(prefix + 2) // block_size) - -(-prefix // block_size)
        assert cache.copied_blocks == copies
        assert cache.pool.num_used == num_used + copies + len(writers) * blocks
        start = list(range(1, prefix + 1))
        contents = [start + tokens for tokens in new] + [start] * len(idle)
        assert_contents(cache, writers + idle, contents)


def test_append_yields_slots_in_batch_order_with_lengths_advanced() -> None:
    cache = small_cache()
    tables = [filled(cache, 4), filled(cache, 3), cache.new()]
    with cache.append(tables, [1, 3, 0]) as slots:
        assert [table.length for table in tables] == [5, 6, 0]
        assert slots == tables[0].slots(4, 5) + tables[1].slots(3, 6)
        write_tokens(cache, slots, [8, 4, 5, 6])
        check_cache(cache)
    assert_contents(cache, tables, [[1, 2, 3, 4, 8], [1, 2, 3, 4, 5, 6], []])


def test_out_of_blocks_changes_nothing() -> None:
    """Six blocks of 4: the root and its fork hold 2; 4 are free. Room in the copy
    counts, the copies themselves too.
    """
    cache = small_cache(6)
    tables = [filled(cache, 6)]
    tables.append(cache.fork(tables[0]))
    before = snapshot(cache)
    for counts in ([10, 11], [1, 19], [0, 19], [11, 7]):
        assert sum(blocks_needed(tables, counts, cache.live_tables)) == 6
        with pytest.raises(OutOfBlocks) as full, cache.append(tables, counts):
            pytest.fail("the append must not begin")
        assert (full.value.needed, full.value.free, full.value.total) == (6, 4, 6)
        assert snapshot(cache) == before
    extend(cache, tables, [[7] * 8, [8] * 3])  # 1 copy + 2 + 1 new: all that is free
    assert cache.pool.num_free == 0


@pytest.mark.parametrize("counts", [[1, 1, 1], [0, 5, 1], [9, 0, 2], [2, 2, 0]])
def test_exception_inside_restores_everything(counts: list[int]) -> None:
    cache = small_cache()
    root = filled(cache, 6)
    tables = [root, cache.fork(root), filled(cache, 3, first=50)]
    before = snapshot(cache)
    fails = pytest.raises(ForwardFailed)
    with fails, cache.append(tables, counts) as slots:
        half = len(slots) // 2
        write_tokens(cache, slots[:half], [99] * half)
        raise ForwardFailed
    after = snapshot(cache)
    for part in ("tables", "refcounts", "free"):
        assert after[part] == before[part]
    tokens = [[*range(1, 7)], [*range(1, 7)], [50, 51, 52]]
    assert_contents(cache, tables, tokens)
    extend(cache, tables, [[7], [8], [9]])
    assert_contents(cache, tables, [[*tokens[i], 7 + i] for i in range(3)])


@pytest.mark.parametrize("swap", [False, True])
def test_undone_batch_does_not_damage_the_longer_holder(swap: bool) -> None:
    """Both owners of a block write after different lengths; the worked example of
    `cache.py`."""
    cache = small_cache()
    longer = filled(cache, 3)
    shorter = cache.fork(longer)
    cache.truncate(shorter, 1)
    batch = [shorter, longer] if swap else [longer, shorter]
    fails = pytest.raises(ForwardFailed)
    with fails, cache.append(batch, [1, 1]) as slots:
        write_tokens(cache, slots, [99, 99])
        assert cache.open_append is not None and len(cache.open_append) == 1
        raise ForwardFailed
    assert longer.blocks == shorter.blocks
    assert_contents(cache, [longer, shorter], [[1, 2, 3], [1]])


def test_a_follower_that_repeats_prepare_and_write_has_the_same_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a tensor-parallel rank does: no pool, no refcounts, only the leader's
    `fresh`, `copies` and slots.
    """
    leader, follower = small_cache(), small_cache()
    prepare = leader.prepare

    def prepare_both(fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        prepare(fresh, copies)
        follower.prepare(fresh, copies)

    monkeypatch.setattr(leader, "prepare", prepare_both)
    tables = [leader.new()]
    for token in range(1, 30):
        if token in (3, 7, 12):
            tables.append(leader.fork(tables[-1]))
        with leader.append(tables, [1] * len(tables)) as slots:
            for cache in (leader, follower):
                tokens = [token * 10 + i for i in range(len(tables))]
                write_tokens(cache, slots, tokens)
        if token == 20:
            leader.release(tables.pop(0))
        leader.truncate(tables[-1], tables[-1].length - token % 2)
    for table in tables:
        slots = torch.tensor(table.slots(0, table.length))
        for memory in ("keys", "values"):
            ours, theirs = (
                getattr(c, memory).flatten(1, 2) for c in (leader, follower)
            )
            assert torch.equal(ours[:, slots], theirs[:, slots])
    assert leader.copied_blocks == follower.copied_blocks > 0


def test_misuse_of_append() -> None:
    cache = small_cache()
    root, gone, foreign = filled(cache, 6), filled(cache, 2), small_cache().new()
    cache.release(gone)
    before = snapshot(cache)
    misuse: list[tuple[list[Any], list[int], str]] = [
        ([root, root], [1, 1], "twice"),
        ([root], [1, 1], "counts"),
        ([root], [-1], "tokens"),
        ([root, gone], [1, 1], "live"),
        ([foreign], [1], "live"),
    ]
    for tables, counts, noun in misuse:
        with pytest.raises(ProtocolError, match=noun), cache.append(tables, counts):
            pytest.fail("the append must not begin")
    assert snapshot(cache) == before


def test_no_change_of_the_branches_inside_an_append() -> None:
    cache = small_cache()
    root, twin = filled(cache, 6), filled(cache, 2)
    changes = (
        cache.fork,
        cache.release,
        lambda table: cache.truncate(table, 0),
        lambda table: cache.append([table], [1]).__enter__(),
    )
    with cache.append([root], [1]) as slots:
        write_tokens(cache, slots, [7])
        for change in changes:
            with pytest.raises(ProtocolError, match="open"):
                change(twin)
    assert_contents(cache, [root, twin], [[1, 2, 3, 4, 5, 6, 7], [1, 2]])
