"""Small caches, tokens with a key and value of their own, contents, snapshots.

A "token" is an integer; each (token, layer, head, coordinate) has its own key, and the
value is minus the key. So whatever is mixed up, layers, heads, slots or branches, is
seen by comparing for equality.
"""

import torch

from lr.kvcache.branch import block_rows
from lr.kvcache.cache import PagedKVCache

LAYERS, HEADS, DIM = 2, 2, 3


def small_cache(num_blocks=16, block_size=4, **changes):
    """Its free memory is full of NaN."""
    usual = {"num_layers": LAYERS, "num_kv_heads": HEADS, "head_dim": DIM}
    usual |= {"dtype": torch.float64, "device": "cpu", "poison_freed": True}
    return PagedKVCache(num_blocks=num_blocks, block_size=block_size, **usual | changes)


def keys_of(tokens, layer):
    """The keys [n, k, d] of the tokens in one layer, all different."""
    coordinates = torch.arange(HEADS * DIM, dtype=torch.float64).view(HEADS, DIM)
    column = torch.tensor(tokens, dtype=torch.float64).view(-1, 1, 1)
    return column * 100 + layer * 10 + coordinates


def write_tokens(cache, slots, tokens):
    for layer in range(LAYERS):
        keys = keys_of(tokens, layer)
        cache.write(layer, torch.tensor(slots, dtype=torch.int64), keys, -keys)


def extend(cache, tables, tokens):
    """Append tokens[i] to tables[i] in one batch."""
    with cache.append(tables, list(map(len, tokens))) as slots:
        write_tokens(cache, slots, [token for row in tokens for token in row])


def filled(cache, length):
    """A new branch of the tokens 1, 2, ..."""
    table = cache.new()
    extend(cache, [table], [list(range(1, length + 1))])
    return table


def assert_contents(cache, tables, tokens):
    """Each table contains exactly the keys and values of its tokens; nothing that is
    gathered is NaN.
    """
    for table, expected in zip(tables, tokens, strict=True):
        assert table.length == len(expected)
    rows = [row for row in zip(tables, tokens, strict=True) if row[1]]
    if not rows:
        return
    ids = torch.tensor(block_rows([table for table, _ in rows]))
    for layer in range(LAYERS):
        keys, values = cache.gather(layer, ids)
        assert torch.isfinite(keys).all() and torch.isfinite(values).all()
        for row, (_, expected) in enumerate(rows):
            assert torch.equal(keys[row, : len(expected)], keys_of(expected, layer))
            assert torch.equal(values[row, : len(expected)], -keys_of(expected, layer))


def snapshot(cache):
    """All bookkeeping of the cache, the order of future block ids included, and what
    its held blocks contain.
    """
    pool = cache.pool
    held = [block for block in range(pool.num_blocks) if pool.refcount(block)]
    return {
        "tables": {
            id(table): (list(table.blocks), table.length) for table in cache.live_tables
        },
        "refcounts": [pool.refcount(block) for block in range(pool.num_blocks)],
        "free": list(pool._free),
        "keys": cache.keys[:, held].tolist(),
        "values": cache.values[:, held].tolist(),
    }
