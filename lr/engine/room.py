"""How many cache blocks an answer can need: what a run reserves, and what the memory plan counts
before anything is loaded.

One trunk for the longest chain, and for every row in flight room for its own step; with token
trees, for each path of a tree a copied and a new block. A node has a row of the target and may have
a step of its own behind it, so each counts twice. Read next: `answer.py`, which reserves;
`memory.py`, which plans.
"""

from __future__ import annotations

from math import prod

from lr.options import GenerateOptions

BLOCK_SIZE = 16
"""Tokens of a cache block."""


def blocks_for(
    options: GenerateOptions, tokens: int, share: int = 1, block_size: int = BLOCK_SIZE
) -> int:
    """Cache blocks of one model that suffice for `share` answers at a time, prompt and answer
    together at most `tokens` long.

    Example: plain decoding of 1000 tokens, steps of at most 100: 69 blocks of trunk (1100 / 16) and
    2 rows of 9.
    """
    nodes = options.nodes if options.looks_ahead else 1
    leaves = prod(options.branching) if options.speculates and options.drafter == "tree" else 1
    trunk = -(-(tokens + options.max_step_tokens) // block_size)
    row = options.max_step_tokens // block_size + 3 + 4 * (leaves - 1)
    return share * (trunk + 2 * nodes * row)
