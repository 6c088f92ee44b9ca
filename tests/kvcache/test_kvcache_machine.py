"""A random program of forks, appends, failures and releases against a model that is a
list of token lists.

After every step: the law holds, every live branch contains exactly its tokens (freed
blocks are full of NaN), and the number of blocks that an append took and copied is the
one of the formula.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kvcache_kit import (
    assert_contents,
    filled,
    small_cache,
    snapshot,
    write_tokens,
)
from tests_root import cases

from lr.errors import OutOfBlocks
from lr.kvcache.invariant import check_cache

PICK = st.integers(0, 10**6)
TABLES = 5  # at most; few and small, so that blocks are often shared and rarely run out


class ForwardFailed(Exception):
    """Stands for whatever goes wrong in a forward pass."""


def blocks_needed(tables, counts, live):
    """(new blocks, copied blocks) of an append, by formula.

    Of r owners of a partly filled last block, w write into it: min(w, r - 1) of them
    copy it.
    """
    new, writers = 0, {}
    for table, count in zip(tables, counts, strict=True):
        size = table.block_size
        new += (table.length + count + size - 1) // size - (
            table.length + size - 1
        ) // size
        if count and table.length % size:
            writers[table.blocks[-1]] = writers.get(table.blocks[-1], 0) + 1
    owners = {block: sum(block in table.blocks for table in live) for block in writers}
    return new, sum(
        min(writing, owners[block] - 1) for block, writing in writers.items()
    )


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([40, 20, 10]),
        block_size=st.sampled_from([4, 3, 2, 1]),
    )
    def start(self, num_blocks, block_size):
        self.cache = small_cache(num_blocks, block_size)
        # A prompt, so that the first fork already shares something.
        self.tokens = [[1, 2, 3, 4, 5]]
        self.tables = [filled(self.cache, 5)]
        self.next_token = 6

    @precondition(lambda self: len(self.tables) < TABLES)
    @rule()
    def new(self):
        self.tables.append(self.cache.new())
        self.tokens.append([])

    @precondition(lambda self: 0 < len(self.tables) < TABLES)
    @rule(pick=PICK, cut=st.integers(0, 3))
    def fork(self, pick, cut):
        """A twin, cut back by a few tokens as after a rejection: owners of one block
        then differ in length.
        """
        index = pick % len(self.tables)
        keep = max(0, len(self.tokens[index]) - cut)
        free = self.cache.pool.num_free
        self.tables.append(self.cache.fork(self.tables[index]))
        self.cache.truncate(self.tables[-1], keep)
        self.tokens.append(self.tokens[index][:keep])
        assert self.cache.pool.num_free == free

    @precondition(lambda self: self.tables)
    @rule(
        order=st.permutations(range(TABLES)),
        counts=st.lists(st.integers(0, 4), min_size=1, max_size=TABLES),
        fail=st.booleans(),
    )
    def extend(self, order, counts, fail):
        """Append to a few branches in any order; half of the time the forward fails
        after its writes.
        """
        chosen = [index for index in order if index < len(self.tables)][: len(counts)]
        tables = [self.tables[index] for index in chosen]
        counts = counts[: len(chosen)]
        tokens = [
            [self.next_token + 10 * row + j for j in range(count)]
            for row, count in enumerate(counts)
        ]
        self.next_token += 10 * len(counts)
        new, copies = blocks_needed(tables, counts, self.cache.live_tables)
        free = self.cache.pool.num_free
        copied = self.cache.copied_blocks
        before = snapshot(self.cache)
        if new + copies > free:
            with pytest.raises(OutOfBlocks) as full, self.cache.append(tables, counts):
                pytest.fail("the append must not begin")
            assert (full.value.needed, full.value.free) == (new + copies, free)
            assert snapshot(self.cache) == before
            self.release(0)  # as a program would, to go on
            return
        try:
            with self.cache.append(tables, counts) as slots:
                assert len(set(slots)) == sum(counts)
                assert self.cache.copied_blocks == copied + copies
                assert self.cache.pool.num_free == free - new - copies
                write_tokens(self.cache, slots, [t for row in tokens for t in row])
                check_cache(self.cache)
                if fail:
                    raise ForwardFailed
        except ForwardFailed:
            after = snapshot(self.cache)
            for part in ("tables", "refcounts", "free"):
                assert after[part] == before[part]
        else:
            for index, new_tokens in zip(chosen, tokens, strict=True):
                self.tokens[index] += new_tokens

    @precondition(lambda self: 0 < len(self.tables) < TABLES)
    @rule(
        pick=PICK,
        cut=st.integers(0, 3),
        counts=st.tuples(*[st.integers(1, 4)] * 2),
        fail=st.booleans(),
    )
    def fork_and_extend(self, pick, cut, counts, fail):
        """The move that copies: a branch and its twin are both written to, the twin
        first if `pick` is odd.
        """
        index = pick % len(self.tables)
        self.fork(index, cut)
        pair = [index, len(self.tables) - 1]
        self.extend(pair[::-1] if pick % 2 else pair, list(counts), fail)

    @precondition(lambda self: self.tables)
    @rule(fail=st.booleans())
    def decode(self, fail):
        """One token for every branch, the most frequent append of all."""
        self.extend(list(range(TABLES)), [1] * TABLES, fail)

    @precondition(lambda self: self.tables)
    @rule(pick=PICK, length=PICK)
    def truncate(self, pick, length):
        index = pick % len(self.tables)
        length %= len(self.tokens[index]) + 1
        self.cache.truncate(self.tables[index], length)
        del self.tokens[index][length:]

    @precondition(lambda self: self.tables)
    @rule(pick=PICK)
    def release(self, pick):
        index = pick % len(self.tables)
        self.cache.release(self.tables.pop(index))
        self.tokens.pop(index)

    @invariant()
    def law_and_contents(self):
        check_cache(self.cache, self.tables)
        assert_contents(self.cache, self.tables, self.tokens)
        free = [
            block
            for block in range(self.cache.num_blocks)
            if not self.cache.pool.refcount(block)
        ]
        assert self.cache.keys[:, free].isnan().all()

    def teardown(self):
        for table in getattr(self, "tables", []):
            self.cache.release(table)
        if hasattr(self, "cache"):
            assert self.cache.pool.num_free == self.cache.num_blocks


CacheMachine.TestCase.settings = settings(
    max_examples=cases(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCacheMachine = CacheMachine.TestCase
