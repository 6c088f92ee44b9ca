"""Is a peer's speculative decoding lossless? Every random choice of its own code, enumerated.

    python scripts/peers/law.py [transformers] [lmdeploy] [sglang] [vllm]

The peers are patched from outside: a draw of `torch.multinomial` becomes a branch of a tree, with
its probability, and so does each comparison of a number of `torch.rand` with a threshold. The
peer runs once per leaf. What comes out is the exact law of its first tokens; printed is its total
variation distance to the law of the target's own decoding. Models are tiny and random.

The script makes an environment of its own in a temporary folder (`--venv DIR` keeps it), with the
versions below, and runs itself there. Nothing is installed anywhere else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import types
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

Law = dict[Any, float]  # of an outcome: its probability
Runs = Callable[[list[int], list, Any], Law]  # drafts, p rows, q rows -> law of the run

TORCH = ["torch==2.13.0", "numpy"]
PACKAGES = {
    "transformers": ["transformers==5.24.0"],
    "lmdeploy": [],
    "sglang": ["triton==3.9.0"],
    "vllm": ["triton==3.9.0"],
}
# Wheels that are unpacked and not installed: of these one file each is run as it is.
WHEELS = {
    "lmdeploy": "lmdeploy==0.18.0",
    "sglang": "sglang==0.5.23",
    "vllm": "vllm==0.33.0",
}


# --- the enumerator -----------------------------------------------------------------------------


class Tree:
    """The choices of one run, and the next run's: depth first, impossible branches left out."""

    def __init__(self) -> None:
        # Of one run: the possible outcomes with their weights, the index of the one taken.
        self.path: list[tuple[list[tuple[int, float]], int]] = []
        self.depth = 0

    def choose(self, probabilities: Sequence[float]) -> int:
        """An outcome's index. The first run takes the first one, later runs the others."""
        if self.depth == len(self.path):
            possible = [
                (outcome, probability)
                for outcome, probability in enumerate(probabilities)
                if probability > 0
            ]
            self.path.append((possible, 0))
        possible, taken = self.path[self.depth]
        self.depth += 1
        return possible[taken][0]

    def probability(self) -> float:
        """Of the leaf that this run came to."""
        product = 1.0
        for possible, taken in self.path:
            total = sum(probability for _, probability in possible)
            product *= possible[taken][1] / total
        return product

    def advance(self) -> bool:
        """Go to the next leaf; False after the last one."""
        self.depth = 0
        while self.path:
            possible, taken = self.path[-1]
            if taken + 1 < len(possible):
                self.path[-1] = (possible, taken + 1)
                return True
            self.path.pop()
        return False


def uniform_class(tree: Tree) -> Any:
    """Numbers of `torch.rand` that know one thing only: how they compare with a threshold."""
    import torch

    class Uniform(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = function.__name__.strip("_")
            if name not in ("le", "lt", "ge", "gt"):
                return super().__torch_function__(function, types, args, kwargs or {})
            is_left = isinstance(args[0], cls)
            threshold = torch.as_tensor(
                args[1] if is_left else args[0], dtype=torch.float64
            )
            # u <= t and t >= u are true with probability t, the other two with 1 - t.
            below = is_left == (name in ("le", "lt"))
            chance = threshold.clamp(0, 1).as_subclass(torch.Tensor)
            chance = chance if below else 1 - chance
            flat = [tree.choose([t, 1 - t]) == 0 for t in chance.flatten().tolist()]
            return torch.tensor(flat).reshape(chance.shape)

    return Uniform


@contextlib.contextmanager
def every_draw_from(tree: Tree) -> Iterator[None]:
    """Replace torch's random functions by choices of the tree."""
    import torch

    uniform = uniform_class(tree)
    before: dict[tuple[Any, str], Any] = {
        (torch, "multinomial"): torch.multinomial,
        (torch, "rand"): torch.rand,
        (torch, "rand_like"): torch.rand_like,
        (torch.Tensor, "exponential_"): torch.Tensor.exponential_,
        (torch.Tensor, "argmax"): torch.Tensor.argmax,
    }
    races: list[Any] = []

    def multinomial(input: Any, num_samples: int, *_: Any, **__: Any) -> Any:
        assert num_samples == 1, "only single draws are enumerated"
        rows = input.double().reshape(-1, input.shape[-1]).tolist()
        drawn = [tree.choose(row) for row in rows]
        return torch.tensor(drawn).reshape(*input.shape[:-1], 1)

    def rand(*size: Any, **options: Any) -> Any:
        options.pop("device", None)
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return torch.zeros(*size, **options).as_subclass(uniform)

    def rand_like(input: Any, **_: Any) -> Any:
        return torch.zeros_like(input).as_subclass(uniform)

    # A race: the index of the largest of weight / exponential is drawn as the weights say.
    def exponential_(self: Any, *_: Any, **__: Any) -> Any:
        races.append(self.shape)
        return self.fill_(1.0)

    def argmax(self: Any, *args: Any, **options: Any) -> Any:
        if not races:
            return before[torch.Tensor, "argmax"](self, *args, **options)
        races.pop()
        rows = self.double().reshape(-1, self.shape[-1]).tolist()
        # No weight at all: the peer's own argmax takes the first index.
        drawn = [tree.choose(row) if sum(row) > 0 else 0 for row in rows]
        return torch.tensor(drawn).reshape(self.shape[:-1])

    changed: dict[tuple[Any, str], Any] = {
        (torch, "multinomial"): multinomial,
        (torch, "rand"): rand,
        (torch, "rand_like"): rand_like,
        (torch.Tensor, "exponential_"): exponential_,
        (torch.Tensor, "argmax"): argmax,
    }
    for (owner, name), function in changed.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)


