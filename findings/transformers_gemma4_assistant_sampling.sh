#!/bin/sh
# transformers 5.24.0: Gemma 4 with its assistant does not sample from the target.
#
# Expected: assisted generation with `do_sample=True` is lossless, as it is with a draft model.
# Is: the assistant's drafts are the LIKELIEST tokens of its law, and the test that follows
# treats them as drawn from that law: a draft x is kept with min(1, p(x) / q(x)), where p(x)
# would be right. Filters of the call do not reach the assistant either. Greedy answers are
# right.
#
# Output seen (random models of three tokens, one draft a round, 1,000 answers): total variation
# of the first two tokens to the target's law: plain 0.033, with the assistant 0.439 (by chance 0.03).
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 transformers==5.24.0 || exit 2
venv/bin/python - <<'PYTHON'
import sys

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)
from transformers.utils import logging

logging.set_verbosity_error()
shape = dict(
    vocab_size=3, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"], num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, global_head_dim=8, sliding_window=32,
    initializer_range=0.1, vocab_size_per_layer_input=0, hidden_size_per_layer_input=0,
    bos_token_id=None, eos_token_id=None,
)
torch.manual_seed(0)
torch.set_num_threads(1)
target = Gemma4ForCausalLM(Gemma4TextConfig(**shape)).eval()
text = Gemma4TextConfig(num_kv_shared_layers=2, **shape)
assistant = Gemma4AssistantForCausalLM(
    Gemma4AssistantConfig(text_config=text, backbone_hidden_size=16)
).eval()
for model in (target, assistant):
    model.generation_config.eos_token_id = None
    model.generation_config.num_assistant_tokens = 1
prompt = torch.tensor([[1, 2, 1, 0]])
with torch.no_grad():
    first = target(prompt).logits[0, -1].softmax(-1)
    laws = torch.zeros(3, 3)  # of the first two tokens
    for token in range(3):
        longer = torch.cat([prompt, torch.tensor([[token]])], 1)
        laws[token] = first[token] * target(longer).logits[0, -1].softmax(-1)


def distance(**options):
    counts = torch.zeros(3, 3)
    for _ in range(1000):
        answer = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3,
            do_sample=True, top_k=0, **options,
        )
        counts[answer[0, 4], answer[0, 5]] += 1
    return float((counts / counts.sum() - laws).abs().sum() / 2)


plain, assisted = distance(), distance(assistant_model=assistant)
print(f"plain {plain:.3f}, with the assistant {assisted:.3f}")
sys.exit(0 if plain < 0.07 and assisted > 0.15 else 1)
PYTHON
