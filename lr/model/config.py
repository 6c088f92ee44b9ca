"""What a model is, in numbers, and its reader: from a Hugging Face `config.json` to `ModelConfig`,
refusing by name what this project does not compute.

Every property is a field of its own; none is derived from another. Two architectures:
Qwen3ForCausalLM (norm over queries and keys) and Qwen2ForCausalLM (bias on q, k and v; Qwen2.5 and
DeepSeek-R1-Distill-Qwen are of this kind). Two spellings of rotary embeddings: `rope_theta` with
`rope_scaling`, and since transformers 5 `rope_parameters`. Keys that may be absent get the value
that transformers gives them; sizes may not be absent. No torch here. Read next: `weights.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.model.files import read_json

_ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_EXPERT_KEYS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_YARN_KEYS = {
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
}
_QWEN3_HEAD_DIM, _ROPE_THETA, _NORM_EPS = (
    128,
    10_000.0,
    1e-6,
)  # transformers' values for absent keys


@dataclass(frozen=True)
class YarnScaling:
    """YaRN context extension (Peng et al., arXiv 2309.00071), as `rope_parameters` of rope type
    "yarn" states it.
    """

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

    Sizes: `hidden_size` e, `num_layers` l, `num_heads` h, `num_kv_heads` k (h is a multiple of k),
    `head_dim` d, `intermediate_size` of the MLP, `vocab_size` v (rows of the embedding, padding
    included), `max_position_embeddings` in tokens. `qkv_bias`: q, k and v projections have a bias
    (Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen). `qk_norm`: RMSNorm over every query and key head
    (Qwen3). `yarn`: None for plain rotary embeddings.
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
    """The configuration in a config.json (the file, its directory, or its content). Raises
    CheckpointError.
    """
    if isinstance(source, Mapping):
        raw: Mapping[str, Any] = source
    else:
        path = Path(source)
        raw = read_json(path / "config.json" if path.is_dir() else path)
    kind = _kind(raw)
    _refuse_variants(raw, kind)
    missing = [key for key in _REQUIRED if key not in raw]
    if missing:
        raise CheckpointError(
            f"config.json lacks {', '.join(missing)}. Use the config.json that came with the "
            "weights."
        )
    heads = _count(raw, "num_attention_heads")
    kv_heads = heads if raw["num_key_value_heads"] is None else _count(raw, "num_key_value_heads")
    if heads % kv_heads:
        raise _refusal(
            "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})"
        )
    theta, yarn = _rope(raw)
    return ModelConfig(
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=_count(raw, "hidden_size"),
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(raw, kind, heads),
        max_position_embeddings=_context(raw, yarn),
        rms_norm_eps=_positive("rms_norm_eps", raw.get("rms_norm_eps", _NORM_EPS)),
        rope_theta=theta,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tie_word_embeddings=_flag(raw, "tie_word_embeddings"),
        yarn=yarn,
    )


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of a config.json that describes `config`, in transformers 5 spelling;
    `read_config` gives `config` back.

    Raises CheckpointError if no architecture of Hugging Face has this combination of bias and norm.
    """
    if config.qkv_bias == config.qk_norm:
        raise CheckpointError(
            f"qkv_bias={config.qkv_bias} with qk_norm={config.qk_norm} is neither Qwen3 (norm, no "
            "bias) nor Qwen2 (bias, no norm), "
            "so no config.json can describe it. Change one of the two."
        )
    kind = "qwen3" if config.qk_norm else "qwen2"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.yarn is not None:
        stated = {name: value for name, value in vars(config.yarn).items() if value is not None}
        rope = {"rope_type": "yarn", "rope_theta": config.rope_theta, **stated}
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        **({"attention_bias": False} if kind == "qwen3" else {}),
    }


def _kind(raw: Mapping[str, Any]) -> str:
    """ "qwen3" or "qwen2". `architectures` decides, `model_type` must not contradict it."""
    named = raw.get("architectures") or []
    model_type = raw.get("model_type")
    if not named and model_type in _ARCHITECTURES:
        named = [_ARCHITECTURES[model_type]]
    kinds = [kind for kind, architecture in _ARCHITECTURES.items() if list(named) == [architecture]]
    if not kinds:
        what = named[0] if isinstance(named, list) and len(named) == 1 else named or model_type
        raise _refusal("architectures", what, " or ".join(_ARCHITECTURES.values()))
    if model_type is not None and model_type != kinds[0]:
        raise _refusal("model_type", model_type, f"{kinds[0]!r}, which {named[0]} has")
    return kinds[0]


def _refuse_variants(raw: Mapping[str, Any], kind: str) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise _refusal("hidden_act", raw["hidden_act"], "'silu'")
    if raw.get("use_sliding_window"):
        raise _refusal(
            "use_sliding_window",
            raw["use_sliding_window"],
            "false (every layer attends to the whole prefix)",
        )
    windowed = sorted({str(t) for t in raw.get("layer_types") or [] if t != "full_attention"})
    if windowed:
        raise _refusal("layer_types", ", ".join(windowed), "'full_attention' everywhere")
    if raw.get("quantization_config") is not None:
        raise _refusal(
            "quantization_config", raw["quantization_config"], "weights that are not quantised"
        )
    for key in _EXPERT_KEYS:
        if raw.get(key) is not None:
            raise _refusal(key, raw[key], "a dense model, without experts")
    if raw.get("use_mrope"):
        raise _refusal("use_mrope", raw["use_mrope"], "false (text positions only)")
    if kind == "qwen3" and raw.get("attention_bias"):
        raise _refusal(
            "attention_bias",
            raw["attention_bias"],
            "false (in Qwen3 it also puts a bias on o_proj)",
        )


