"""A model's sizes and options, read from a Hugging Face `config.json`. Anything that
this project does not compute is refused by name.

Two architectures are supported: Qwen3ForCausalLM (norm over queries and keys) and
Qwen2ForCausalLM (bias on q, k and v; also Qwen2.5 and DeepSeek-R1-Distill-Qwen).
Optional keys default to the values of transformers; sizes are required. No torch here.
Read next: `weights.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.model.files import read_json

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_position_embeddings": "max_position_embeddings",
}
"""Our name of each size, and its key, which is required."""
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
)
_NOT_HERE = {
    "hidden_act": "'silu'",
    "use_sliding_window": "false (every layer attends to the whole prefix)",
    "use_mrope": "false (text positions only)",
    "quantization_config": "weights that are not quantised",
    **dict.fromkeys(
        (*_EXPERTS, "moe_intermediate_size"), "a dense model, without experts"
    ),
}
"""Keys of networks that are not computed here, and what is expected instead, or null or
false."""
MOST, MOST_LAYERS = 1 << 27, 4096
"""The largest accepted size and number of layers, checked before any loop counts that
far."""


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al., arXiv 2309.00071), with the keys of `rope_parameters` of type
    "yarn"."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """A dense decoder of the Qwen family.

    Sizes: `hidden_size` e, `num_layers` l, `num_heads` h, `num_kv_heads` k (h is a
    multiple of k), `head_dim` d, `intermediate_size` of the MLP, `vocab_size` v (rows
    of the embedding, including padding), `max_position_embeddings` in tokens.
    `qkv_bias`: q, k and v projections have a bias. `qk_norm`: RMSNorm over every query
    and key head. `yarn`: None for plain rotary embeddings.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    qkv_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    yarn: YarnScaling | None = None


def read_config(source: str | Path | Mapping[str, Any]) -> ModelConfig:
    """The model of a config.json (its file, directory or content). Raises
    CheckpointError."""
    if isinstance(source, Mapping):
        raw = dict(source)
    else:
        path = Path(source)
        raw = read_json(path / "config.json" if path.is_dir() else path)
    kind = _kind(raw)
    if missing := [key for key in SIZES.values() if key not in raw]:
        lacks = f"config.json lacks {', '.join(missing)}"
        raise CheckpointError(
            f"{lacks}. Use the config.json that came with the weights."
        )
    if raw["num_key_value_heads"] is None:
        raw["num_key_value_heads"] = raw["num_attention_heads"]
    sizes = {ours: _count(key, raw[key]) for ours, key in SIZES.items()}
    heads, kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
    expected = f"a divisor of num_attention_heads ({heads})"
    _expect(heads % kv_heads == 0, "num_key_value_heads", kv_heads, expected)
    theta, yarn = _rope(raw)
    if yarn is not None:
        # Qwen's recipe for YaRN leaves max_position_embeddings as it is: 40960 with
        # factor 4 over an original context of 32768 means a context of 131072.
        stretched = yarn.factor * yarn.original_max_position_embeddings
        _expect(
            stretched <= MOST,
            "factor",
            yarn.factor,
            f"a context of at most {MOST} tokens",
        )
        longest = max(sizes["max_position_embeddings"], int(stretched))
        sizes["max_position_embeddings"] = longest
    return ModelConfig(
        **sizes,
        head_dim=_head_dim(raw, kind, heads),
        rms_norm_eps=_positive("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tie_word_embeddings=_flag(
            "tie_word_embeddings", raw.get("tie_word_embeddings", False)
        ),
        yarn=yarn,
    )


def _kind(raw: Mapping[str, Any]) -> str:
    """ "qwen3" or "qwen2". Refuses contradictions and networks that are not computed
    here."""
    model_type = raw.get("model_type")
    named = raw.get("architectures") or [ARCHITECTURES.get(str(model_type), model_type)]
    what = named[0] if isinstance(named, list) and len(named) == 1 else named
    kinds = [kind for kind, known in ARCHITECTURES.items() if named == [known]]
    _expect(len(kinds) == 1, "architectures", what, " or ".join(ARCHITECTURES.values()))
    [kind] = kinds
    expected = f"{kind!r}, which {what} has"
    _expect(model_type in (None, kind), "model_type", model_type, expected)
    for key, expected in _NOT_HERE.items():
        _expect(raw.get(key) in (None, False, "silu"), key, raw.get(key), expected)
    types = raw.get("layer_types") or []
    _expect(
        isinstance(types, list),
        "layer_types",
        types,
        "a list of kinds of attention, or null",
    )
    windowed = sorted({str(t) for t in types if t != "full_attention"})
    _expect(
        not windowed, "layer_types", ", ".join(windowed), "'full_attention' everywhere"
    )
    bias = kind == "qwen3" and raw.get("attention_bias")
    _expect(
        not bias,
        "attention_bias",
        bias,
        "false (in Qwen3 it also puts a bias on o_proj)",
    )
    return kind