def law(run: Callable[[], Any]) -> Law:
    """The law of what `run()` returns: {outcome: probability}."""
    tree = Tree()
    outcomes: Law = defaultdict(float)
    with every_draw_from(tree):
        while True:
            outcome = run()
            outcomes[outcome] += tree.probability()
            if not tree.advance():
                return dict(outcomes)


def total_variation(law_1: Law, law_2: Law) -> float:
    """Half the sum of the differences."""
    outcomes = set(law_1) | set(law_2)
    return sum(abs(law_1.get(x, 0) - law_2.get(x, 0)) for x in outcomes) / 2


def show(peer: str, what: str, distance: float, note: str = "") -> None:
    """Print a row of the table."""
    print(f"{peer:<14} {what:<58} {distance:.1e}  {note}", flush=True)


# --- transformers: whole answers of tiny models -------------------------------------------------

LENGTH = 3  # of the tokens that are looked at


def tiny_qwen(seed: int, vocabulary: int = 3, layers: int = 2) -> Any:
    """A random model; a large spread of the weights makes its law uneven."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return without_rules(Qwen2ForCausalLM(config))


def without_rules(model: Any) -> Any:
    """No filter and no end of sequence unless a check asks for it; two drafts a round."""
    model.eval()
    model.generation_config.do_sample = True
    model.generation_config.top_k = 0
    model.generation_config.eos_token_id = None
    model.generation_config.num_assistant_tokens = 2
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


def tiny_gemma(seed: int) -> Any:
    """A target of Gemma 4 and the assistant that is made for it."""
    import torch
    from transformers import (
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4ForCausalLM,
        Gemma4TextConfig,
    )

    shape: Any = {
        "vocab_size": 3,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 8,
        "sliding_window": 32,
        "initializer_range": 0.1,
        "vocab_size_per_layer_input": 0,
        "hidden_size_per_layer_input": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    target = Gemma4ForCausalLM(Gemma4TextConfig(**shape))
    text = Gemma4TextConfig(num_kv_shared_layers=2, **shape)
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=16)
    return without_rules(target), without_rules(Gemma4AssistantForCausalLM(config))


def words(vocabulary: list[str]) -> Any:
    """A tokenizer whose tokens are the words of the vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=vocabulary[0])


PROMPT = (1, 2, 1, 0)


def first_tokens(model: Any, options: dict[str, Any]) -> Law:
    """The law of what `generate` writes first, with these options."""
    import torch

    def run() -> tuple[int, ...]:
        ids = torch.tensor([PROMPT])
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH,
            do_sample=True,
            **options,
        )
        return tuple(answer[0, len(PROMPT) :].tolist())

    return law(run)


