#!/bin/sh
# mlx-lm 0.32.2 (mlx 0.32.4 on a CPU): with a draft model, penalties forget the prompt, and greedy
# answers change.
#
# Expected: speculative decoding in MLX keeps the token that the target chooses itself, so a
# greedy answer is that of plain decoding, with a repetition penalty too.
# Is: in `generate_step` a logits processor is shown the whole prompt, in
# `speculative_generate_step` its last token only. Repetition, presence and frequency penalties
# therefore do not count what the prompt says, and the answer differs even if the draft is the
# target itself. Without a processor, or with a bias, answers are equal.
#
# Output seen: no processor: equal; repetition penalty 1.3: different; the processor's first call
# is shown [3, 1, 4, 1, 5, 9, 2, 6] in plain decoding, [6] with a draft.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv || exit 2
venv/bin/pip install -q mlx-lm==0.32.2 'mlx[cpu]==0.32.4' || exit 2
venv/bin/python - <<'PYTHON'
import sys

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.qwen2 import Model, ModelArgs
from mlx_lm.sample_utils import make_logits_processors

mx.set_default_device(mx.cpu)
mx.random.seed(0)
arguments = ModelArgs(
    model_type="qwen2", hidden_size=32, num_hidden_layers=2, intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, vocab_size=12,
    tie_word_embeddings=False,
)
model = Model(arguments)
model.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.4, model.parameters()))
prompt = mx.array([3, 1, 4, 1, 5, 9, 2, 6])


def plain(processors):
    steps = generate_step(prompt, model, max_tokens=24, logits_processors=processors)
    return [int(token) for token, _ in steps]


def drafted(processors):
    steps = speculative_generate_step(
        prompt, model, model, num_draft_tokens=3, max_tokens=24,
        logits_processors=processors,
    )
    return [int(token) for token, _, _ in steps]


penalty = make_logits_processors(repetition_penalty=1.3)
without, with_penalty = plain(None) == drafted(None), plain(penalty) == drafted(penalty)
shown = []


def watch(tokens, logits):
    shown.append(tokens.tolist())
    return logits


plain([watch])
first_plain = shown[0]
shown.clear()
drafted([watch])
print("equal without a processor:", without, "; with a penalty:", with_penalty)
print("a processor is first shown", first_plain, "; with a draft", shown[0])
as_described = first_plain == prompt.tolist() and shown[0] == [6]
sys.exit(0 if without and not with_penalty and as_described else 1)
PYTHON
