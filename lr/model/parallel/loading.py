"""Loading one rank's part of a checkpoint: of every tensor only the slice that is its own is read.

The files are memory-mapped, so that what is not asked for is not read from the disk. Keys are
accounted for as in `lr/model/weights.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from lr.model.config import ModelConfig, read_config
from lr.model.dummy import is_dummy, shape
from lr.model.files import TensorFiles, open_tensors, resolve
from lr.model.parallel.network import RankLM
from lr.model.parallel.ranks import Ranks
from lr.model.parallel.slices import Cut, cuts, rows_of_vocabulary
from lr.model.weights import account, checkpoint_dtype, fill_dummy

Part = TypeVar("Part", bound=RankLM)


def config_of(source: str | Path) -> ModelConfig:
    """The sizes of the whole model. Raises `CheckpointError`."""
    return shape(source) if is_dummy(source) else read_config(resolve(source))


def load_part(
    source: str | Path,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype | None,
    network: Callable[[ModelConfig, Ranks], Part],
) -> Part:
    """The part of this rank, frozen and in eval mode. `source` and `dtype` as in `load_model`;
    raises as it does, and `SettingError` if the model cannot be divided among so many ranks."""
    config = config_of(source)
    listed = cuts(config, ranks.rank, ranks.size)
    if is_dummy(source):
        model = RankLM.materialised(
            partial(network, config, ranks), dtype or torch.bfloat16, device
        )
        fill_dummy(model)
        return model
    directory = resolve(source)
    with open_tensors(directory) as tensors:
        mine = rows_of_vocabulary(config, ranks.rank, ranks.size)
        account(config, tensors, directory, slice(mine.start, min(mine.stop, config.vocab_size)))
        model = RankLM.materialised(
            partial(network, config, ranks), dtype or checkpoint_dtype(directory, tensors), device
        )
        _fill(model, listed, tensors)
    return model


def _fill(model: RankLM, listed: list[Cut], tensors: TensorFiles) -> None:
    """Copy every slice to its place. Rows of the vocabulary that no file has are padding: zero."""
    parameters = dict(model.named_parameters())
    unfilled = {name: parameter.shape[0] for name, parameter in parameters.items()}
    with torch.no_grad():
        for cut in listed:
            rows, parameter = cut.rows, parameters[cut.parameter]
            if rows:
                stored = tensors.slice(cut.key)
                taken = slice(rows.start, rows.stop)
                columns = cut.columns
                read = (
                    stored[taken]
                    if columns is None
                    else stored[taken, columns.start : columns.stop]
                )
                parameter[cut.first : cut.first + len(rows)].copy_(read)
            if cut.parameter in ("embedding.weight", "head.weight"):
                parameter[len(rows) :].zero_()
                unfilled[cut.parameter] -= parameter.shape[0] - len(rows)
            unfilled[cut.parameter] -= len(rows)
    assert not any(unfilled.values()), f"rows without a source: {unfilled}"