def softmax_chain(model: Any) -> Law:
    """The target's law from its logits alone, without `generate`."""
    import torch

    laws: Law = {(): 1.0}
    for _ in range(LENGTH):
        longer: Law = {}
        for tokens, probability in laws.items():
            with torch.no_grad():
                logits = model(torch.tensor([PROMPT + tokens])).logits[0, -1]
            for token, chance in enumerate(logits.double().softmax(-1).tolist()):
                longer[(*tokens, token)] = probability * chance
        laws = longer
    return laws


def check_transformers() -> None:
    """Whole answers: assisted generation, prompt lookup, early exit, other vocabularies."""
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    peer = f"{transformers.__version__}"
    target = tiny_qwen(0)
    draft = tiny_qwen(1)
    plain = first_tokens(target, {})
    distance = total_variation(plain, first_tokens(draft, {}))
    print(f"transformers {peer}; target and draft are {distance:.2f} apart")
    show(
        peer,
        "plain generate against the softmax of its logits",
        total_variation(plain, softmax_chain(target)),
    )
    filters: dict[str, dict[str, Any]] = {
        "temperature 0.5": {"temperature": 0.5},
        "top-k 2": {"top_k": 2},
        "top-p 0.7": {"top_p": 0.7},
        "min-p 0.3": {"min_p": 0.3},
        "typical-p 0.6": {"typical_p": 0.6},
        "epsilon cut-off 0.2": {"epsilon_cutoff": 0.2},
        "eta cut-off 0.2": {"eta_cutoff": 0.2},
        "top-h 0.4": {"top_h": 0.4},
        "repetition penalty 1.5": {"repetition_penalty": 1.5},
        "no repeated triple": {"no_repeat_ngram_size": 3},
        "two-token bias": {"sequence_bias": [[[1, 2], 1.5], [[0], -0.5]]},
        "bad words of two tokens": {"bad_words_ids": [[1, 2], [0, 0]]},
        "length penalty, growing": {"exponential_decay_length_penalty": (1, 1.5),
                                        "eos_token_id": 0},
        "two ends of sequence": {"eos_token_id": [0, 2]},
        "at least two tokens": {"min_new_tokens": 2, "eos_token_id": 0},
    }  # fmt: skip
    ways = {
        "draft model": {"assistant_model": draft},
        "prompt lookup": {"prompt_lookup_num_tokens": 2},
        "early exit": {"assistant_early_exit": 1},
    }
    for way, speculation in ways.items():
        show(peer, way, total_variation(plain, first_tokens(target, speculation)))
    for name, options in filters.items():
        own = first_tokens(target, options)
        for way, speculation in ways.items():
            if way == "early exit":
                continue
            try:
                with_way = first_tokens(target, {**options, **speculation})
            except Exception as problem:
                print(f"{peer:<14} {way}, {name}: {type(problem).__name__}: {problem}")
                continue
            show(peer, f"{way}, {name}", total_variation(own, with_way))

    sure = tiny_qwen(1)
    sure.generation_config.assistant_confidence_threshold = 0.6
    show(
        peer,
        "draft model that stops when unsure",
        total_variation(plain, first_tokens(target, {"assistant_model": sure})),
    )
    show(
        peer,
        "assistant_ensemble_weight 0.5 (lossy by design)",
        total_variation(
            plain,
            first_tokens(
                target, {"assistant_model": draft, "assistant_ensemble_weight": 0.5}
            ),
        ),
    )

    # The draft has another vocabulary: five words, of which four are the target's.
    wide, other = tiny_qwen(2, vocabulary=4), tiny_qwen(3, vocabulary=5)
    options = {
        "assistant_model": other,
        "tokenizer": words(["a", "b", "c", "d"]),
        "assistant_tokenizer": words(["a", "b", "c", "x", "d"]),
    }
    own = first_tokens(wide, {})
    other_words = total_variation(own, first_tokens(wide, options))
    show(peer, "universal: a draft with a word that the target lacks", other_words)

    target, assistant = tiny_gemma(0)
    own = first_tokens(target, {})
    with_draft = first_tokens(target, {"assistant_model": assistant})
    show(
        peer,
        "Gemma 4 with its assistant",
        total_variation(own, with_draft),
        "its drafts are the likeliest tokens, tested as if drawn",
    )


