"""The shapes of published models, with random weights: to measure costs without a
checkpoint.

`shapes.json` has what matters of the models' public config.json. The checkpoint `dummy:NAME` has
such a shape, or that of the config.json in a directory, with seeded random weights and
its own tokenizer: byte b is token b, the end of sequence is token 256, a token i above
that is the word " w<i>". The tokenizer fills the whole vocabulary, so sampling costs
what it costs with the real one. A prompt is the bytes of the question, without a
template."""

from __future__ import annotations

import json
import math
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.errors import CheckpointError
from lr.model.config import ModelConfig, read_config
from lr.registry import Checkpoint, tiny_checkpoints
from lr.rng import Stream
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.model.qwen import CausalLM

DUMMY_END = "<|end|>"
END_ID = 256


SHAPES = {
    name: read_config(content)
    for name, content in json.loads(
        (files("lr.measure") / "shapes.json").read_text(encoding="utf-8")
    ).items()
}
"""The official tool's Qwen3-32B, Qwen3-1.7B and Qwen2.5-7B-Instruct, and smaller
models."""


def published(name: str | Path) -> ModelConfig | None:
    """The shape with this name, if any: "Qwen3-32B", "Qwen/Qwen3-32B",
    "Qwen2.5-7B-Instruct"."""
    return SHAPES.get(str(name).removeprefix("Qwen/").removesuffix("-Instruct"))


def shape(name: str | Path) -> ModelConfig:
    """The configuration of a published shape, a tiny model, or a directory with a
    config.json; with or without `dummy:`. Raises `CheckpointError`."""
    stated = Checkpoint.parse(name).place
    tiny = tiny_checkpoints()
    if Path(stated).expanduser().is_dir():
        return read_config(Path(stated).expanduser())
    if stated in tiny:
        return read_config(tiny[stated])
    if (config := published(stated)) is not None:
        return config
    raise CheckpointError(
        f"there is no shape {stated!r}. Give one of {', '.join([*SHAPES, *tiny])}, "
        "or a directory with a config.json."
    )


def dummy_tokenizer(name: str | Path) -> Any:
    """The tokenizer of the shape `name`. Raises `SettingError` for too small a
    vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    size = shape(name).vocab_size
    expected = f"{END_ID + 1} or more, for the bytes and the end of sequence"
    require(size > END_ID, f"vocab_size of {name}", size, expected)
    words = {f"\u0120w{token}": token for token in range(END_ID + 1, size)}
    bytes_as_text = {text: byte for byte, text in bytes_to_unicode().items()}
    vocabulary = {**bytes_as_text, DUMMY_END: END_ID, **words}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=DUMMY_END)
    tokenizer.chat_template = "{{ messages | map(attribute='content') | join('\\n') }}"
    return tokenizer


def fill_dummy(model: torch.nn.Module) -> None:
    """Give random values to every parameter of a model or of a rank's slice; norms
    become 1."""
    import torch

    stream = Stream.root(0).fold_in("dummy weights")
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if "norm" in name:
                parameter.fill_(1)
                continue
            noise = torch.Generator(parameter.device)
            noise.manual_seed(stream.key(number) >> 1)
            # variance 1 / columns: uniform on [-a, a] has a^2 / 3
            spread = math.sqrt(3 / parameter.shape[-1])
            parameter.uniform_(-spread, spread, generator=noise)


def random_model(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> CausalLM:
    """A model of that shape with fixed random weights."""
    from lr.model.qwen import CausalLM

    model = CausalLM.materialised(partial(CausalLM, config), dtype, device)
    fill_dummy(model)
    return model
