"""Growing: what is copied, what is shared, and that a failure leaves no trace."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kvcache_kit import (
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


class ForwardFailed(Exception):
    """Stands for whatever goes wrong in a forward pass."""


def test_fork_costs_no_block_and_no_copy_and_the_prefix_is_stored_once() -> None:
    cache = small_cache()
    root = filled(cache, 10)
    before = (cache.pool.num_free, cache.copied_blocks)
    twins = [cache.fork(root) for _ in range(5)]
    assert (cache.pool.num_free, cache.copied_blocks) == before
    assert [cache.pool.refcount(block) for block in root.blocks] == [6, 6, 6]
    assert_contents(cache, twins, [list(range(1, 11))] * 5)
    twins[0].blocks.clear()  # a twin's list is its own
    assert len(root.blocks) == 3
    twins[0].blocks += root.blocks


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
        used = cache.pool.num_used
        if together:
            extend(cache, writers, new)
        else:
            for writer, tokens in zip(writers, new, strict=True):
                extend(cache, [writer], [tokens])
        copies = min(len(writers), forks) if prefix % block_size else 0
        grown = len(writers) * (
            -(-(prefix + 2) // block_size) - -(-prefix // block_size)
        )
        assert cache.copied_blocks == copies
        assert cache.pool.num_used == used + copies + grown
        start = list(range(1, prefix + 1))
        assert_contents(
            cache,
            writers + idle,
            [start + tokens for tokens in new] + [start] * len(idle),
        )


def test_append_yields_slots_in_batch_order_with_lengths_advanced() -> None:
    cache = small_cache()
    first, second, third = filled(cache, 3), filled(cache, 4), cache.new()
    with cache.append([second, first, third], [1, 3, 0]) as slots:
        assert (first.length, second.length, third.length) == (6, 5, 0)
        assert slots == second.slots(4, 5) + first.slots(3, 6)
        write_tokens(cache, slots, [8, 4, 5, 6])
        check_cache(cache)
    assert_contents(
        cache, [first, second, third], [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 8], []]
    )


def test_nothing_appended_copies_nothing() -> None:
    cache = small_cache()
    root = filled(cache, 3)
    twin = cache.fork(root)
    with cache.append([root, twin], [0, 0]) as slots:
        assert slots == []
    with cache.append([], []) as slots:
        assert slots == []
    assert root.blocks == twin.blocks
    assert cache.copied_blocks == 0


def test_out_of_blocks_changes_nothing() -> None:
    """Six blocks of 4: the root and its fork hold 2; 4 are free. Room in the copy
    counts, the copies themselves too.
    """
    cache = small_cache(6)
    root = filled(cache, 6)
    twin = cache.fork(root)
    for counts, needed in (([10, 11], 6), ([1, 19], 6), ([0, 19], 6), ([11, 7], 6)):
        assert sum(blocks_needed([root, twin], counts, cache.live_tables)) == needed
        before = snapshot(cache)
        with pytest.raises(OutOfBlocks) as caught, cache.append([root, twin], counts):
            pytest.fail("the append must not begin")
        assert (caught.value.needed, caught.value.free, caught.value.total) == (
            needed,
            4,
            6,
        )
        assert snapshot(cache) == before
    extend(
        cache, [root, twin], [[7] * 8, [8] * 3]
    )  # 1 copy + 2 + 1 new: exactly what is free
    assert cache.pool.num_free == 0


@pytest.mark.parametrize("counts", [[1, 1, 1], [0, 5, 1], [9, 0, 2], [2, 2, 0]])
def test_exception_inside_restores_everything(counts: list[int]) -> None:
    cache = small_cache()
    root = filled(cache, 6)
    twin, other = cache.fork(root), filled(cache, 3, first=50)
    before = snapshot(cache)
    failing = pytest.raises(ForwardFailed)
    with failing, cache.append([root, twin, other], counts) as slots:
        write_tokens(cache, slots[: len(slots) // 2], [99] * (len(slots) // 2))
        raise ForwardFailed
    after = snapshot(cache)
    for part in ("tables", "refcounts", "free"):
        assert after[part] == before[part]
    assert_contents(
        cache, [root, twin, other], [[*range(1, 7)], [*range(1, 7)], [50, 51, 52]]
    )
    extend(cache, [root, twin, other], [[7], [8], [9]])
    assert_contents(
        cache, [root, twin, other], [[*range(1, 8)], [*range(1, 7), 8], [50, 51, 52, 9]]
    )


@pytest.mark.parametrize("swap", [False, True])
def test_undone_batch_does_not_damage_the_longer_holder(swap: bool) -> None:
    """Both owners of a block write after different lengths; the worked example of
    `cache.py`."""
    cache = small_cache()
    longer = filled(cache, 3)
    shorter = cache.fork(longer)
    cache.truncate(shorter, 1)
    batch = [shorter, longer] if swap else [longer, shorter]
    failing = pytest.raises(ForwardFailed)
    with failing, cache.append(batch, [1, 1]) as slots:
        write_tokens(cache, slots, [99, 99])
        assert cache.open_append is not None and len(cache.open_append) == 1
        raise ForwardFailed
    assert longer.blocks == shorter.blocks
    assert_contents(cache, [longer, shorter], [[1, 2, 3], [1]])


def test_failure_while_copying_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = small_cache()
    root = filled(cache, 6)
    twin = cache.fork(root)
    before = snapshot(cache)

    def no_memory(*_: Any) -> None:
        raise ForwardFailed

    monkeypatch.setattr(cache, "prepare", no_memory)
    with pytest.raises(ForwardFailed), cache.append([root, twin], [5, 5]):
        pytest.fail("the append must not begin")
    monkeypatch.undo()
    assert snapshot(cache) == before
    extend(cache, [twin], [[7]])


def test_a_follower_that_repeats_prepare_and_write_has_the_same_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a tensor-parallel rank does: no pool, no refcounts, only the leader's
    `fresh`, `copies` and slots.
    """
    leader, follower = small_cache(), small_cache()
    prepare = leader.prepare

    def both(fresh: Sequence[int], copies: Sequence[tuple[int, int]]) -> None:
        prepare(fresh, copies)
        follower.prepare(fresh, copies)

    monkeypatch.setattr(leader, "prepare", both)
    tables = [leader.new()]
    for token in range(1, 30):
        if token in (3, 7, 12):
            tables.append(leader.fork(tables[-1]))
        with leader.append(tables, [1] * len(tables)) as slots:
            write_tokens(leader, slots, [token * 10 + i for i in range(len(tables))])
            write_tokens(follower, slots, [token * 10 + i for i in range(len(tables))])
        if token == 20:
            leader.release(tables.pop(0))
        leader.truncate(tables[-1], tables[-1].length - token % 2)
    for table in tables:
        slots = torch.tensor(table.slots(0, table.length))
        assert torch.equal(
            leader.keys.flatten(1, 2)[:, slots], follower.keys.flatten(1, 2)[:, slots]
        )
        assert torch.equal(
            leader.values.flatten(1, 2)[:, slots],
            follower.values.flatten(1, 2)[:, slots],
        )
    assert leader.copied_blocks == follower.copied_blocks > 0


