"""One engine in a process of its own, for `speed.py`: loads, then answers line by line.

Its argument is JSON: engine, way, target, draft, weights, threads, program. It writes
{"load", "version"}, then for each line {"question", "ids", "tokens"} a line
{"first", "seconds", "written", "peak"}. `ids` are the prompt's, with the question in
it; `first`: seconds of an answer of one token, prompt read anew each time. Only the
engine that is asked for is imported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
Write = Callable[[Settings, int], list[int]]
"""(a line of the input, most tokens) -> the ids that the engine writes, greedily."""

PATIENCE = 600  # seconds that a server may take to load


def lr(settings: Settings) -> tuple[Write, str, int]:
    """This project."""
    import torch

    from lr import __version__
    from lr.reasoner import Reasoner

    torch.set_num_threads(settings["threads"])
    way, weights = settings["way"], settings["weights"]
    target = f"{weights}:{settings['target']}" if weights else settings["target"]
    draft = f"int4:{settings['draft']}" if way == "draft" else None
    reasoner = Reasoner(target, draft, dtype=torch.bfloat16)
    options: dict[str, Settings] = {
        "plain": {"mode": "ar"},
        "n-grams": {"mode": "sd", "drafter": "ngram"},
        "draft": {
            "mode": "sd",
            "drafter": "draft",
            "num_speculative_tokens": 16,
            "draft_confidence": 0.7,
        },
    }

    def write(asked: Settings, tokens: int) -> list[int]:
        result = reasoner.generate(
            asked["question"], temperature=0.0, max_tokens=tokens, **options[way]
        )
        return list(result.tokens)

    return write, __version__, os.getpid()


def transformers(settings: Settings) -> tuple[Write, str, int]:
    """`generate` with prompt lookup or assisted generation; draft in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(settings["threads"])

    def load(path: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        return model.eval()

    model = load(settings["target"])
    extra: Settings = {}
    if settings["way"] == "n-grams":
        extra["prompt_lookup_num_tokens"] = 10
    if settings["way"] == "draft":
        extra["assistant_model"] = load(settings["draft"])

    def write(asked: Settings, tokens: int) -> list[int]:
        ids = torch.tensor([asked["ids"]])
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            **extra,
        )
        answer: list[int] = written[0, ids.shape[1] :].tolist()
        return answer

    return write, version("transformers"), os.getpid()


def openvino(settings: Settings) -> tuple[Write, str, int]:
    """OpenVINO GenAI on exported models; no prompt is kept from call to call."""
    import numpy as np
    import openvino as ov  # type: ignore[import-not-found]
    import openvino_genai as genai  # type: ignore[import-not-found]

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 1 << 20
    limits = {"INFERENCE_NUM_THREADS": settings["threads"]}
    extra: Settings = dict(limits, scheduler_config=scheduler)
    way = settings["way"]
    if way == "draft":
        extra["draft_model"] = genai.draft_model(settings["draft"], "CPU", **limits)
    if way == "n-grams":
        extra["prompt_lookup"] = True
    pipeline = genai.LLMPipeline(settings["target"], "CPU", **extra)

    def write(asked: Settings, tokens: int) -> list[int]:
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.set_eos_token_id(settings["ends"][0])
        config.stop_token_ids = set(settings["ends"])
        if way != "plain":
            config.num_assistant_tokens = 5
        if way == "n-grams":
            config.max_ngram_size = 3
        ids = ov.Tensor(np.array([asked["ids"]], dtype=np.int64))
        return list(pipeline.generate(ids, config).tokens[0])

    return write, version("openvino-genai"), os.getpid()


def llama(settings: Settings) -> tuple[Write, str, int]:
    """llama.cpp's own server, asked over HTTP, without its cache of prompts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = settings["threads"]
    words = f"-c 4096 -np 1 -t {threads} -tb {threads} --no-ui --port {port}".split()
    if settings["way"] == "n-grams":
        words += ["--spec-type", "ngram-simple"]
    if settings["way"] == "draft":
        words += ["--spec-type", "draft-simple", "-md", settings["draft"]]
        words += f"--spec-draft-n-max 16 --spec-draft-p-min 0.7 -td {threads}".split()
    if settings["weights"] or settings["way"] == "draft":
        words.append("--no-repack")  # few bits in AMX's order: an illegal instruction
    command = [settings["program"], "-m", settings["target"], *words]
    log = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the server)
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"

    def ask(path: str, content: Settings | None = None) -> Settings:
        data = None if content is None else json.dumps(content).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(address + path, data, kind)
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            answer: Settings = json.load(reply)
        return answer

    ready = False
    end = time.monotonic() + PATIENCE
    while not ready:
        if server.poll() is not None or time.monotonic() > end:
            log.seek(0)
            text = log.read().decode(errors="replace")
            raise RuntimeError(f"{command} does not serve: ...{text[-500:]}")
        time.sleep(0.02)
        with suppress(urllib.error.URLError, ConnectionError):
            ready = ask("/health").get("status") == "ok"

    def write(asked: Settings, tokens: int) -> list[int]:
        answer = ask(
            "/completion",
            {
                "prompt": asked["ids"],
                "n_predict": tokens,
                "temperature": 0.0,
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        return list(answer["tokens"])

    told: str = ask("/props").get("build_info", "unknown")
    return write, told, server.pid


ENGINES = {"lr": lr, "transformers": transformers, "llama": llama, "openvino": openvino}


def peak(process: int) -> int:
    """The largest resident memory of a process so far, in bytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("no VmHWM in /proc: this needs Linux")


def main() -> None:
    """Load, say so, and answer until the input ends."""
    settings = json.loads(sys.argv[1])
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes elsewhere
    start = time.perf_counter()
    write, told, process = ENGINES[settings["engine"]](settings)
    load = time.perf_counter() - start
    try:
        print(json.dumps({"load": load, "version": told}), file=say)
        for line in sys.stdin:
            asked = json.loads(line)
            begun = time.perf_counter()
            write(asked, 1)
            first = time.perf_counter() - begun
            begun = time.perf_counter()
            written = write(asked, asked["tokens"])
            seconds = time.perf_counter() - begun
            facts = {"first": first, "seconds": seconds, "written": written}
            print(json.dumps({**facts, "peak": peak(process)}), file=say)
    finally:
        if process != os.getpid():
            os.kill(process, 9)


if __name__ == "__main__":
    main()
