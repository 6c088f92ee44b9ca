"""Attacks that run models: exactness, distributions, parity with transformers, and
soaking.

An attack is made once, with a folder to write to, and is called once per case with its
randomness. A call raises what it finds and returns, in a word or two, what kind of case
it was.
"""

from __future__ import annotations

import gc
import shutil
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from model_kit import KINDS, YARN, hf_logits, hf_model, our_logits, random_tokens
from reasoner_kit import write_checkpoint
from scipy.stats import chisquare
from spec_kit import random_model, writer
from transformers.utils import logging as talk
from verifier_kit import letters

from lr.engine.engine import Run
from lr.engine.runner import ModelRunner
from lr.errors import ContextError, OutOfBlocks
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.options import GenerateOptions, make_options
from lr.reasoner import Reasoner
from lr.rng import Stream
from lr.spec.acceptance import RULES
from lr.spec.drafters import LookupDrafter, ModelDrafter, TreeDrafter
from lr.spec.sampling import distribution as distribution_of
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.named import EmbeddingVerifier
from lr.spec.write import StepJob, WriterConfig
from lr.tiny.language import Split, problem
from lr.types import Coupling, Role, SamplingParams
from lr.variants.kit.cache import check_cache

WORDS = (
    "Ann Ben has 3 more coins than 47 At first Then gets How many . , half as".split()
)
VERIFIERS = ("exact", "always", "never", "random:0.5", "likelihood:-3", "score:4", "judge",
             "embedding", "oracle")  # fmt: skip
"""Every verifier; "embedding" with a simple encoder, "oracle" with models that it
understands."""


