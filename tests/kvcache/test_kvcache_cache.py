"""The tensors of the cache, misuse, and that the law is able to fail; what branches
contain is shown by the random programs of `test_kvcache_machine.py`.
"""

import pytest
import torch
from kvcache_kit import (
    assert_contents,
    extend,
    filled,
    small_cache,
    snapshot,
    write_tokens,
)
from torch.profiler import profile

from lr.errors import SettingError
from lr.kvcache.invariant import check_cache


@pytest.mark.parametrize(
    "name, value",
    [
        *(("num_layers", 0), ("num_kv_heads", 0), ("head_dim", 0)),
        *(("block_size", 0), ("dtype", torch.int8)),
    ],
)
def test_impossible_settings_are_refused(name, value):
    noun = "dtype" if name == "dtype" else "shape"
    with pytest.raises(SettingError, match=noun):
        small_cache(**{name: value})


def test_a_cache_for_which_there_is_no_room_is_refused():
    with pytest.raises(SettingError, match="GiB"):
        small_cache(1 << 24, 1 << 20)


def test_picking_out_blocks_takes_only_their_memory():
    """index_select of a permuted tensor would copy the whole cache, at every fork that
    writes."""
    cache = small_cache(num_blocks=500)
    with profile(profile_memory=True) as profiled:
        cache.prepare([3], [(1, 2)])
        cache.gather(0, torch.tensor([[1, 2]]))
    events = profiled.events() or ()
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in events)
    per_block = (cache.keys.nbytes + cache.values.nbytes) // cache.num_blocks
    assert per_block < allocated < 10 * per_block


def test_free_blocks_are_cleared_until_they_are_used_again():
    """For an attention that reads them and hides them. Held ones stay as they are."""
    cache = small_cache(6)
    held = filled(cache, 5)
    for _ in range(2):
        cache.clear_free(range(4))
        assert cache.keys[:, :4].isfinite().all() and cache.keys[:, 4:].isnan().all()
        assert_contents(cache, [held], [[1, 2, 3, 4, 5]])
        cache.release(filled(cache, 5))
        assert cache.keys[:, 2:].isnan().all()


def test_a_cache_built_in_inference_mode_can_be_written_outside():
    with torch.inference_mode():
        cache = small_cache()
    table = filled(cache, 5)
    with torch.inference_mode():
        extend(cache, [table], [[6]])
    assert_contents(cache, [table], [[1, 2, 3, 4, 5, 6]])


def test_the_law_notices_what_is_wrong():
    cache = small_cache()
    root = filled(cache, 6)
    twin = cache.fork(root)
    check_cache(cache, [root, twin])
    for tables in ([root], [root, twin, small_cache().new()]):
        with pytest.raises(AssertionError, match="live"):
            check_cache(cache, tables)
    block = root.blocks[1]
    cache.pool.share(block)
    with pytest.raises(AssertionError, match="refcount 3"):
        check_cache(cache)
    cache.pool.drop(block)
    [lost] = cache.pool.allocate(1)
    with pytest.raises(AssertionError, match=r"held by \[\]"):
        check_cache(cache)
    cache.pool.drop(lost)
    cache.pool._free.append(block)
    with pytest.raises(AssertionError, match="owner"):
        check_cache(cache)
    cache.pool._free.pop()


def test_misuse_of_append():
    cache = small_cache()
    root, gone, foreign = filled(cache, 6), filled(cache, 2), small_cache().new()
    cache.release(gone)
    before = snapshot(cache)
    misuse = [
        ([root, root], [1, 1]),  # the same twice
        ([root], [1, 1]),
        ([root], [-1]),
        ([root, gone], [1, 1]),
        ([foreign], [1]),
    ]
    for tables, counts in misuse:
        with pytest.raises(AssertionError), cache.append(tables, counts):
            pytest.fail("the append must not begin")
    for length in (-1, 7):
        with pytest.raises(AssertionError):
            cache.truncate(root, length)
    for use in (cache.release, cache.fork):
        with pytest.raises(AssertionError, match="live"):
            use(gone)
    assert snapshot(cache) == before


def test_of_branches_that_all_write_the_longest_keeps_the_block():
    cache = small_cache()
    long = filled(cache, 7)
    short = cache.fork(long)
    cache.truncate(short, 5)
    shared = long.blocks[-1]
    extend(cache, [long, short], [[8], [9]])
    assert long.blocks[-1] == shared != short.blocks[-1]
    assert_contents(cache, [long, short], [[*range(1, 9)], [*range(1, 6), 9]])


def test_no_change_of_the_branches_inside_an_append():
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
            with pytest.raises(AssertionError, match="open"):
                change(twin)
    assert_contents(cache, [root, twin], [[1, 2, 3, 4, 5, 6, 7], [1, 2]])
