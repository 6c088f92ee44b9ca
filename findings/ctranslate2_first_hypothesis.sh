#!/bin/sh
# CTranslate2 4.8.5: the first of several sampled hypotheses is no sample.
#
# Expected: with `num_hypotheses=5` and random sampling, five independent draws; whoever takes
# the first (self-consistency takes all, most code takes `sequences_ids[0]`) has a draw from the
# model.
# Is: the draws are independent, but they are handed back sorted by score. The first one is the
# best of five: its law is far from the model's, and no option keeps the order of drawing.
#
# Output seen (total variation of the first token's law to the model's, 20,000 draws; by chance
# alone about 0.006): one hypothesis 0.00, first of five 0.50, all five together 0.00.
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
model = ctranslate2.Generator("model", intra_threads=1)
logits = np.array(model.forward_batch([PROMPT], return_log_probs=False))[0, -1]
law = np.exp(logits.astype(float))
law /= law.sum()


def distances(hypotheses):
    """Of the first hypothesis and of all of them, from the model's law of one token."""
    first, every = np.zeros(6), np.zeros(6)
    for _ in range(4):
        for result in model.generate_batch(
            [PROMPT] * 5000, max_length=1, sampling_topk=0, num_hypotheses=hypotheses,
            include_prompt_in_result=False,
        ):
            drawn = [ids[0] if ids else 1 for ids in result.sequences_ids]  # 1: the end
            first[drawn[0]] += 1
            for token in drawn:
                every[token] += 1
    return [abs(counts / counts.sum() - law).sum() / 2 for counts in (first, every)]


(one, _), (first, every) = distances(1), distances(5)
print(f"one hypothesis {one:.3f}, first of five {first:.3f}, all five {every:.3f}")
sys.exit(0 if one < 0.03 and every < 0.03 and first > 0.3 else 1)
PYTHON
