"""Write a Qwen2 checkpoint as the GGUF file that llama.cpp reads.

    python scripts/peers/to_gguf.py --model DIR --out target.gguf
    python scripts/peers/to_gguf.py --model DIR --out draft.gguf --weights Q4_0

It needs the package `gguf`. Matrices become the type that is asked for; vectors stay in
float32, as llama.cpp wants them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import tyro
from safetensors import safe_open

NORMAL, CONTROL, UNUSED = 1, 3, 5
"""The kinds of tokens of llama.cpp; an id of the matrix without a token is unused."""


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The numbers of the network."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])


def add_tokens(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    """The tokens by id, the merges and the tokens that end a text."""
    file = read_json(folder / "tokenizer.json")
    words = {number: word for word, number in file["model"]["vocab"].items()}
    added = {token["id"]: token for token in file["added_tokens"]}
    kinds = []
    tokens = []
    for number in range(config["vocab_size"]):
        if number in added:
            tokens.append(added[number]["content"])
            kinds.append(CONTROL if added[number]["special"] else NORMAL)
        else:
            tokens.append(words.get(number, f"[PAD{number}]"))
            kinds.append(NORMAL if number in words else UNUSED)
    merges = file["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    )
    ends = config["eos_token_id"]
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    writer.add_add_bos_token(False)


def add_weights(
    writer: gguf.GGUFWriter, folder: Path, layers: int, kind: gguf.GGMLQuantizationType
) -> None:
    """Every tensor under llama.cpp's name."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  (the file is no mapping)
                name = names.get_name(key, try_suffixes=(".weight", ".bias"))
                numbers = tensors.get_tensor(key).float().numpy()
                if numbers.ndim == 1:
                    writer.add_tensor(name, numbers)
                else:
                    packed = gguf.quants.quantize(numbers, kind)
                    writer.add_tensor(name, packed, raw_dtype=kind)


@dataclass(frozen=True)
class ToGguf:
    """Write a Qwen2 checkpoint as a GGUF file."""

    model: Path  # A directory with config.json, tokenizer.json and safetensors.
    out: Path  # The file to write.
    weights: Literal["BF16", "Q8_0", "Q4_0"] = "BF16"  # Type of all matrices.

    def run(self) -> None:
        config = read_json(self.model / "config.json")
        writer = gguf.GGUFWriter(self.out, "qwen2")
        add_shape(writer, config)
        add_tokens(writer, self.model, config)
        kind = gguf.GGMLQuantizationType[self.weights]
        add_weights(writer, self.model, config["num_hidden_layers"], kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main() -> int:
    """Read the flags and write."""
    tyro.cli(ToGguf, use_underscores=True).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
