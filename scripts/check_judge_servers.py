"""Our judge against real servers: `transformers serve` and llama-cpp-python's.

    pip install "transformers[serving]" "llama-cpp-python[server]" gguf
    python scripts/check_judge_servers.py

The model is made here: whatever it reads, it writes "[aligned]" with probability 0.74
and "[u..." with 0.26, so the score of a server with log-probabilities is 0.74. For
each server the table says what the judge made of a pair, of a name that the server does
not know, and of no name."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import gguf
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lr.errors import LRError
from lr.measure.judge_server import ServedJudge
from lr.model.codec import Codec
from lr.spec.verifiers.base import Pair
from lr.types import Finish, Step, Verdict

SHAPE = Qwen2Config(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
    layer_types=["full_attention"],
)  # fmt: skip
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
    "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
    "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
    "model.layers.0.input_layernorm": "blk.0.attn_norm",
    "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
}


def make_model() -> tuple[Any, Any]:
    """A model whose next token depends on the last one only, and its tokenizer."""
    tokenizer = Codec.load("tiny-target").tokenizer
    SHAPE.vocab_size = len(tokenizer)
    SHAPE.eos_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(SHAPE).float()
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        embedding = model.model.embed_tokens.weight.normal_()  # [v, d]
        head = model.lm_head.weight.zero_()  # [v, d]
        newline = tokenizer.encode("assistant\n")[-1]
        chain = [newline, *tokenizer.encode("[aligned]"), tokenizer.eos_token_id]
        for last, following in pairwise(chain):
            # about logit 30 for the next token, 0 +- 4 for the others
            head[following] += 30 / 64 * embedding[last]
        bracket, first = chain[1:3]
        head[tokenizer.encode("u")] = (30 - log(3)) / 30 * head[first]
        assert bracket not in chain[2:]
    return model.eval(), tokenizer


def write_gguf(model: Qwen2ForCausalLM, tokenizer: Any, path: Path) -> None:
    """The same model in the format of llama.cpp."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(SHAPE.max_position_embeddings)
    writer.add_embedding_length(SHAPE.hidden_size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(SHAPE.intermediate_size)
    writer.add_head_count(SHAPE.num_attention_heads)
    writer.add_head_count_kv(SHAPE.num_key_value_heads)
    writer.add_layer_norm_rms_eps(SHAPE.rms_norm_eps)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    special = set(tokenizer.all_special_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for _, token in vocabulary])
    writer.add_token_merges(["Ā Ā"])  # there are none, and the list may not be empty
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        writer.add_tensor(f"{GGUF_NAMES[module]}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def describe(verdict: Verdict) -> str:
    """A verdict in a row of the table."""
    outcome = "no verdict" if verdict.failed else f"aligned {verdict.aligned}"
    return f"{outcome}, score {verdict.score}, {verdict.why}"


def check(name: str, command: list[str], model: str, tokenizer: Any) -> bool:
    """Start the server, ask it, print a row for each question. Whether it accepts."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    steps = [
        Step(tuple(tokenizer.encode(text)), Finish.BOUNDARY)
        for text in ("So 7 + 3 = 10.", "It is 10.")
    ]
    pair = Pair((), draft_step=steps[0], own_step=steps[1])
    accepts = False
    with tempfile.TemporaryFile() as log_file:
        server = subprocess.Popen(command, stdout=log_file, stderr=log_file)
        try:
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline and server.poll() is None:
                try:
                    urlopen(f"{url}/v1/models", timeout=5).close()
                    break
                except (URLError, OSError):
                    time.sleep(1)
            for case, asked in (("its name", model), ("unknown", "x"), ("none", None)):
                try:
                    judge = ServedJudge(url, tokenizer.decode, model=asked, attempts=1)
                    verdict = judge.judge([pair])[0]
                    shown = f"form {judge.form}, {describe(verdict)}"
                    accepts |= case == "its name" and verdict.aligned
                except LRError as error:
                    shown = f"{type(error).__name__}: {error}"
                print(f"{name:16} | {case:8} | {shown}", flush=True)
        finally:
            server.terminate()
            server.wait(30)
        if not accepts:
            log_file.seek(0)
            print(log_file.read().decode(errors="replace")[-3000:])
    return accepts


def main() -> int:
    """Check both; the exit code is 0 if both accept."""
    model, tokenizer = make_model()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "judge")
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        settings = {"do_sample": False, "eos_token_id": tokenizer.eos_token_id}
        checkpoint.joinpath("generation_config.json").write_text(json.dumps(settings))
        file = Path(folder, "judge.gguf")
        write_gguf(model, tokenizer, file)
        scripts = Path(sys.executable).parent
        results = [
            check(
                "transformers",
                [str(scripts / "transformers"), "serve", "--device", "cpu"],
                str(checkpoint),
                tokenizer,
            ),
            check(
                "llama-cpp-python",
                [sys.executable, "-m", "llama_cpp.server", "--model", str(file)],
                str(file),
                tokenizer,
            ),
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