def test_misuse_of_append() -> None:
    cache = small_cache()
    root, gone, foreign = filled(cache, 6), filled(cache, 2), small_cache().new()
    cache.release(gone)
    before = snapshot(cache)
    misuse: list[tuple[list[Any], list[int], str]] = [
        ([root, root], [1, 1], "twice"),
        ([root], [1, 1], "1 tables were given with 2 counts"),
        ([root], [-1], "-1 tokens"),
        ([root, gone], [1, 1], "not a live table"),
        ([foreign], [1], "not a live table"),
    ]
    for tables, counts, message in misuse:
        with pytest.raises(ProtocolError, match=message), cache.append(tables, counts):
            pytest.fail("the append must not begin")
    assert snapshot(cache) == before


def test_no_change_of_the_branches_inside_an_append() -> None:
    cache = small_cache()
    root, other = filled(cache, 6), filled(cache, 2)
    with cache.append([root], [1]) as slots:
        write_tokens(cache, slots, [7])
        for change in (
            cache.fork,
            cache.release,
            lambda table: cache.truncate(table, 0),
        ):
            with pytest.raises(ProtocolError, match="open"):
                change(other)
        for tables in ([other], []):
            with (
                pytest.raises(ProtocolError, match="open"),
                cache.append(tables, [1] * len(tables)),
            ):
                pytest.fail("the append must not begin")
    assert_contents(cache, [root, other], [[1, 2, 3, 4, 5, 6, 7], [1, 2]])


def test_an_append_kept_for_later_plans_when_it_is_entered() -> None:
    cache = small_cache()
    root = filled(cache, 3)
    twin = cache.fork(root)
    *growths, failing, late = [cache.append([twin], [1]) for _ in range(6)]
    for token, growth in zip(range(4, 8), growths, strict=True):
        with growth as slots:
            write_tokens(cache, slots, [token])
    assert cache.copied_blocks == 1
    before = snapshot(cache)
    with pytest.raises(ForwardFailed), failing:
        raise ForwardFailed
    assert snapshot(cache) == before
    assert_contents(cache, [root, twin], [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7]])
    cache.release(twin)
    with pytest.raises(ProtocolError, match="not a live table"), late:
        pytest.fail("the append must not begin")