# --- samplers as functions: one context, two drafts, then a bonus token ---------------------------

FIRST = [0.5, 0.3, 0.2]  # the target's law of the first token
NEXT = [[0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.8, 0.1, 0.1]]  # after each first token
LAST = [0.4, 0.4, 0.2]
DRAFT_FIRST = [0.2, 0.2, 0.6]
DRAFT_NEXT = [[0.5, 0.25, 0.25], [0.6, 0.2, 0.2], [0.1, 0.45, 0.45]]


def target_law() -> Law:
    """The law of three tokens; the third one's is the same after any two."""
    return {
        (a, b, c): FIRST[a] * NEXT[a][b] * LAST[c]
        for a, b, c in itertools.product(range(3), repeat=3)
    }


def completed(tokens: tuple[int, ...], probability: float, laws: Law) -> None:
    """Add to `laws` a run of one to three tokens, continued as the target would."""
    for rest in itertools.product(range(3), repeat=3 - len(tokens)):
        answer = tokens + rest
        chance = probability
        if len(tokens) < 2:
            chance *= NEXT[answer[0]][answer[1]]
        if len(tokens) < 3:
            chance *= LAST[answer[2]]
        laws[answer] = laws.get(answer, 0) + chance


def with_every_draft(verify: Runs, *, is_drawn: bool) -> Law:
    """`verify(drafts, p rows, q rows)` gives a law of runs; drafts are drawn, or one fixed pair."""
    laws: Law = {}
    for a, b in itertools.product(range(3), repeat=2):
        weight = (
            DRAFT_FIRST[a] * DRAFT_NEXT[a][b] if is_drawn else float((a, b) == (2, 1))
        )
        if weight:
            runs = verify([a, b], [FIRST, NEXT[a], LAST], [DRAFT_FIRST, DRAFT_NEXT[a]])
            for tokens, probability in runs.items():
                completed(tokens, weight * probability, laws)
    return laws


def check_lmdeploy(folder: Path) -> None:
    """The sampler of its portable backend, in plain torch."""
    import torch

    backends = folder / "lmdeploy/pytorch/backends"
    # Its file imports its neighbours by relative names; these packages stay empty.
    for name in ("lmd", "lmd.default"):
        package = types.ModuleType(name)
        package.__path__ = [  # an attribute of packages
            str(backends if name == "lmd" else backends / "default")
        ]
        sys.modules[name] = package
    base = types.ModuleType("lmd.base")  # its own imports the whole engine
    base.BuildSpec = list  # type: ignore[attr-defined]  # a generic class, not used here
    sys.modules["lmd.base"] = base
    sampler = importlib.import_module("lmd.default.rejection_sampling")
    verifier = sampler.DefaultRejectionSamplingImpl()

    def runs(drafts: list[int], p: list, q: Any) -> Law:
        def run() -> tuple[int, ...]:
            bonus = torch.multinomial(torch.tensor([p[2]]), 1).flatten()
            out, _, _ = verifier.forward(
                torch.tensor([p[:2]]).log(),
                torch.tensor([drafts]),
                bonus,
                is_greedy=None,
                draft_probs=None if q is None else torch.tensor([q]),
            )
            return tuple(token for token in out[0].tolist() if token >= 0)

        return law(run)

    drawn = with_every_draft(runs, is_drawn=True)
    fixed = with_every_draft(lambda d, p, q: runs(d, p, None), is_drawn=False)
    show("lmdeploy", "sampler, drawn drafts", total_variation(drawn, target_law()))
    show("lmdeploy", "sampler, drafts of no law", total_variation(fixed, target_law()))


HALVINGS = 16  # of a quarter: a boundary is known to four in a million


def steps(function: Callable[[float], Any]) -> Law:
    """The values of a function of one number in 0 to 1 that is constant in pieces: {value: length}.

    Quarters are looked at first; a change within one is found by halving.
    """
    lengths: Law = defaultdict(float)

    def add(low: float, below: Any, high: float, above: Any, halvings: int) -> None:
        if below == above or halvings == 0:
            lengths[below] += high - low
            return
        middle = (low + high) / 2
        between = function(middle)
        add(low, below, middle, between, halvings - 1)
        add(middle, between, high, above, halvings - 1)

    edges = [0.0, 0.25, 0.5, 0.75, 1.0]
    values = [function(min(edge, 1 - 1e-7)) for edge in edges]
    for part in range(4):
        low, high = edges[part : part + 2]
        add(low, values[part], high, values[part + 1], HALVINGS)
    return dict(lengths)


