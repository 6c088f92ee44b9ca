"""Loading a checkpoint: which of its tensors fills which rows of which parameter of
`CausalLM`.

Attention and MLP use fused matrices; a checkpoint stores their parts separately. Worked
example: 4 query heads and 2 KV heads of size 8 give `attention.qkv.weight` 64 rows.
q_proj fills rows 0..31, k_proj rows 32..47, v_proj rows 48..63. Loading copies the
`pieces`, tensor parallelism slices them, saving (`tiny/saving.py`) reads them in
reverse. Files and downloads: `files.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lr.errors import CheckpointError
from lr.model.config import ModelConfig, read_config
from lr.model.device import find_device
from lr.model.files import open_tensors, read_json, resolve
from lr.model.qwen import CausalLM, Network
from lr.registry import is_dummy
from lr.types import require

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}
EMBEDDING_KEY = "model.embed_tokens.weight"
HEAD_KEY = "lm_head.weight"
HARMLESS_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store the rotary frequencies, which are computed from the
configuration here."""


@dataclass(frozen=True)
class Piece:
    """One tensor of a checkpoint: `key`, of `shape`, fills rows first .. first +
    shape[0] - 1 of `parameter`. `taken`: the slices to read of its axes, all of it or a
    rank's part.
    """

    key: str
    parameter: str
    first: int
    shape: tuple[int, ...]
    taken: tuple[slice, ...] = (slice(None),)


