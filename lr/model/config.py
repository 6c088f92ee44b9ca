"""A model's sizes and options, read from a Hugging Face `config.json`.

Two architectures are computed here: Qwen3ForCausalLM (norm over queries and keys) and
Qwen2ForCausalLM (bias on q, k and v; also Qwen2.5 and DeepSeek-R1-Distill-Qwen). A
network that would need anything else is refused by name. Optional keys have the
defaults of transformers; sizes are required. (Its `AutoConfig` accepts experts, partial
rotary embeddings, heads that do not divide, and a file without sizes: nearly
each check below would stay. And its import takes 2 seconds in a rank or a worker, which
need no other part of transformers.) No torch here.
Read next: `weights.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from lr.errors import CheckpointError
from lr.model.files import read_json

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""By `model_type`."""
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
OTHER_NETWORKS = {
    "quantization_config": "quantised weights",
    "dual_chunk_attention_config": "dual chunk attention",
    "use_mrope": "positions in three dimensions",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts",
    "moe_intermediate_size": "experts",
}
"""Keys of networks that are not computed here: each must be absent, null or false."""
LARGEST_SIZE = 1 << 27
"""The largest accepted size, checked before any loop counts that far."""


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
    """A dense decoder of the Qwen family: e = `hidden_size`, l = `num_layers`, h =
    `num_heads`, k = `num_kv_heads` (h is a multiple of k), d = `head_dim`, v =
    `vocab_size` (rows of the embedding, padding included).

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

    @property
    def cached_per_token(self) -> int:
        """Numbers in the cache for each token: the keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def read_config(source: str | Path | Mapping[str, Any]) -> ModelConfig:
    """The model of a config.json (its file, directory or content). Raises
    CheckpointError."""
    path = Path("config.json")
    if isinstance(source, Mapping):
        raw = dict(source)
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        raw = read_json(path)
    try:
        return _read(raw)
    except Exception as error:  # a JSON object may hold anything
        raise CheckpointError(
            f"{path} is not what is expected: {error}. Use the config.json that came "
            "with the weights, of a dense Qwen3 or Qwen2 decoder; no other is computed "
            "here."
        ) from error