def _head_dim(raw: Mapping[str, Any], kind: str, heads: int) -> int:
    if "head_dim" in raw and not (raw["head_dim"] is None and kind == "qwen2"):
        head_dim = _count(raw, "head_dim")
    elif kind == "qwen3":
        head_dim = _QWEN3_HEAD_DIM
    elif _count(raw, "hidden_size") % heads:
        raise _refusal(
            "num_attention_heads",
            heads,
            f"a divisor of hidden_size ({raw['hidden_size']}) where head_dim is absent",
        )
    else:
        head_dim = raw["hidden_size"] // heads
    if head_dim % 2:
        raise _refusal("head_dim", head_dim, "an even number (rotary embeddings turn pairs)")
    return head_dim


def _rope(raw: Mapping[str, Any]) -> tuple[float, YarnScaling | None]:
    """The base of the rotary embeddings and the scaling, from either spelling or from both if they
    agree.
    """
    new, old = (_stated(raw, key) for key in ("rope_parameters", "rope_scaling"))
    bases = (raw.get("rope_theta"), new.pop("rope_theta", None), old.pop("rope_theta", None))
    thetas = {_positive("rope_theta", base) for base in bases if base is not None}
    if len(thetas) > 1:
        raise _refusal(
            "rope_theta",
            sorted(thetas),
            "one value; rope_theta and rope_parameters contradict each other",
        )
    if new and old and new != old:
        raise _refusal(
            "rope_scaling", old, f"what rope_parameters says too ({new}), or only one of the two"
        )
    theta = thetas.pop() if thetas else _ROPE_THETA
    rope = new or old
    kind = rope.pop("rope_type", "default")
    if kind not in ("default", "yarn"):
        raise _refusal("rope_type", kind, "'default' or 'yarn'")
    if rope.pop("partial_rotary_factor", 1.0) != 1.0 or raw.get(
        "partial_rotary_factor", 1.0
    ) not in (1.0, None):
        raise _refusal("partial_rotary_factor", "not 1", "1 (every dimension of a head turns)")
    unknown = sorted(rope.keys() - (_YARN_KEYS if kind == "yarn" else set()))
    if unknown:
        raise _refusal(
            "rope_parameters",
            f"{kind!r} with {', '.join(unknown)}",
            "only keys that this rope type has",
        )
    return theta, None if kind == "default" else _yarn(raw, rope)


def _stated(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One of the two rope dictionaries without its nulls, its type always as `rope_type` (`type` is
    the oldest spelling).
    """
    value = raw.get(key) or {}
    if not isinstance(value, Mapping):
        raise _refusal(key, value, "an object or null")
    stated = {name: entry for name, entry in value.items() if entry is not None}
    oldest = stated.pop("type", None)
    if oldest is not None and stated.setdefault("rope_type", oldest) != oldest:
        raise _refusal(f"{key}.type", oldest, f"the same as rope_type ({stated['rope_type']!r})")
    return stated


def _yarn(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> YarnScaling:
    """`rope` has only keys of YaRN and no nulls. Absent: original context =
    max_position_embeddings, factor = their ratio.
    """
    longest = _count(raw, "max_position_embeddings")
    outside = raw.get("original_max_position_embeddings")
    original = rope.get("original_max_position_embeddings", outside or longest)
    if outside is not None and outside != original:
        raise _refusal(
            "original_max_position_embeddings",
            outside,
            f"what the rope parameters say too ({original})",
        )
    original = _count(
        {"original_max_position_embeddings": original}, "original_max_position_embeddings"
    )
    numbers = {
        k: _positive(k, v)
        for k, v in rope.items()
        if k not in ("truncate", "original_max_position_embeddings")
    }
    factor = numbers.pop("factor", longest / original)
    return YarnScaling(
        factor, original, truncate=_flag({"truncate": True, **rope}, "truncate"), **numbers
    )


def _context(raw: Mapping[str, Any], yarn: YarnScaling | None) -> int:
    """The longest sequence. Qwen's recipe for YaRN adds the scaling alone and leaves
    max_position_embeddings as it was.

    Example: max_position_embeddings 40960 with factor 4 over an original context of 32768 is a
    context of 131072.
    """
    stated = _count(raw, "max_position_embeddings")
    return (
        stated
        if yarn is None
        else max(stated, int(yarn.factor * yarn.original_max_position_embeddings))
    )


def _count(raw: Mapping[str, Any], key: str) -> int:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refusal(key, value, "a positive whole number")
    return value


def _positive(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise _refusal(key, value, "a positive number")
    return float(value)


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if not isinstance(value, bool):
        raise _refusal(key, value, "true or false")
    return value


def _refusal(key: str, value: Any, expected: str) -> CheckpointError:
    shown = repr(value) if len(repr(value)) <= 200 else repr(value)[:200] + "..."
    return CheckpointError(
        f"config.json has {key} = {shown}; expected {expected}. "
        "Only dense Qwen3 and Qwen2 decoders are computed here: choose such a checkpoint, or mend "
        "config.json if it is wrong."
    )
