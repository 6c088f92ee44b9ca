#!/bin/sh
# onnxruntime-genai 0.18.0: with n-gram speculation `no_repeat_ngram_size` is dropped.
#
# Expected: n-gram drafts change the speed; a greedy answer under a rule for repeated n-grams is
# the same with them, as it is under a repetition penalty. Else an error: beam search with
# n-grams is refused.
# Is: the rule is ignored, without a word. The answer repeats what plain decoding may not, and is
# the answer of no rule at all. Repetition penalty, top-k, top-p, temperature and minimum length
# are kept: sampled answers are even equal seed by seed.
#
# Output seen: plain, no repeated pair: [2, 6, 4, 5]; with n-grams: [5, 6, 1, 1, 1, 1, ...], as
# without the rule. Repetition penalty 2.0: equal.
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


def answer(drafts, **options):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(PROMPT) + 12, **options)
    if drafts:
        parameters.set_speculative_options(ngram_size=2, max_draft_tokens=3)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(PROMPT):]


plain, drafted = (answer(drafts, no_repeat_ngram_size=2) for drafts in (False, True))
print("no repeated pair: plain", plain, "with n-grams", drafted)
free = answer(False)
equal = answer(False, repetition_penalty=2.0) == answer(True, repetition_penalty=2.0)
print("no rule:", free, "; repetition penalty equal:", equal)
sys.exit(0 if plain != drafted and drafted == free and equal else 1)
PYTHON
