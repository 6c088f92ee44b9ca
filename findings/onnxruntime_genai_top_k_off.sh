#!/bin/sh
# onnxruntime-genai 0.18.0: `do_sample=True, top_k=0` is greedy.
#
# Expected: top_k=0 switches the filter off (the default is 50), so tokens are drawn from the
# whole law; the temperature counts.
# Is: 0 switches top-k off, and the default of top_p, 0, switches top-p off; if both are off, the
# likeliest token is taken, at any temperature, without a word. With top_p=1.0 beside it, or with
# top_k = the size of the vocabulary, the law is right.
#
# Output seen (total variation of the first token's law to the softmax, 4,096 draws, by chance
# about 0.017): top_k=0 0.66; top_k=0 at temperature 2 0.78; top_k=0, top_p=1 0.01; top_k=8 0.01.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv || exit 2
packages='onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6'
venv/bin/pip install -q $packages || exit 2
venv/bin/python - <<'PYTHON'
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper

# A model of eight tokens: the next token's logits are a row of a table. Token 7 is the end.
SIZE = 8
TABLE = np.random.default_rng(3).standard_normal((SIZE, SIZE)).astype(np.float32)
PROMPT = [0, 1, 2, 5, 6, 1, 2, 5, 4, 0, 1, 2]
constants = [
    numpy_helper.from_array(TABLE, "table"),
    numpy_helper.from_array(np.zeros((SIZE, 4), np.float32), "nothing"),
    numpy_helper.from_array(np.array([1], np.int64), "one"),
]
nodes = [helper.make_node("Gather", ["table", "input_ids"], ["logits"], axis=0)]
inputs = [
    helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"]),
    helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["b", "t"]),
]
outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", SIZE])]
for name in ("key", "value"):  # a cache of the right shape, filled with zeros
    past, present = f"past_key_values.0.{name}", f"present.0.{name}"
    for values, tensor, length in ((inputs, past, "p"), (outputs, present, "q")):
        shape = ["b", 1, length, 4]
        values.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape))
    nodes += [
        helper.make_node("Gather", ["nothing", "input_ids"], [f"flat_{name}"], axis=0),
        helper.make_node("Unsqueeze", [f"flat_{name}", "one"], [f"new_{name}"]),
        helper.make_node("Concat", [past, f"new_{name}"], [present], axis=2),
    ]
graph = helper.make_graph(nodes, "table", inputs, outputs, constants)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 9
Path("model").mkdir()
onnx.save(model, "model/model.onnx")
decoder = {
    "session_options": {"provider_options": []}, "filename": "model.onnx",
    "head_size": 4, "hidden_size": 4, "num_attention_heads": 1, "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "inputs": {
        "input_ids": "input_ids", "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits", "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}
config = {
    "model": {
        "bos_token_id": 0, "eos_token_id": [7], "pad_token_id": 7, "context_length": 256,
        "type": "llama", "vocab_size": SIZE, "decoder": decoder,
    },
    "search": {"max_length": 128, "past_present_share_buffer": False},
}
Path("model/genai_config.json").write_text(json.dumps(config))
model = og.Model("model")


def distance(temperature=1.0, **options):
    counts = np.zeros(SIZE)
    for seed in range(1, 129):
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(
            max_length=len(PROMPT) + 1, batch_size=32, do_sample=True, random_seed=seed,
            temperature=temperature, **options,
        )
        generator = og.Generator(model, parameters)
        generator.append_tokens(np.array([PROMPT] * 32, np.int32))
        generator.generate_next_token()
        for row in range(32):
            counts[int(generator.get_next_tokens()[row])] += 1
    law = np.exp(TABLE[PROMPT[-1]] / temperature)
    return abs(counts / counts.sum() - law / law.sum()).sum() / 2


seen = {
    "top_k=0": distance(top_k=0),
    "top_k=0, temperature 2": distance(2.0, top_k=0),
    "top_k=0, top_p=1": distance(top_k=0, top_p=1.0),
    "top_k=8": distance(top_k=8),
}
for name, value in seen.items():
    print(f"{name}: {value:.3f}")
off, warm, whole, all_tokens = seen.values()
sys.exit(0 if min(off, warm) > 0.5 and max(whole, all_tokens) < 0.05 else 1)
PYTHON
