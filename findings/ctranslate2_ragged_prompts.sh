#!/bin/sh
# CTranslate2 4.8.5: in a batch of prompts of different lengths, `include_prompt_in_result=False`
# hands the prompts back all the same, and `max_length` counts them.
#
# Expected: what `generate_batch` gives for a prompt does not depend on the other prompts; greedy.
# Is: what all prompts have in common in length is left out of the results, the rest of the longer
# prompts is not: it stands at the front of the answer, and `max_length` new tokens includes it,
# so a long prompt beside a short one is answered with its own text and nothing else. Alone, or
# beside prompts of the same length, all is right.
#
# Output seen, max_length=6, prompts of 3, 10 and 1 tokens: alone [], [3, 3, 2, 2, 2, 2] and
# [3, 4, 3, 2]; in one batch [2, 3], [4, 4, 4, 4, 4, 4] (the prompts' own tokens) and
# [3, 4, 3, 2].
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv || exit 2
venv/bin/pip install -q ctranslate2==4.8.5 numpy==2.4.6 || exit 2
venv/bin/python - <<'PYTHON'
import sys
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

# A random decoder of six tokens.
NAMES = ["<s>", "</s>", "a", "b", "c", "d"]
random = np.random.default_rng(0)


def matrix(rows, columns=32):
    return (random.standard_normal((rows, columns)) * 0.12).astype(np.float32)


spec = transformer_spec.TransformerDecoderModelSpec.from_config(
    1, 4, activation=common_spec.Activation.SWISH, pre_norm=True, ffn_glu=True,
    rms_norm=True, rotary_dim=0, rotary_interleave=False,
)
decoder, layer = spec.decoder, spec.decoder.layer[0]
decoder.scale_embeddings = False
decoder.embeddings.weight = matrix(6)
decoder.projection.weight = matrix(6) * 3
for norm in (decoder.layer_norm, layer.self_attention.layer_norm, layer.ffn.layer_norm):
    norm.gamma = np.ones(32, np.float32)
layer.self_attention.linear[0].weight = matrix(96)
layer.self_attention.linear[1].weight = matrix(32)
for linear in (layer.ffn.linear_0, layer.ffn.linear_0_noact, layer.ffn.linear_1):
    linear.weight = matrix(32)
spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "a"
spec.config.layer_norm_epsilon = 1e-6
spec.register_vocabulary(NAMES)
spec.validate()
spec.optimize()
Path("model").mkdir()
spec.save("model")
PROMPT = ["<s>", "a", "b"]


def answers(prompts):
    results = model.generate_batch(
        prompts, max_length=6, sampling_topk=1, include_prompt_in_result=False
    )
    return [result.sequences_ids[0] for result in results]


model = ctranslate2.Generator("model", intra_threads=1)
prompts = [PROMPT, ["<s>"] + ["c"] * 9, ["<s>"]]
alone = [answers([prompt])[0] for prompt in prompts]
together = answers(prompts)
twice = answers([PROMPT, PROMPT])
print("alone:      ", alone)
print("in one batch:", together)
own_text = [NAMES.index(token) for token in prompts[1][1:7]]
right_if_equal = twice == [alone[0], alone[0]]
sys.exit(0 if together[1] == own_text != alone[1] and right_if_equal else 1)
PYTHON