def loaded(file: Path) -> Any:
    """One file of a peer, as a module."""
    spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of(drafts: list[int], lengths: Law, last_laws: dict[int, Law]) -> Law:
    """From the law of the number of accepted drafts to the law of the run."""
    laws: Law = {}
    for accepted, probability in lengths.items():
        for token, chance in last_laws[accepted].items():
            laws[(*drafts[:accepted], token)] = probability * chance
    return laws


def law_of_two_coins(outcome: Callable[[float, float], Any]) -> Law:
    """The law of `outcome(coin, coin)`; each coin is uniform."""
    laws: Law = defaultdict(float)

    def of_second(first: float) -> tuple[tuple[Any, float], ...]:
        found = steps(lambda second: outcome(first, second))
        return tuple(sorted(found.items()))

    for law_of_second, length in steps(of_second).items():
        for value, probability in law_of_second:
            laws[value] += length * probability
    return dict(laws)


def check_sglang(folder: Path) -> None:
    """Its Triton kernel in Triton's interpreter; where a coin switches is found by halving."""
    import torch

    file = folder / "sglang/kernels/ops/speculative/reject_sampling.py"
    module = loaded(file)

    def verify(
        drafts: list[int],
        p: list,
        q: Any,
        coins: tuple[float, float],
        last: float,
        by_block: bool,
    ) -> tuple[int, int]:
        predicts = torch.full((3,), -1, dtype=torch.int32)
        index = torch.full((1, 3), -1, dtype=torch.int32)
        count = torch.zeros(1, dtype=torch.int32)
        module.chain_speculative_sampling_triton(
            predicts=predicts,
            accept_index=index,
            accept_token_num=count,
            candidates=torch.tensor(
                [[0, *drafts]]
            ),  # slot 0 is the token before the drafts
            retrive_index=torch.tensor([[0, 1, 2]]),
            retrive_next_token=None,
            retrive_next_sibling=None,
            uniform_samples=torch.tensor([[*coins, 0.5]]),
            uniform_samples_for_final_sampling=torch.tensor([last]),
            target_probs=torch.tensor([p]),
            draft_probs=torch.tensor([q]),
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
            block_verification=by_block,
        )
        return int(count[0]), int(predicts[int(count[0])])

    for by_block in (False, True):

        def runs(drafts: list[int], p: list, q: Any, by_block: bool = by_block) -> Law:
            def outcome(
                first: float, second: float, last: float = 0.5
            ) -> tuple[int, int]:
                return verify(drafts, p, q, (first, second), last, by_block)

            examples: dict[int, tuple[float, float]] = {}

            def accepted(first: float, second: float) -> int:
                count = outcome(first, second)[0]
                examples[count] = (first, second)
                return count

            def last_token(coins: tuple[float, float], last: float) -> int:
                return outcome(*coins, last)[1]

            lengths = law_of_two_coins(accepted)
            last = {
                count: steps(partial(last_token, coins))
                for count, coins in examples.items()
            }
            return run_of(drafts, lengths, last)

        drawn = with_every_draft(runs, is_drawn=True)
        name = "by block" if by_block else "token by token"
        show("sglang", f"chain kernel, {name}", total_variation(drawn, target_law()))