def _read(raw: dict[str, Any]) -> ModelConfig:
    kind = _architecture(raw)
    if missing := [key for key in SIZES.values() if key not in raw]:
        raise CheckpointError(f"it lacks {', '.join(missing)}")
    if raw["num_key_value_heads"] is None:  # as many as query heads
        raw["num_key_value_heads"] = raw["num_attention_heads"]
    # 1. Sizes, each a positive whole number.
    sizes = {name: _count(key, raw[key]) for name, key in SIZES.items()}
    # 2. Nothing that is not computed here.
    _refuse_other_networks(raw, kind)
    heads = sizes["num_heads"]
    kv_heads = sizes["num_kv_heads"]
    expected = f"a divisor of num_attention_heads ({heads})"
    _expect(heads % kv_heads == 0, "num_key_value_heads", kv_heads, expected)

    # 3. Positions.
    theta, yarn = _rope(raw)
    if yarn is not None:
        # Qwen's recipe for YaRN leaves max_position_embeddings as it is: 40960 with
        # factor 4 over an original context of 32768 means a context of 131072.
        stretched = int(yarn.factor * yarn.original_max_position_embeddings)
        stated = sizes["max_position_embeddings"]
        sizes["max_position_embeddings"] = max(stated, stretched)

    # 4. transformers' defaults: 128 for Qwen3, hidden_size / heads for Qwen2.
    head_dim: Any = raw.get("head_dim", 128 if kind == "qwen3" else None)
    if head_dim is None and kind == "qwen2":
        expected = f"a divisor of hidden_size ({raw['hidden_size']})"
        _expect(raw["hidden_size"] % heads == 0, "num_attention_heads", heads, expected)
        head_dim = raw["hidden_size"] // heads
    expected = "an even number (rotary embeddings turn pairs)"
    _expect(_count("head_dim", head_dim) % 2 == 0, "head_dim", head_dim, expected)
    return ModelConfig(
        **sizes,
        head_dim=head_dim,
        rms_norm_eps=_positive("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        qkv_bias=kind == "qwen2",  # not `attention_bias`, which Qwen2 lacks
        qk_norm=kind == "qwen3",
        tie_word_embeddings=_flag(
            "tie_word_embeddings", raw.get("tie_word_embeddings", False)
        ),
        yarn=yarn,
    )


def _architecture(raw: Mapping[str, Any]) -> str:
    """ "qwen3" or "qwen2", as `architectures` and `model_type` say; one of them may be
    absent."""
    names = raw.get("architectures") or []
    model_type = raw.get("model_type")
    for kind, name in ARCHITECTURES.items():
        stated = names or model_type
        if stated and names in ([], [name]) and model_type in (None, kind):
            return kind
    raise CheckpointError(
        f"architectures = {names!r:.200}, model_type = {model_type!r:.200}; expected "
        f"one of {ARCHITECTURES}"
    )


def _refuse_other_networks(raw: Mapping[str, Any], kind: str) -> None:
    for key, network in OTHER_NETWORKS.items():
        absent = raw.get(key) in (None, False)
        _expect(absent, key, raw.get(key), f"none ({network} is not computed here)")
    activation = raw.get("hidden_act")  # silu(gate) * up
    _expect(activation in (None, "silu"), "hidden_act", activation, "'silu'")
    if kind == "qwen3":  # there it would also put a bias on o_proj
        bias = raw.get("attention_bias")
        _expect(not bias, "attention_bias", bias, "false")

    # A window that no layer has is no window: transformers' rule.
    others = sorted({*(raw.get("layer_types") or ())} - {"full_attention"})
    _expect(not others, "layer_types", others, "'full_attention' everywhere")
    windowed = (
        not raw.get("layer_types")  # which says it for each layer
        and raw.get("use_sliding_window")
        and raw.get("sliding_window", 4096) is not None
        and raw.get("max_window_layers", 28) < raw["num_hidden_layers"]
    )
    expected = "no layer from max_window_layers on (a sliding window is not computed)"
    _expect(not windowed, "use_sliding_window", True, expected)


def _rope(raw: Mapping[str, Any]) -> tuple[float, YarnScaling | None]:
    """The base of the rotary embeddings and their scaling. Checkpoints state them in
    up to three places: at the top, in `rope_scaling`, and, since transformers 5, in
    `rope_parameters`. They must agree."""
    original = "original_max_position_embeddings"
    at_top = ("rope_theta", "partial_rotary_factor", original)
    top = {key: raw.get(key) for key in at_top}
    rope: dict[str, Any] = {}  # what all places say together
    for stated in (top, raw.get("rope_scaling"), raw.get("rope_parameters")):
        for key, value in (stated or {}).items():
            if value is not None:
                # its name before transformers 4.45
                name = "rope_type" if key == "type" else key
                same = rope.setdefault(name, value) == value
                _expect(same, key, value, f"{rope[name]!r}, as it says elsewhere")

    theta = _positive("rope_theta", rope.pop("rope_theta", 10_000.0))
    kind = rope.pop("rope_type", "default")
    _expect(kind in ("default", "yarn"), "rope_type", kind, "'default' or 'yarn'")
    turning = rope.pop("partial_rotary_factor", 1)
    expected = "1 (every dimension of a head turns)"
    _expect(turning == 1, "partial_rotary_factor", turning, expected)
    # NOTE: transformers does not read `attn_factor` (DeepSeek-R1-0528-Qwen3-8B has
    # it), so neither do we; others multiply the attention factor by it.
    rope.pop("attn_factor", None)
    names = {field.name for field in fields(YarnScaling)} if kind == "yarn" else set()
    unknown = sorted(rope.keys() - names - {original})
    _expect(not unknown, "rope_parameters", unknown, f"only keys of type {kind!r}")
    if kind == "default":
        return theta, None

    # Defaults: original context = max_position_embeddings, factor = their ratio.
    context = raw["max_position_embeddings"]
    trained = _count(original, rope.pop(original, context))
    truncate = _flag("truncate", rope.pop("truncate", True))
    # what is left: factor, betas, mscales
    numbers = {name: _positive(name, value) for name, value in rope.items()}
    factor = numbers.pop("factor", context / trained)
    return theta, YarnScaling(factor, trained, truncate=truncate, **numbers)


def _count(key: str, value: Any) -> int:
    possible = type(value) is int and 1 <= value <= LARGEST_SIZE  # not a bool
    _expect(possible, key, value, f"a positive whole number, at most {LARGEST_SIZE}")
    return int(value)


def _positive(key: str, value: Any) -> float:
    possible = type(value) in (int, float) and 0 < value < inf
    _expect(possible, key, value, "a positive number")
    return float(value)


def _flag(key: str, value: Any) -> bool:
    _expect(type(value) is bool, key, value, "true or false")
    return bool(value)


def _expect(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise `CheckpointError` for this entry of config.json unless the condition
    holds."""
    if not holds:
        raise CheckpointError(f"{key} = {value!r:.200}; expected {expected}")
