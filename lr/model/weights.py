"""Loading a checkpoint: which of its tensors fills which rows of which parameter of
`CausalLM`.

Attention and MLP use fused matrices; a checkpoint stores their parts separately. Worked
example: 4 query heads and 2 KV heads of size 8 give `attention.qkv.weight` 64 rows.
q_proj fills rows 0..31, k_proj rows 32..47, v_proj rows 48..63. Loading copies the
`pieces`, tensor parallelism slices them, saving (`training/tiny_training/checkpoint.py`)
reads them in reverse. Files and downloads: `files.py`.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lr.errors import CheckpointError
from lr.model.config import ModelConfig, read_config
from lr.model.device import find_device
from lr.model.files import StoredTensor, open_tensors, read_json, resolve
from lr.model.layers import bfloat16_unit
from lr.model.qwen import CausalLM, Network
from lr.registry import Checkpoint, dummies
from lr.types import require

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
EMBEDDING_KEY = "model.embed_tokens.weight"
HEAD_KEY = "lm_head.weight"
BUFFERS = (".inv_freq", ".cos_cached", ".sin_cached")
"""Ends of keys that older versions of transformers stored. They follow from config.json."""
ROWS = 2048
"""The rows of a parameter that are read at a time, as pages of a file that are read count
as memory of the process. A multiple of `quantize.ROWS_AT_A_TIME`."""
LARGE = 50_000_000
"""With at most so many weights a model stays in the caches of a processor, and float32
is quicker. Beyond, every pass reads the weights from memory, where bfloat16 is half as
much; and several rows cost little more than one."""
LoadProgress = Callable[[str, int, int], None]
"""progress(checkpoint, weights read so far, all weights)."""


@dataclass(frozen=True)
class Piece:
    """One tensor of a checkpoint: `key`, of `shape`, fills rows first .. first +
    shape[0] - 1 of `parameter`. `slices`: the slices to read of its axes, all of it or a
    rank's part.
    """

    key: str
    parameter: str
    first: int
    shape: tuple[int, ...]
    slices: tuple[slice, ...] = (slice(None),)


def pieces(config: ModelConfig) -> list[Piece]:
    """Every tensor of such a checkpoint, in network order, without a tied head."""
    v, e = config.vocab_size, config.hidden_size
    d, width = config.head_dim, config.intermediate_size
    h, k = config.num_heads, config.num_kv_heads
    # Of a layer: the checkpoint's name, our parameter, its first row, the shape
    layer: list[tuple[Any, ...]] = [
        ("input_layernorm.weight", "attention_norm.weight", 0, e),
        ("self_attn.q_proj.weight", "attention.qkv.weight", 0, h * d, e),
        ("self_attn.k_proj.weight", "attention.qkv.weight", h * d, k * d, e),
        ("self_attn.v_proj.weight", "attention.qkv.weight", (h + k) * d, k * d, e),
        ("self_attn.o_proj.weight", "attention.out.weight", 0, e, h * d),
        ("post_attention_layernorm.weight", "mlp_norm.weight", 0, e),
        ("mlp.gate_proj.weight", "mlp.gate_up.weight", 0, width, e),
        ("mlp.up_proj.weight", "mlp.gate_up.weight", width, width, e),
        ("mlp.down_proj.weight", "mlp.down.weight", 0, e, width),
    ]
    if config.qkv_bias:
        layer += [
            ("self_attn.q_proj.bias", "attention.qkv.bias", 0, h * d),
            ("self_attn.k_proj.bias", "attention.qkv.bias", h * d, k * d),
            ("self_attn.v_proj.bias", "attention.qkv.bias", (h + k) * d, k * d),
        ]
    if config.qk_norm:
        layer += [
            ("self_attn.q_norm.weight", "attention.qk_norm.weight", 0, d),
            ("self_attn.k_norm.weight", "attention.qk_norm.weight", d, d),
        ]
    network = [Piece(EMBEDDING_KEY, "embedding.weight", 0, (v, e))]
    for i in range(config.num_layers):
        for key, parameter, first, *shape in layer:
            key, parameter = f"model.layers.{i}.{key}", f"layers.{i}.{parameter}"
            network.append(Piece(key, parameter, first, tuple(shape)))
    network.append(Piece("model.norm.weight", "norm.weight", 0, (e,)))
    if not config.tie_word_embeddings:
        network.append(Piece(HEAD_KEY, "head.weight", 0, (v, e)))
    return network


def num_weights(config: ModelConfig) -> int:
    """How many numbers such a checkpoint has."""
    return sum(math.prod(piece.shape) for piece in pieces(config))


def load_model(
    name_or_path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    progress: LoadProgress | None = None,
) -> CausalLM:
    """The model of a checkpoint, frozen and in eval mode.

    `name_or_path`: a directory in Hugging Face layout, a hub id, or a tiny model's
    name. "dummy:" before the name of a shape or the directory of a config.json gives
    random weights. "int8:" or "int4:" before any of them quantises the matrices
    (`quantize.py`), which makes another model. `dtype` None: the stored one
    (`usual_dtype` has a better one for a CPU). Raises CheckpointError for a network
    that is not computed exactly here and for missing or unexpected tensors;
    SettingError for an impossible device, dtype or kind of weights.
    """
    possible = (*DTYPES.values(), None)
    expected = f"one of {', '.join(map(str, possible))}"
    require(dtype in possible, "dtype", dtype, expected)
    return load_pieces(
        name_or_path, find_device(device), dtype, CausalLM, progress=progress
    )


def config_of(source: str | Path) -> ModelConfig:
    """The configuration of a checkpoint's model or of a dummy, without a download of
    weights. Raises CheckpointError."""
    if Checkpoint.parse(source).dummy:
        return dummies().shape(source)
    return read_config(resolve(source, weights=False))


def load_pieces(
    source: str | Path,
    device: torch.device,
    dtype: torch.dtype | None,
    network: Callable[[ModelConfig], Network],
    take: Callable[[ModelConfig], list[Piece]] = pieces,
    progress: LoadProgress | None = None,
) -> Network:
    """As `load_model`, for the network that `network` makes and the pieces that `take`
    lists."""
    checkpoint = Checkpoint.parse(source)
    directory = None if checkpoint.dummy else resolve(source)
    config = config_of(directory or source)
    make = partial(network, config)
    dtype = dtype or stored_dtype(directory or source)
    model = CausalLM.materialised(make, dtype, device)
    matrices: Mapping[str, Any] = {}
    if directory is None:
        dummies().fill_dummy(model)
    if checkpoint.weights is not None:
        from lr.model.quantize import quantize, replace_matrices

        make_few_bits = quantize if directory is None else replace_matrices
        matrices = make_few_bits(model, checkpoint.weights)
    if directory is not None:
        report = None if progress is None else partial(progress, str(source))
        fill(model, directory, take(config), report, matrices)
        # resolved once: a hub id may be looked up online
        checkpoint = replace(checkpoint, place=str(directory.resolve()))
    model.source = str(checkpoint)
    return model


def checkpoint_id(source: str | Path) -> str:
    """The same text for all names of a checkpoint with the same kind of weights."""
    checkpoint = Checkpoint.parse(source)
    if checkpoint.dummy:
        return str(checkpoint)
    return str(replace(checkpoint, place=str(resolve(source).resolve())))


def fill(
    model: CausalLM,
    directory: Path,
    wanted: list[Piece],
    report: Callable[[int, int], None] | None,
    matrices: Mapping[str, Any],
) -> None:
    """Copy the wanted pieces of a checkpoint into a model's parameters. `matrices`: by
    the name of a weight, the quantised matrix that takes its rows."""
    tensors = open_tensors(directory)
    account(model.config, tensors, directory, wanted[0].slices[0])
    # A parameter per thread at a time, copied into memory that is aligned for the
    # processor (a file is not), and in which q, k, v are one matrix.
    parameters = dict(model.named_parameters())
    inference = torch.is_inference_mode_enabled()  # each thread has its own mode

    def read(piece: Piece, first: int) -> Any:
        """Rows first .. first + ROWS - 1 of the parameter, as far as the piece has
        them."""
        rows = range(piece.shape[0])[piece.slices[0]]  # a rank's part of the tensor
        rows = rows[max(first - piece.first, 0) : max(first + ROWS - piece.first, 0)]
        return tensors[piece.key][slice(rows.start, rows.stop), *piece.slices[1:]]

    @torch.inference_mode(inference)
    def complete(name: str) -> int:
        parameter = parameters.pop(name)
        matrix = matrices.get(name)
        end = 0
        for first in range(0, len(parameter), ROWS):
            portions = [read(piece, first) for piece in parts[name]]
            stored = portions[0] if len(portions) == 1 else torch.cat(portions)
            end += len(stored)
            if matrix is not None:
                matrix.quantise_rows(first, stored.to(model.dtype))
            if parameter.is_floating_point():  # but for a matrix in few bits
                rows = parameter[first:end]
                if rows.stride() == stored.stride():
                    rows.copy_(stored)
                else:  # a matrix in memory by columns: quicker in two steps
                    rows.t().copy_(stored.t().contiguous())
        # a rank's padding rows of the vocabulary, which no file has
        parameter[end:] = 0
        return sum(math.prod(piece.shape) for piece in parts[name])

    parts: dict[str, list[Piece]] = {}
    for piece in wanted:
        parts.setdefault(piece.parameter, []).append(piece)
    total = sum(math.prod(piece.shape) for piece in wanted)
    num_read = 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for size in pool.map(complete, parts):
            num_read += size
            if report is not None:
                report(num_read, total)


def account(
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    directory: Path,
    rows: slice,
) -> None:
    """Raise CheckpointError unless a checkpoint holds exactly the tensors that `config`
    needs, in the right shapes. A stored head that should equal the embedding is
    compared with it, in the `rows` that the caller is going to read.
    """
    needed = {piece.key: list(piece.shape) for piece in pieces(config)}
    spare_head = config.tie_word_embeddings and HEAD_KEY in tensors
    if spare_head:  # stored, though it is tied
        needed[HEAD_KEY] = needed[EMBEDDING_KEY]
    missing = [key for key in needed if key not in tensors]
    others = tensors.keys() - needed.keys()
    unexpected = sorted(key for key in others if not key.endswith(BUFFERS))
    unfit = []
    for key in needed.keys() & tensors.keys():
        shape, dtype = tensors[key].shape, tensors[key].dtype
        if shape != needed[key] or dtype not in DTYPES:
            expected = f"{' or '.join(DTYPES)} {needed[key]}"
            unfit.append(f"{key} is {dtype} {shape}, not {expected}")
    faults = {"missing": missing, "unexpected": unexpected, "of another kind": unfit}
    texts = [
        f"{len(keys)} {fault}: {', '.join(keys[:10])}{', ...' if keys[10:] else ''}."
        for fault, keys in faults.items()
        if keys
    ]
    if texts:
        raise CheckpointError(
            f"the tensors of {directory} are not those its config.json describes. "
            f"{' '.join(texts)} Check that config.json belongs to these weights "
            "(tie_word_embeddings, attention_bias, sizes) and that the weights are "
            "neither adapters nor quantised."
        )
    if spare_head and not torch.equal(
        tensors[HEAD_KEY][rows], tensors[EMBEDDING_KEY][rows]
    ):
        raise CheckpointError(
            f"{directory} says tie_word_embeddings, but {HEAD_KEY} differs from "
            f"{EMBEDDING_KEY}. If the head has its own weights, set tie_word_embeddings "
            "to false in config.json."
        )


def stored_dtype(source: str | Path) -> torch.dtype:
    """The dtype in config.json (`dtype`, formerly `torch_dtype`), else float32;
    bfloat16 for a dummy. Raises CheckpointError."""
    if Checkpoint.parse(source).dummy:
        return torch.bfloat16
    path = resolve(source, weights=False) / "config.json"
    raw = read_json(path)
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    dtype: Any = getattr(torch, name.removeprefix("torch."), None)
    if dtype not in DTYPES.values():
        raise CheckpointError(
            f"{path} says dtype {name!r}; expected one of float64, float32, bfloat16, "
            "float16. Give a dtype, or correct the file."
        )
    return dtype


def usual_dtype(source: str | Path, device: torch.device) -> torch.dtype:
    """The dtype to compute a checkpoint in where nobody says one: the stored one, on a
    CPU `cpu_dtype`."""
    stored = stored_dtype(source)
    return stored if device.type != "cpu" else cpu_dtype(config_of(source), stored)


def cpu_dtype(config: ModelConfig, stored: torch.dtype) -> torch.dtype:
    """bfloat16 on a processor that multiplies it, for a model too large for the caches
    whose weights have 16 bits anyway, else float32."""
    large = num_weights(config) > LARGE  # beyond the caches of a processor
    half = stored in (torch.bfloat16, torch.float16)  # nothing more is lost
    return torch.bfloat16 if large and half and bfloat16_unit() else torch.float32
