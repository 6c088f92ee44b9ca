#!/bin/sh
# onnxruntime-genai 0.18.0: after `rewind_to`, the first `generate_next_token` adds two tokens.
#
# Expected: one call, one token, as before the rewind.
# Is: the first call after a rewind lengthens the sequence by two (the tokens are the right ones),
# later calls by one. Whoever counts calls, to write a step of n tokens or to verify drafts by
# rewinding, is one token further than the count says after every rewind.
#
# Output seen: lengths 13, 14, 15, 16, 17 of five calls; rewound to 14; lengths 16, 17, 18.
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
parameters = og.GeneratorParams(model)
parameters.set_search_options(max_length=60)
generator = og.Generator(model, parameters)
generator.append_tokens(np.array([PROMPT], np.int32))


def lengths(calls):
    found = []
    for _ in range(calls):
        generator.generate_next_token()
        found.append(len(generator.get_sequence(0)))
    return found


first = lengths(5)
generator.rewind_to(14)
rewound = len(generator.get_sequence(0))
later = lengths(3)
print("before", first, "rewound to", rewound, "after", later)
as_described = (first, rewound, later) == ([13, 14, 15, 16, 17], 14, [16, 17, 18])
sys.exit(0 if as_described else 1)
PYTHON
