#!/bin/sh
# CTranslate2 4.8.5: `set_random_seed` reaches a generator once.
#
# Expected: `set_random_seed(5)` before each call makes the calls equal, as `torch.manual_seed`.
# Is: the seed is read when a generator draws for the first time; after that, setting it again
# changes nothing, and the second call differs from the first. And every generator made later
# begins with the same seed: two of them, seeded once, write the same "random" answers, so
# several of them in one program are no independent samples.
#
# Output seen: same generator, seed set before each of three calls: three different answers; two
# new generators, seed set once before both: equal answers.
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


def answers(model):
    results = model.generate_batch([PROMPT] * 8, max_length=12, sampling_topk=0)
    return [result.sequences_ids[0] for result in results]


model = ctranslate2.Generator("model", intra_threads=1)
seeded = []
for _ in range(3):
    ctranslate2.set_random_seed(5)
    seeded.append(answers(model))
print("one generator, seeded each time, equal:", seeded[0] == seeded[1], seeded[0] == seeded[2])
ctranslate2.set_random_seed(6)
pair = [answers(ctranslate2.Generator("model", intra_threads=1)) for _ in range(2)]
print("two generators, seeded once, equal:", pair[0] == pair[1])
differ = seeded[0] != seeded[1] and seeded[0] != seeded[2]
sys.exit(0 if differ and pair[0] == pair[1] else 1)
PYTHON