def _head_dim(raw: Mapping[str, Any], kind: str, heads: int) -> int:
    """The head size; if absent, 128 for Qwen3 and hidden_size / heads for Qwen2
    (transformers)."""
    stated, size = (
        raw.get("head_dim", 128 if kind == "qwen3" else None),
        raw["hidden_size"],
    )
    if stated is None and kind == "qwen2":
        expected = f"a divisor of hidden_size ({size}) where head_dim is absent"
        _expect(size % heads == 0, "num_attention_heads", heads, expected)
        stated = size // heads
    head_dim, even = (
        _count("head_dim", stated),
        "an even number (rotary embeddings turn pairs)",
    )
    _expect(head_dim % 2 == 0, "head_dim", head_dim, even)
    return head_dim


def _rope(raw: Mapping[str, Any]) -> tuple[float, YarnScaling | None]:
    """The base of the rotary embeddings and their scaling: from `rope_theta` and
    `rope_scaling`, from `rope_parameters` (transformers 5), or from both if they agree.
    """
    new, old = (_stated(raw, key) for key in ("rope_parameters", "rope_scaling"))
    bases = (
        raw.get("rope_theta"),
        new.pop("rope_theta", None),
        old.pop("rope_theta", None),
    )
    thetas = {_positive("rope_theta", base) for base in bases if base is not None}
    expected = "one value; rope_theta and rope_parameters contradict each other"
    _expect(len(thetas) <= 1, "rope_theta", sorted(thetas), expected)
    expected = f"what rope_parameters says too ({new}), or only one of the two"
    _expect(not (new and old) or new == old, "rope_scaling", old, expected)
    rope = new or old
    kind = rope.pop("rope_type", "default")
    _expect(kind in ("default", "yarn"), "rope_type", kind, "'default' or 'yarn'")
    for turned in (
        rope.pop("partial_rotary_factor", None),
        raw.get("partial_rotary_factor"),
    ):
        whole = "1 (every dimension of a head turns)"
        _expect(turned in (None, 1.0), "partial_rotary_factor", turned, whole)
    known = {field.name for field in fields(YarnScaling)} if kind == "yarn" else set()
    unknown = sorted(rope.keys() - known)
    shown = f"{kind!r} with {', '.join(unknown)}"
    _expect(not unknown, "rope_parameters", shown, "only keys that this rope type has")
    theta = thetas.pop() if thetas else 10_000.0  # transformers' value
    if kind == "default":
        return theta, None
    # Defaults: original context = max_position_embeddings, factor = their ratio.
    longest, key = raw["max_position_embeddings"], "original_max_position_embeddings"
    outside = raw.get(key)
    original = _count(key, rope.pop(key, outside or longest))
    expected = f"what the rope parameters say too ({original})"
    _expect(outside in (None, original), key, outside, expected)
    truncate = _flag("truncate", rope.pop("truncate", True))
    numbers = {name: _positive(name, value) for name, value in rope.items()}
    factor = numbers.pop("factor", longest / original)
    return theta, YarnScaling(factor, original, truncate=truncate, **numbers)


def _stated(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A rope dictionary without nulls, its type as `rope_type` (`type` is an older
    spelling)."""
    value = raw.get(key) or {}
    _expect(isinstance(value, Mapping), key, value, "an object or null")
    stated = {name: entry for name, entry in value.items() if entry is not None}
    if (oldest := stated.pop("type", None)) is not None:
        kind = stated.setdefault("rope_type", oldest)
        _expect(
            kind == oldest, f"{key}.type", oldest, f"the same as rope_type ({kind!r})"
        )
    return stated


def _count(key: str, value: Any) -> int:
    most = MOST_LAYERS if key == "num_hidden_layers" else MOST
    whole = isinstance(value, int) and not isinstance(value, bool)
    _expect(
        whole and 1 <= value <= most,
        key,
        value,
        f"a positive whole number, at most {most}",
    )
    return int(value)


def _positive(key: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _expect(number and 0 < value < 1e300, key, value, "a positive number")
    return float(value)


def _flag(key: str, value: Any) -> bool:
    _expect(isinstance(value, bool), key, value, "true or false")
    return bool(value)


def _expect(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise `CheckpointError` for this entry of config.json unless the condition
    holds."""
    if not holds:
        shown = repr(value) if len(repr(value)) <= 200 else repr(value)[:200] + "..."
        raise CheckpointError(
            f"config.json has {key} = {shown}; expected {expected}. Only dense Qwen3 and Qwen2 "
            "decoders are computed here: choose such a checkpoint, or correct config.json."
        )