def pieces(config: ModelConfig) -> list[Piece]:
    """Every tensor of such a checkpoint, in network order, without a tied head."""
    v, e = config.vocab_size, config.hidden_size
    d, inner = config.head_dim, config.intermediate_size
    h, k = config.num_heads, config.num_kv_heads
    listed: list[Piece] = []

    def add(key: str, parameter: str, first: int, *shape: int) -> None:
        listed.append(Piece(key, parameter, first, shape))

    add(EMBEDDING_KEY, "embedding.weight", 0, v, e)
    for i in range(config.num_layers):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        add(theirs + "input_layernorm.weight", ours + "attention_norm.weight", 0, e)
        for name, first, heads in (("q", 0, h), ("k", h, k), ("v", h + k, k)):
            key, rows = f"{theirs}self_attn.{name}_proj.", heads * d
            add(key + "weight", ours + "attention.qkv.weight", first * d, rows, e)
            if config.qkv_bias:
                add(key + "bias", ours + "attention.qkv.bias", first * d, rows)
        if config.qk_norm:
            add(
                theirs + "self_attn.q_norm.weight",
                ours + "attention.qk_norm.weight",
                0,
                d,
            )
            add(
                theirs + "self_attn.k_norm.weight",
                ours + "attention.qk_norm.weight",
                d,
                d,
            )
        add(
            theirs + "self_attn.o_proj.weight",
            ours + "attention.out.weight",
            0,
            e,
            h * d,
        )
        add(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight", 0, e)
        add(theirs + "mlp.gate_proj.weight", ours + "mlp.gate_up.weight", 0, inner, e)
        add(theirs + "mlp.up_proj.weight", ours + "mlp.gate_up.weight", inner, inner, e)
        add(theirs + "mlp.down_proj.weight", ours + "mlp.down.weight", 0, e, inner)
    add("model.norm.weight", "norm.weight", 0, e)
    if not config.tie_word_embeddings:
        add(HEAD_KEY, "head.weight", 0, v, e)
    return listed


def load_model(
    name_or_path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> CausalLM:
    """The model of a checkpoint, frozen and in eval mode.

    `name_or_path`: a directory in Hugging Face layout, a hub id, or a tiny model's
    name. "dummy:" before the name of a shape or the directory of a config.json gives
    random weights. `dtype` None: the stored one. Raises CheckpointError for a network
    that is not computed exactly here and for missing or unexpected tensors;
    SettingError for an impossible device or dtype.
    """
    place = find_device(device)
    possible = (*_DTYPES.values(), None)
    require(
        dtype in possible, "dtype", dtype, f"one of {', '.join(map(str, possible))}"
    )
    return load_pieces(name_or_path, place, dtype, CausalLM)


def config_of(source: str | Path) -> ModelConfig:
    """The configuration of a checkpoint's model or of a dummy. Raises
    CheckpointError."""
    if is_dummy(source):
        from lr.model.dummy import shape

        return shape(source)
    return read_config(resolve(source))


def load_pieces(
    source: str | Path,
    device: torch.device,
    dtype: torch.dtype | None,
    network: Callable[[ModelConfig], Network],
    take: Callable[[ModelConfig], list[Piece]] = pieces,
) -> Network:
    """As `load_model`, for the network that `network` makes and the pieces that `take`
    lists."""
    directory = Path(source) if is_dummy(source) else resolve(source)
    config = config_of(directory)
    make, taken = partial(network, config), take(config)
    if is_dummy(source):
        model = CausalLM.materialised(make, dtype or torch.bfloat16, device)
        from lr.model.dummy import fill_dummy

        fill_dummy(model)
        return lay_out(model)
    tensors = open_tensors(directory)
    account(config, tensors, directory, taken[0].taken[0])
    model = CausalLM.materialised(
        make, dtype or checkpoint_dtype(directory, tensors), device
    )
    parameters = dict(model.named_parameters())
    unfilled = {name: parameter.shape[0] for name, parameter in parameters.items()}
    for piece in taken:
        parameter, stored = parameters[piece.parameter], tensors[piece.key][piece.taken]
        end = piece.first + len(stored)
        parameter[piece.first : end] = stored
        del stored  # one tensor at a time
        if piece.key in (EMBEDDING_KEY, HEAD_KEY):
            parameter[end:] = (
                0  # a rank's padding rows of the vocabulary, which no file has
            )
            end = len(parameter)
        unfilled[piece.parameter] -= end - piece.first
    assert not any(unfilled.values()), f"rows without a source: {unfilled}"
    return lay_out(model)


def lay_out(model: Network) -> Network:
    """Store the matrices of a model on the CPU in column order. In fp32 and at the
    sizes of the tiny models this makes products with one row faster, and with a few
    rows at least as fast.
    """
    if model.device.type == "cpu":
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = module.weight.data.t().contiguous().t()
    return model


def account(
    config: ModelConfig, tensors: Mapping[str, Any], directory: Path, rows: slice
) -> None:
    """Raise CheckpointError unless a checkpoint holds exactly the tensors that `config`
    needs, in the right shapes. A stored head that should equal the embedding is
    compared with it, in the `rows` that the caller is going to read.
    """
    needed = {piece.key: list(piece.shape) for piece in pieces(config)}
    shapes = {key: tensors[key].get_shape() for key in needed if key in tensors}
    dtypes = {key: tensors[key].get_dtype() for key in shapes}
    tied_head = (
        config.tie_word_embeddings and HEAD_KEY in tensors and EMBEDDING_KEY in tensors
    )
    known = {*needed, HEAD_KEY} if tied_head else set(needed)
    unexpected = [
        k for k in tensors if k not in known and not k.endswith(HARMLESS_SUFFIX)
    ]
    misshapen = [key for key, shape in shapes.items() if shape != needed[key]]
    found = {
        "missing": [key for key in needed if key not in tensors],
        "unexpected": sorted(unexpected),
        "of another shape": [
            f"{k} is {shapes[k]}, expected {needed[k]}" for k in misshapen
        ],
        f"of a dtype other than {', '.join(_DTYPES)}": [
            f"{key} is {name}" for key, name in dtypes.items() if name not in _DTYPES
        ],
    }
    lists = ""
    for what, items in found.items():
        more = f", and {len(items) - 10} more" if len(items) > 10 else ""
        lists += (
            f" {len(items)} {what}: {', '.join(items[:10])}{more}." if items else ""
        )
    if lists:
        raise CheckpointError(
            f"the tensors of {directory} are not those its config.json describes.{lists} Check "
            "that config.json belongs to these weights (tie_word_embeddings, attention_bias, "
            "sizes) and that the weights are neither adapters nor quantised."
        )
    if tied_head and not torch.equal(
        tensors[HEAD_KEY][rows], tensors[EMBEDDING_KEY][rows]
    ):
        raise CheckpointError(
            f"{directory} says tie_word_embeddings, but {HEAD_KEY} differs from {EMBEDDING_KEY}. "
            "If the head has its own weights, set tie_word_embeddings to false in config.json."
        )


def checkpoint_dtype(directory: Path, tensors: Mapping[str, Any]) -> torch.dtype:
    """The dtype in config.json (`dtype`, formerly `torch_dtype`), else that of the
    embedding."""
    raw = read_json(directory / "config.json")
    stored = _DTYPES[tensors[EMBEDDING_KEY].get_dtype()]
    name = raw.get("dtype") or raw.get("torch_dtype") or stored
    spelled = str(name).removeprefix("torch.")
    if spelled not in _DTYPE_NAMES:
        raise CheckpointError(
            f"config.json of {directory} says dtype {name!r}; expected one of "
            f"{', '.join(_DTYPE_NAMES)}. Give a dtype to load_model, or correct config.json."
        )
    return _DTYPE_NAMES[spelled]
