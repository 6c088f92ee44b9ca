"""Which part of which tensor of a checkpoint belongs to which rank, and which networks cannot be
divided.

    q, k, v, gate, up     by rows (each rank makes its heads, its part of the MLP), their biases too
    o, down               by columns (each rank reads what it has made; the sums of all ranks are the result)
    embedding, head       by rows of the vocabulary, which is padded to a multiple of the ranks
    norms                 whole, on every rank

Query heads and the width of the MLP must be divisible. KV heads are divided where there are at
least as many as ranks; where there are fewer, several ranks have the same one.

Worked example: 8 query heads, 2 KV heads, 4 ranks. Rank 3 has the query heads 6 and 7, which look
at KV head 1, and so has rank 2. A vocabulary of 61 is padded to 64: rank 3 has the rows 48..63, of
which the checkpoint has 48..60; the others are zero, and their logits are cut off.

No file is read here. Read next: `loading.py`, which reads along these lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lr.errors import SettingError
from lr.model.config import ModelConfig
from lr.model.weights import pieces


@dataclass(frozen=True)
class Cut:
    """Rows `rows` (and columns `columns`; None: all, or there are none) of tensor `key` make the
    rows from `first` on of `parameter`.
    """

    key: str
    parameter: str
    first: int
    rows: range
    columns: range | None


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The sizes of one rank's network. Raises `SettingError` if this network cannot be divided
    among so many ranks.
    """
    for name, size in (("query heads", config.num_heads), ("MLP width", config.intermediate_size)):
        if size % ranks:
            raise _indivisible(ranks, name, size, config)
    if max(config.num_kv_heads, ranks) % min(config.num_kv_heads, ranks):
        raise _indivisible(ranks, "KV heads", config.num_kv_heads, config)
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=max(1, config.num_kv_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        vocab_size=-(-config.vocab_size // ranks),
    )


def cuts(config: ModelConfig, rank: int, ranks: int) -> list[Cut]:
    """What rank `rank` of `ranks` takes of every tensor of a checkpoint of this configuration.
    Raises as `part_of` does.

    An axis that is as long in the part as in the whole is taken whole. Else it has whole / part
    pieces, and the rank takes piece number rank * pieces // ranks: with 2 pieces (KV heads) for 4
    ranks these are 0, 0, 1, 1.
    """
    part = part_of(config, ranks)
    padded = replace(config, vocab_size=part.vocab_size * ranks)
    listed = []
    for whole, padded_whole, mine in zip(pieces(config), pieces(padded), pieces(part), strict=True):
        taken = [
            _taken(long, short, rank, ranks)
            for long, short in zip(padded_whole.shape, mine.shape, strict=True)
        ]
        rows = range(
            min(taken[0].start, whole.shape[0]), min(taken[0].stop, whole.shape[0])
        )  # padding is in no file
        columns = taken[1] if len(taken) == 2 and len(taken[1]) < whole.shape[1] else None
        listed.append(Cut(mine.key, mine.parameter, mine.first, rows, columns))
    return listed


def rows_of_vocabulary(config: ModelConfig, rank: int, ranks: int) -> range:
    """The token ids whose rows a rank has, padding included."""
    size = part_of(config, ranks).vocab_size
    return range(rank * size, (rank + 1) * size)


def _taken(long: int, short: int, rank: int, ranks: int) -> range:
    start = rank * (long // short) // ranks * short
    return range(start, start + short)


def _indivisible(ranks: int, what: str, size: int, config: ModelConfig) -> SettingError:
    possible = [n for n in range(1, config.num_heads + 1) if _divides(config, n)]
    return SettingError(
        f"tensor_parallel is {ranks}, and this model's {what} ({size}) cannot be divided among so many ranks. "
        f"Possible for it: {', '.join(map(str, possible))}."
    )


def _divides(config: ModelConfig, ranks: int) -> bool:
    kv = config.num_kv_heads
    return not (
        config.num_heads % ranks
        or config.intermediate_size % ranks
        or max(kv, ranks) % min(kv, ranks)
    )