def question(rng: Random, longest: int) -> str:
    """Up to so many words of the tiny language, in no order that means anything."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))


def problems(rng: Random, longest: int) -> str:
    """One problem of the tiny language after the other: at least so many words."""
    text = problem(Split.TEST, rng.randrange(1000)).question
    while len(text.split()) < longest:
        text += " " + problem(Split.TEST, rng.randrange(1000)).question
    return text


def options(rng: Random, **fixed: Any) -> GenerateOptions:
    """Settings of an answer: any mode, drafter, rule, schedule, width and segmenter
    that go together."""
    mode = rng.choice(["ar", "sd", "lr", "lr", "lr+sd", "lr+sd"])
    drafters = ["ngram", "suffix", "draft", "tree"] + ["step"] * (mode == "lr+sd")
    made: dict[str, Any] = {
        "mode": mode, "drafter": rng.choice(drafters), "depth": rng.randint(1, 4),
        "width": rng.choice([1, 1, 2, 3]), "schedule": rng.choice(["sync", "paper", "depth"]),
        "num_speculative_tokens": rng.randint(1, 7), "draft_forwards": rng.choice([1, 3, 8]),
        "branching": rng.choice([(2, 2), (3, 1), (1, 1, 1), (4,), (2, 1, 2)]),
        "temperature": rng.choice([0.0, 0.6, 1.0]), "top_k": rng.choice([0, 0, 20]),
        "top_p": rng.choice([1.0, 0.9]), "max_step_tokens": rng.choice([3, 12, 40, 100]),
        "segmenter": rng.choice(["blank_line", "sentence", "fixed"]), "segment_tokens": 3,
        "max_target_rows": rng.choice([None, None, 1, 3]), "max_tokens": rng.randint(1, 40),
        "coupling": rng.choice(["independent", "shared"]), "seed": rng.randrange(1000),
        "acceptance": rng.choice(["match", "match", "reject"]),
    }  # fmt: skip
    if made["width"] > 1:
        made["depth"] = min(made["depth"], 2)
    return make_options(**{**made, **fixed})


class _Reasoners:
    """Random checkpoints of one or two layers in fp64, and reasoners over them, made
    when they are first wanted."""

    context = 512

    def __init__(self, folder: Path) -> None:
        how: dict[str, Any] = {"context": self.context}
        self.names = [
            str(write_checkpoint(folder / str(i), seed=i, layers=1 + i % 2, **how))
            for i in range(3)
        ]
        self.made: dict[tuple[Any, ...], Reasoner] = {}

    def reasoner(
        self, *models: int, verifier: str = "exact", blocks: int | None = None
    ) -> Reasoner:
        key = (*models, verifier, blocks)
        if key not in self.made:
            judge = self.names[2] if verifier == "judge" else None
            target, draft = (self.names[i] for i in models)
            made: str | Verifier = verifier
            if verifier == "embedding":
                made = EmbeddingVerifier(letters, Codec.load(target).decode, 0.5)
            elif verifier == "oracle":
                target = draft = "tiny-draft"
            how: dict[str, Any] = {
                "judge": judge,
                "dtype": torch.float64,
                "num_blocks": blocks,
            }
            self.made[key] = Reasoner(target, draft, made, **how)
        return self.made[key]

    def close(self) -> None:
        for reasoner in self.made.values():
            reasoner.close()


class exact(_Reasoners):
    """With the exact verifier and rule match, an answer has the tokens of plain
    decoding: whatever the mode, alone on the scheduler, on the page, or in a batch with
    others."""

    def __call__(self, rng: Random) -> str:
        if rng.random() < 0.4:
            return self.company(rng, rng.choice(VERIFIERS))
        reasoner = self.reasoner(*rng.sample(range(3), 2))
        how = options(rng, acceptance="match")
        asked = [
            question(rng, rng.choice([5, 60, 200])) for _ in range(rng.randint(1, 4))
        ]
        plain = {
            text: reasoner.generate(text, **{**vars(how), "mode": "ar"}).tokens
            for text in asked
        }
        if how.looks_ahead and rng.random() < 0.3:
            for text in asked:
                found = reasoner.generate(text, engine="page", **vars(how)).tokens
                assert found == plain[text], (how, text)
            return "on the page"
        runs = [Run(reasoner.engine, reasoner.verifier, text, how) for text in asked]
        for _ in reasoner.engine.serve(runs, rng.randint(1, 4)):
            pass
        for run in runs:
            assert run.result.tokens == plain[run.question], (how, run.question)
        return how.mode

    def company(self, rng: Random, verifier: str) -> str:
        """Whatever the verifier: together with others, short and as long as the
        context, an answer has the steps and verdicts that it has alone."""
        reasoner, how = self.reasoner(0, 1, verifier=verifier), options(rng)
        if how.drafter == "step" and how.acceptance != "match":
            how = replace(
                how, schedule="sync"
            )  # else it may: docs/token_level.md, Drafters
        ask = problems if verifier == "oracle" else question
        asked = [ask(rng, rng.choice([4, 60])) for _ in range(rng.randint(1, 3))]
        text = " ".join(ask(rng, 60) for _ in range(20))
        asked.append(self.longest(text, reasoner, self.context - rng.randint(1, 100)))
        asked += rng.choices(asked, k=rng.choice([0, 0, 1, 2]))  # more samples
        samples = [
            (text, replace(how, sample=number)) for number, text in enumerate(asked)
        ]
        together = [Run(reasoner.engine, reasoner.verifier, *one) for one in samples]
        for _ in reasoner.engine.serve(together, rng.randint(2, 4)):
            pass
        for run in together:
            reasoner.engine.forget_caches()
            forget = getattr(reasoner.verifier, "close", None)
            if forget is not None:
                forget()
            alone = Run(
                reasoner.engine, reasoner.verifier, run.question, run.options
            ).finish()
            for one, other in zip(alone.steps, run.steps, strict=True):
                assert one.tokens == other.tokens and one.origin is other.origin, (
                    how,
                    verifier,
                )
                verdicts = [
                    step.verdict and step.verdict.aligned for step in (one, other)
                ]
                assert verdicts[0] is verdicts[1], (how, verifier)
        return "in company"

    def longest(self, text: str, reasoner: Reasoner, most: int) -> str:
        """The end of a text that makes a prompt of so many tokens, or a few less."""
        words = text.split()
        while (over := len(reasoner.codec.chat(" ".join(words))) - most) > 0:
            del words[: (over + 1) // 2]  # most words have one token or two
        return " ".join(words)


class Never:
    """Steps that have no end but their length."""

    def __init__(self, token_bytes: object) -> None:
        pass

    def feed(self, token: int) -> bool:
        return False


class distribution:
    """Three tokens after a prompt, written many times, are distributed as the target
    says: whoever drafts, whatever decides, shared noise or not, filtered or not. A case
    alarms falsely once in a million."""

    length, many, at_once = 3, 900, 100

    def __init__(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, rng: Random) -> str:
        target, draft = (random_model(rng.randrange(10**6), layers=1) for _ in range(2))
        filters = rng.choice([{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}])
        sampling = SamplingParams(rng.choice([0.5, 1.0, 1.4]), **filters)  # type: ignore[arg-type]
        rule = rng.choice(["reject", "block", "match"])
        coupling = Coupling.SHARED if rule == "match" else Coupling.INDEPENDENT
        small = ModelRunner(draft, num_blocks=30 * self.at_once, block_size=4)
        kind = rng.choice(
            ["draft", "tree", "ngram"] if rule != "block" else ["draft", "ngram"]
        )
        drafter = {
            "draft": ModelDrafter(small, sampling, coupling=coupling),
            "tree": TreeDrafter(small, sampling, branching=(2, 2), coupling=coupling),
            "ngram": LookupDrafter(),
        }[kind]
        made = writer(Role.TARGET, target, num_blocks=30 * self.at_once)
        speculation = Speculation(drafter, RULES[rule](), rng.randint(1, 3))
        made.config = WriterConfig(
            Role.TARGET, sampling, frozenset(), Never, speculation
        )
        prompt, seed, seen = (
            rng.choices(range(11), k=6),
            rng.getrandbits(32),
            Counter[Any](),
        )
        for start in range(0, self.many, self.at_once):
            numbers = range(start, start + self.at_once)
            streams = [Stream.root(seed).fold_in(number) for number in numbers]
            branches = [made.runner.open(prompt) for _ in numbers]
            jobs = [
                StepJob(b, 0, self.length, s)
                for b, s in zip(branches, streams, strict=True)
            ]
            seen.update(step.tokens for step in made.write(jobs))
            for branch in branches:
                made.close(branch)
        law = self.law(
            ModelRunner(target, num_blocks=2000, block_size=4), prompt, sampling
        )
        assert not seen.keys() - law.keys(), "a token that is impossible was written"
        likely = [tokens for tokens, p in law.items() if p * self.many >= 5]
        observed = [seen[tokens] for tokens in likely]
        expected = [law[tokens] * self.many for tokens in likely]
        rest = self.many - sum(expected)
        if rest >= 5:
            observed.append(self.many - sum(observed))
            expected.append(rest)
        if len(expected) > 1:
            scale = sum(observed) / sum(expected)
            p = chisquare(observed, [one * scale for one in expected]).pvalue
            assert p > 1e-6, (kind, rule, sampling, p)
        return f"{kind} {rule}"

    def law(
        self, runner: ModelRunner, prompt: list[int], sampling: SamplingParams
    ) -> dict[tuple[int, ...], float]:
        """The probability of every continuation that is possible, by plain forwards."""
        known: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(self.length):
            branches = [runner.open([*prompt, *tokens]) for tokens in known]
            rows = distribution_of(
                torch.stack(runner.forward(branches)), sampling
            ).tolist()
            longer: dict[tuple[int, ...], float] = {}
            for (tokens, p), row in zip(known.items(), rows, strict=True):
                longer |= {(*tokens, i): p * q for i, q in enumerate(row) if q > 0}
            for branch in branches:
                runner.close(branch)
            known = longer
        return known


class parity:
    """Random configurations of Qwen2 and Qwen3: our logits are those of transformers to
    1e-9."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loud = talk.get_verbosity(), talk.is_progress_bar_enabled()
        talk.set_verbosity_error()
        talk.disable_progress_bar()

    def close(self) -> None:
        talk.set_verbosity(self.loud[0])
        if self.loud[1]:
            talk.enable_progress_bar()

    def __call__(self, rng: Random) -> str:
        kind, heads = rng.choice(KINDS), rng.choice([1, 2, 4, 6])
        rope = {"rope_type": "default", "rope_theta": rng.choice([100.0, 1e4, 1e6])}
        if rng.random() < 0.4:
            factor = rng.choice([1.0, 2.5, 4.0, 40.0])
            rope = {**YARN, "factor": factor, "rope_theta": rope["rope_theta"]}
        changes: dict[str, Any] = {
            "num_attention_heads": heads,
            "num_key_value_heads": rng.choice(
                [k for k in range(1, heads + 1) if heads % k == 0]
            ),
            "head_dim": rng.choice([2, 6, 8, 16, 22]),
            "hidden_size": rng.choice([12, 24, 36]),
            "intermediate_size": rng.choice([1, 7, 40]),
            "num_hidden_layers": rng.randint(1, 4),
            "rms_norm_eps": rng.choice([1e-6, 1e-2]),
            "tie_word_embeddings": rng.random() < 0.5,
            "rope_parameters": rope,
        }
        model = hf_model(kind, seed=rng.randrange(10**6), **changes)
        made = self.folder / "parity"
        shutil.rmtree(made, ignore_errors=True)
        model.save_pretrained(made, max_shard_size=rng.choice(["8KB", "1GB"]))
        tokens = random_tokens(rng.randint(1, 60), seed=rng.randrange(10**6))
        ours, theirs = (
            our_logits(load_model(made, dtype=torch.float64), tokens),
            hf_logits(model, tokens),
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        return kind


class soak(_Reasoners):
    """Random requests, prompts up to the context, random numbers of cache blocks and
    company. Nothing that was admitted ends in `OutOfBlocks`; afterwards every block is
    free, and there are no more threads and open files than after the first cases."""

    context, company, longest = 192, 6, 40
    """Tokens of the context, requests at once and tokens of an answer, at most."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cases, self.requests, self.level = 0, 0, (0, 0)

    def __call__(self, rng: Random) -> str:
        verifier, sizes = rng.choice(VERIFIERS), [None, None, 40, 120, 400]
        reasoner = self.reasoner(0, 1, verifier=verifier, blocks=rng.choice(sizes))
        how, runs = options(rng, max_tokens=rng.randint(1, self.longest)), list[Run]()
        for _ in range(rng.randint(1, self.company)):
            text = question(rng, rng.choice([4, 40, self.context]))
            if runs and rng.random() < 0.3:
                text = runs[-1].question  # which shares its prompt
            with suppress(ContextError):
                runs.append(Run(reasoner.engine, reasoner.verifier, text, how))
        room = reasoner.models.num_blocks
        runs = [run for run in runs if room is None or run.blocks <= room]
        self.requests += len(runs)
        try:
            for _ in reasoner.engine.serve(runs, rng.randint(1, self.company)):
                pass
        except OutOfBlocks as error:
            raise AssertionError(
                f"admitted, and no block was left: {how}, {error}"
            ) from error
        for run in runs:
            for step in run.steps:
                why = "" if step.verdict is None else step.verdict.why
                assert room or "cache is full" not in why, (how, why)
        self.check(reasoner)
        return verifier.partition(":")[0]

    def check(self, reasoner: Reasoner) -> None:
        for role in Role:
            runners = reasoner.engine.runners.get(role)
            for runner in [] if runners is None else runners.idle:
                check_cache(runner.cache)
                assert runner.cache.pool.num_used == 0
        self.cases += 1
        if self.cases in (200, 201) or self.cases % 200 == 0:
            gc.collect()
            level = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
            if self.level == (0, 0):
                self.level = level
            assert all(
                now <= before + 2 for now, before in zip(level, self.level, strict=True)
            )
