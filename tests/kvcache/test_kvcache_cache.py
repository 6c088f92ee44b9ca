"""The tensors of the cache, releasing, and that the law is able to fail."""

from typing import Any
from weakref import WeakSet

import pytest
import torch
from kvcache_kit import assert_contents, extend, filled, small_cache
from torch.profiler import profile

from lr.errors import ProtocolError, SettingError
from lr.kvcache.cache import PagedKVCache, bytes_per_block
from lr.kvcache.invariant import check_cache

SETTINGS: dict[str, Any] = {
    "num_layers": 3,
    "num_kv_heads": 2,
    "head_dim": 5,
    "num_blocks": 4,
    "block_size": 7,
    "dtype": torch.bfloat16,
    "device": "cpu",
}


def test_shapes_and_bytes() -> None:
    cache = PagedKVCache(**SETTINGS)
    assert cache.keys.shape == cache.values.shape == (3, 4, 7, 2, 5)
    both = cache.keys.nbytes + cache.values.nbytes
    shape = {
        name: SETTINGS[name]
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size", "dtype")
    }
    assert bytes_per_block(**shape) * cache.num_blocks == both


@pytest.mark.parametrize(
    "name", ["num_layers", "num_kv_heads", "head_dim", "num_blocks", "block_size"]
)
@pytest.mark.parametrize("size", [0, -3])
def test_sizes_must_be_positive(name: str, size: int) -> None:
    with pytest.raises(SettingError, match=f"{name} is {size}"):
        PagedKVCache(**SETTINGS | {name: size})


def test_dtype_must_be_floating() -> None:
    with pytest.raises(SettingError, match=r"torch\.int8"):
        PagedKVCache(**SETTINGS | {"dtype": torch.int8})


@pytest.mark.parametrize("length", range(10))
def test_truncate_keeps_the_front_and_drops_whole_blocks(length: int) -> None:
    cache = small_cache(block_size=3)
    root = filled(cache, 9)
    twin = cache.fork(root)
    cache.truncate(root, length)
    assert len(root.blocks) == -(-length // 3)
    assert_contents(
        cache, [root, twin], [list(range(1, length + 1)), list(range(1, 10))]
    )
    extend(cache, [root], [[77]])
    assert cache.copied_blocks == (1 if length % 3 else 0)
    assert_contents(
        cache, [root, twin], [[*range(1, length + 1), 77], list(range(1, 10))]
    )


def test_picking_blocks_out_takes_the_memory_of_those_blocks_only() -> None:
    """index_select of a permuted tensor would copy the whole cache, at every fork that
    writes."""
    cache = PagedKVCache(**SETTINGS | {"num_blocks": 500})
    with profile(profile_memory=True) as seen:
        cache.prepare([3], [(1, 2)])
        cache.gather(0, torch.tensor([[1, 2]]))
    taken = sum(max(0, event.self_cpu_memory_usage) for event in seen.events() or ())
    blocks = (cache.keys.nbytes + cache.values.nbytes) // cache.num_blocks
    assert blocks < taken < 10 * blocks


def test_a_branch_cut_back_grows_into_the_same_blocks() -> None:
    cache = small_cache()
    root = filled(cache, 16)
    blocks = list(root.blocks)
    cache.truncate(root, 3)
    extend(cache, [root], [list(range(4, 17))])
    assert root.blocks == blocks


def test_truncate_refuses_other_lengths() -> None:
    cache = small_cache()
    root = filled(cache, 5)
    for length in (-1, 6):
        with pytest.raises(
            ProtocolError, match=f"5 tokens cannot be cut back to {length}"
        ):
            cache.truncate(root, length)


def test_release_gives_all_back_and_ends_the_table() -> None:
    cache = small_cache()
    root = filled(cache, 9)
    twin = cache.fork(root)
    cache.release(root)
    assert_contents(cache, [twin], [list(range(1, 10))])
    assert cache.live_tables == {twin}
    for use in (cache.release, cache.fork, lambda table: cache.truncate(table, 0)):
        with pytest.raises(ProtocolError, match="not a live table"):
            use(root)
    cache.release(twin)
    assert (cache.pool.num_free, cache.live_tables) == (cache.num_blocks, set())


def test_allocated_blocks_are_zero_and_freed_ones_poisoned() -> None:
    cache = small_cache(4)
    assert cache.keys.isnan().all()
    root = filled(cache, 5)
    for memory in (cache.keys, cache.values):
        assert memory[:, root.blocks].isfinite().all()
        assert torch.equal(
            memory[:, root.blocks[1], 1:],
            torch.zeros_like(memory[:, root.blocks[1], 1:]),
        )
    cache.release(root)
    assert cache.keys.isnan().all()
    assert cache.values.isnan().all()


def test_a_cache_built_in_inference_mode_can_be_written_outside() -> None:
    with torch.inference_mode():
        cache = small_cache()
    table = filled(cache, 5)
    with torch.inference_mode():
        extend(cache, [table], [[6]])
    assert_contents(cache, [table], [[1, 2, 3, 4, 5, 6]])


def test_the_law_notices_what_is_wrong() -> None:
    cache = small_cache()
    root = filled(cache, 6)
    twin = cache.fork(root)
    check_cache(cache)
    check_cache(cache, [root, twin])
    with pytest.raises(AssertionError, match="1 live tables were not given"):
        check_cache(cache, [root])
    with pytest.raises(AssertionError, match="not a live table"):
        check_cache(cache, [root, twin, small_cache().new()])
    root.length -= 2
    with pytest.raises(AssertionError, match="do not match"):
        check_cache(cache)
    root.length += 2
    block = root.blocks[1]
    cache.pool.share(block)
    with pytest.raises(AssertionError, match=f"block {block} has refcount 3"):
        check_cache(cache)
    cache.pool.drop(block)
    (lost,) = cache.pool.allocate(1)
    with pytest.raises(
        AssertionError, match=f"block {lost} has refcount 1, held by \\[\\]"
    ):
        check_cache(cache)
    cache.pool.drop(lost)
    cache.pool._free.append(block)
    with pytest.raises(AssertionError, match="have no owner"):
        check_cache(cache)
    cache.pool._free.pop()


def test_every_cache_is_watched(caches: "WeakSet[PagedKVCache]") -> None:
    cache = small_cache()
    assert cache in caches


def test_a_cache_for_which_there_is_no_room_says_how_much_it_takes() -> None:
    with pytest.raises(
        SettingError, match="num_blocks is 16777216, expected fewer: they take"
    ):
        small_cache(1 << 24, 1 << 20)