def check_vllm(folder: Path) -> None:
    """The two kernels of its rejection sampler, in Triton's interpreter."""
    import torch
    import triton
    import triton.language

    file = folder / "vllm/v1/sample/rejection_sampler.py"
    # The kernels need Triton alone; what else the file imports is replaced by a dummy.
    for name in re.findall(
        r"^from (vllm[\w.]*) import", file.read_text(), re.MULTILINE
    ):
        sys.modules[name] = MagicMock()
    triton_utils = MagicMock(triton=triton, tl=triton.language)
    sys.modules["vllm.triton_utils"] = triton_utils
    sampler = loaded(file)

    def runs(drafts: list[int], p: list, q: Any) -> Law:
        ids = torch.tensor(drafts, dtype=torch.int32)
        ends = torch.tensor([2], dtype=torch.int32)
        p_rows = torch.tensor(p[:2])
        q_rows = None if q is None else torch.tensor(q)

        def accepted(*coins: float) -> int:
            out = torch.full((1, 3), -1, dtype=torch.int32)
            sampler.rejection_random_sample_kernel[(1,)](
                out, ends, ids, q_rows, p_rows,
                torch.tensor([[9]]), torch.tensor([7, 8], dtype=torch.int32),
                torch.tensor(coins, dtype=torch.float64), torch.tensor([False]), 2, 3, None,
                NO_DRAFT_PROBS=q is None, SYNTHETIC_MODE=False,
            )  # fmt: skip
            marks = [token for token in out[0].tolist() if token >= 7]
            return {7: 0, 8: 1, 9: 2}[marks[0]]

        def recovered(position: int, speeds: list[float]) -> int:
            """Who wins a race: token x runs at weight x times speed x."""
            out = torch.zeros(2, dtype=torch.int32)
            sampler.sample_recovered_tokens_kernel[(1, 2)](
                out, ends, ids, q_rows, p_rows, torch.tensor([speeds]), 3,
                BLOCK_SIZE=4, NO_DRAFT_PROBS=q is None, USE_FP64_GUMBEL=False,
            )  # fmt: skip
            return int(out[position])

        def weights(position: int) -> Law:
            """Of a race between exponentials: the winner is drawn by weight."""
            found = {}
            best = recovered(position, [1.0, 1.0, 1.0])
            for token in range(3):
                # Slow the heaviest token down until another one wins: the ratio of weights.
                if token == best:
                    found[token] = 1.0
                    continue
                others = [float(x == token) for x in range(3)]

                def still_wins(slow: float, others: list[float] = others) -> bool:
                    speeds = [slow if x == best else others[x] for x in range(3)]
                    return recovered(position, speeds) == best

                found[token] = steps(still_wins).get(False, 0.0)
            total = sum(found.values())
            return {token: weight / total for token, weight in found.items()}

        last = {0: weights(0), 1: weights(1), 2: dict(enumerate(p[2]))}
        return run_of(drafts, law_of_two_coins(accepted), last)

    drawn = with_every_draft(runs, is_drawn=True)
    fixed = with_every_draft(lambda d, p, q: runs(d, p, None), is_drawn=False)
    show(
        "vllm", "rejection sampler, drawn drafts", total_variation(drawn, target_law())
    )
    show("vllm", "rejection sampler, n-grams", total_variation(fixed, target_law()))


# --- an environment of its own ------------------------------------------------------------------


def unpacked(peer: str, folder: Path) -> Path:
    """The Python files of the peer's wheel, in a folder."""
    place = folder / peer
    if not place.exists():
        download = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        subprocess.run([*download, "--dest", str(folder), WHEELS[peer]], check=True)
        wheel = next(folder.glob(f"{peer}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(place, names)
    return place


def run_inside(peers: list[str], folder: Path) -> int:
    """Make the environment and run this file in it."""
    python = folder / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    packages = TORCH + [name for peer in peers for name in PACKAGES[peer]]
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *packages], check=True
    )
    command = [str(python), __file__, "--inside", "--venv", str(folder), *peers]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(command, env=environment).returncode


def main() -> int:
    """Print the rows of the peers that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PACKAGES))
    parser.add_argument("--venv", type=Path, help="keep the environment in this folder")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    peers = options.peers or list(PACKAGES)
    if unknown := set(peers) - set(PACKAGES):
        parser.error(
            f"unknown peer {min(unknown)!r}; choose from {', '.join(PACKAGES)}"
        )
    if not options.inside:
        with tempfile.TemporaryDirectory() as temporary:
            return run_inside(peers, (options.venv or Path(temporary)).resolve())
    if "transformers" in peers:
        check_transformers()
    for peer, check in (
        ("lmdeploy", check_lmdeploy),
        ("sglang", check_sglang),
        ("vllm", check_vllm),
    ):
        if peer in peers:
            check(unpacked(peer, options.venv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
