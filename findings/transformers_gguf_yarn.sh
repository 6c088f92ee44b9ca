#!/bin/sh
# transformers 5.24.0 reading a GGUF file: YaRN is dropped, the long context stays.
#
# Expected: the keys rope.scaling.type = yarn, .factor = 4, .original_context_length = 4096 become
# rope_parameters of type yarn, as in the model's own config.json; or a warning.
# Is: only rope.freq_base is read. The configuration says rope_type "default" and
# max_position_embeddings 16384 (the stretched context), without a word: the rotary embeddings
# turn unscaled, so the same weights give other logits than from safetensors, at every position.
#
# Output seen: stored: yarn, 4.0, 4096, context 16384; read: default, no factor, context 16384;
# frequencies as without YaRN: True, as with it: False
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 transformers==5.24.0 gguf==0.19.0 accelerate==1.15.0 || exit 2
venv/bin/python - <<'PYTHON'
import sys
import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

writer = gguf.GGUFWriter("model.gguf", "qwen2")
writer.add_context_length(16384)
writer.add_embedding_length(32)
writer.add_block_count(1)
writer.add_feed_forward_length(64)
writer.add_head_count(4)
writer.add_head_count_kv(2)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_rope_freq_base(10_000.0)
writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
writer.add_rope_scaling_factor(4.0)
writer.add_rope_scaling_orig_ctx_len(4096)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("qwen2")
writer.add_token_list([f"t{i}" for i in range(64)])
writer.add_token_types([1] * 64)
writer.add_token_merges(["t 1"])
writer.add_eos_token_id(0)
noise = np.random.default_rng(0)
shapes = {
    "token_embd.weight": (64, 32), "output_norm.weight": (32,), "output.weight": (64, 32),
    "blk.0.attn_norm.weight": (32,), "blk.0.ffn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32), "blk.0.attn_q.bias": (32,),
    "blk.0.attn_k.weight": (16, 32), "blk.0.attn_k.bias": (16,),
    "blk.0.attn_v.weight": (16, 32), "blk.0.attn_v.bias": (16,),
    "blk.0.attn_output.weight": (32, 32), "blk.0.ffn_gate.weight": (64, 32),
    "blk.0.ffn_up.weight": (64, 32), "blk.0.ffn_down.weight": (32, 64),
}
for name, shape in shapes.items():
    writer.add_tensor(name, noise.normal(size=shape).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

config = AutoConfig.from_pretrained(".", gguf_file="model.gguf")
rope = config.rope_parameters
kind, factor = rope["rope_type"], rope.get("factor")
print("stored: yarn, 4.0, 4096, context 16384")
print(f"read: {kind}, {factor or 'no factor'}, context {config.max_position_embeddings}")
model = AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf")
frequencies = model.model.rotary_emb.inv_freq
sizes = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16384,
)
yarn = dict(rope_theta=10_000.0, rope_type="yarn", factor=4.0,
            original_max_position_embeddings=4096)
plain, scaled = (
    Qwen2ForCausalLM(Qwen2Config(**sizes, rope_parameters=parameters)).model.rotary_emb.inv_freq
    for parameters in (dict(rope_theta=10_000.0, rope_type="default"), yarn)
)
unscaled, as_stored = torch.equal(frequencies, plain), torch.equal(frequencies, scaled)
print(f"frequencies as without YaRN: {unscaled}, as with it: {as_stored}")
dropped = kind == "default" and factor is None and config.max_position_embeddings == 16384
sys.exit(0 if dropped and unscaled and not as_stored else 1)
PYTHON
