#!/bin/sh
# llama-cpp-python 0.3.36: with prompt lookup a logits processor is shown tokens that were never
# generated, and greedy answers change.
#
# Expected: `draft_model=LlamaPromptLookupDecoding()` changes the speed and no greedy answer. The
# processor below has no state: it forbids the token that came last.
# Is: while drafts are verified, the processor gets the prompt, the answer AND all drafts of the
# round, also those after the position that is being decided. So "the last token" is a draft,
# and the answer repeats a token where plain decoding never does. Penalties of the library
# itself are right; only processors of the user's see this.
#
# Output seen (a random model of 270 tokens): plain and lookup answers differ; the processor is
# called with 12, 13, 14, ... tokens in plain decoding, with up to six more under lookup.
# The package is built from source: a C++ compiler and about ten minutes are needed.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv || exit 2
venv/bin/pip install -q llama-cpp-python==0.3.36 gguf==0.19.0 numpy==2.4.6 || exit 2
venv/bin/python - <<'PYTHON'
import itertools
import sys

import numpy as np
from gguf import GGUFWriter
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

SIZE, WIDTH = 270, 32
random = np.random.default_rng(0)


def matrix(*shape):
    return (random.standard_normal(shape) * 0.3).astype(np.float32)


writer = GGUFWriter("tiny.gguf", "llama")
writer.add_context_length(256)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(WIDTH)
writer.add_head_count(4)
writer.add_head_count_kv(4)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_vocab_size(SIZE)
writer.add_rope_dimension_count(WIDTH // 4)
letters = [f"<0x{byte:02X}>" for byte in range(256)]
words = [f"t{index}" for index in range(SIZE - 259)]
writer.add_tokenizer_model("llama")
writer.add_token_list(["<unk>", "<s>", "</s>", *letters, *words])
writer.add_token_scores([0.0] * SIZE)
writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_unk_token_id(0)
writer.add_tensor("token_embd.weight", 3 * matrix(SIZE, WIDTH))
writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
writer.add_tensor("output.weight", matrix(SIZE, WIDTH))
for name in ("attn_norm", "ffn_norm"):
    writer.add_tensor(f"blk.0.{name}.weight", np.ones(WIDTH, np.float32))
for name in "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split():
    writer.add_tensor(f"blk.0.{name}.weight", matrix(WIDTH, WIDTH))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

PROMPT = [1] + [70, 71, 72, 73] * 2 + [70, 71, 72]
lengths = []


def forbid_the_last(ids, scores):
    lengths.append(len(ids))
    scores = np.copy(scores)
    scores[ids[-1]] = -1e9
    return scores


def answer(drafts):
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=drafts) if drafts else None
    model = Llama("tiny.gguf", n_ctx=256, n_threads=1, logits_all=True, verbose=False,
                  draft_model=lookup)
    processors = LogitsProcessorList([forbid_the_last])
    tokens = model.generate(PROMPT, temp=0.0, repeat_penalty=1.0,
                            logits_processor=processors)
    lengths.clear()
    found = list(itertools.islice(tokens, 60))
    print("with lookup:" if drafts else "plain:", found)
    print("   the processor saw", lengths[:16], "tokens")
    return found, list(lengths)


plain, plain_lengths = answer(0)
lookup, lookup_lengths = answer(5)
in_order = plain_lengths == list(range(12, 12 + len(plain_lengths)))
shown_drafts = lookup_lengths != list(range(12, 12 + len(lookup_lengths)))
sys.exit(0 if plain != lookup and in_order and shown_drafts else 1)
PYTHON
