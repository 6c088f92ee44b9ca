"""From the name of a verifier and the models at hand to the verifier: loads what it is made of, and
nothing else.

`judge` names the extra checkpoint of verifiers that have one: a language model for "judge" (None:
tiny-judge, for targets that speak its language), a sentence encoder for "embedding". The verifiers
themselves know no model (`spec/verifiers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lr.engine.runner import ModelRunner
from lr.errors import SettingError
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.registry import find, language_of
from lr.spec.verifiers.base import Verifier
from lr.spec.verifiers.choose import VerifierName, VerifierParts, make_verifier, parse_verifier
from lr.spec.verifiers.prompted import PromptedModel
from lr.spec.verifiers.simple import Embed, load_encoder

BLOCK_SIZE = 16
JUDGE_TOKENS = 8192
"""Room for the prompts of one batch of pairs; a batch that does not fit is judged in parts."""
WITH_CHECKPOINT = ("judge", "embedding")
"""The verifiers that have a checkpoint of their own."""


@dataclass(frozen=True)
class VerifierChoice:
    """A verifier by name, found to make sense for a target, before any model is loaded. Made by
    `choose_verifier`.
    """

    name: VerifierName
    codec: Codec
    judge: str | Path | None
    device: str | torch.device
    dtype: torch.dtype | None
    num_blocks: int | None = None

    def build(self, target: CausalLM) -> Verifier:
        """Load what the verifier is made of. `target` is the model that the score and likelihood
        verifiers ask.
        """

        def asked() -> PromptedModel:
            blocks = blocks_for_chains(target) if self.num_blocks is None else self.num_blocks
            return asked_model(target, self.codec, blocks)

        language = language_of(self.codec)
        return make_verifier(
            self.name,
            VerifierParts(
                decode=self.codec.decode,
                judge=self._judge,
                target=asked,
                embed=self._encoder,
                parse=None if language is None else language.parse,
            ),
        )

    def _judge(self) -> PromptedModel:
        assert self.judge is not None, "choose_verifier settles it"
        codec, model = (
            Codec.load(self.judge),
            load_model(self.judge, device=self.device, dtype=self.dtype),
        )
        return asked_model(
            model,
            codec,
            -(-JUDGE_TOKENS // BLOCK_SIZE) if self.num_blocks is None else self.num_blocks,
        )

    def _encoder(self) -> Embed:
        assert self.judge is not None, "choose_verifier settles it"
        return load_encoder(self.judge, device=str(self.device))


def choose_verifier(
    name: str,
    codec: Codec,
    judge: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    num_blocks: int | None = None,
) -> VerifierChoice:
    """Read the name of a verifier. `num_blocks` cache blocks of 16 tokens for the model that it
    asks; None: as many as the longest chain or a large batch of pairs needs. Raises `SettingError`
    where it makes no sense for this target or with this `judge`."""
    parsed = parse_verifier(name, speaks_tiny=speaks_tiny(codec), checkpoint=codec.name)
    if judge is not None and parsed.kind not in WITH_CHECKPOINT:
        raise SettingError(
            f"judge is {str(judge)!r}, but verifier {name!r} uses no judge model; leave judge out."
        )
    if judge is None and parsed.kind == "judge":
        judge = own_judge(codec)
    if judge is None and parsed.kind in WITH_CHECKPOINT:
        example = {
            "judge": "an instruction-tuned Qwen such as Qwen/Qwen2.5-7B-Instruct",
            "embedding": "a sentence encoder such as sentence-transformers/all-mpnet-base-v2",
        }[parsed.kind]
        raise SettingError(
            f"verifier {name!r} needs a checkpoint of its own: give judge (on the command line --judge_model), {example}."
        )
    return VerifierChoice(parsed, codec, judge, device, dtype, num_blocks)


def blocks_for_chains(model: CausalLM) -> int:
    """Cache blocks for a model that is asked about the steps of a chain: the longest chain, and the
    questions about it.
    """
    return -(-(model.config.max_position_embeddings + JUDGE_TOKENS) // BLOCK_SIZE)


def asked_model(model: CausalLM, codec: Codec, num_blocks: int) -> PromptedModel:
    """A model with its codec as verifiers see it, on a runner of its own with `num_blocks` blocks
    of 16 tokens.
    """
    size = model.attention.block_size
    runner = ModelRunner(
        model,
        num_blocks=-(-num_blocks * BLOCK_SIZE // size),
        block_size=size,
        vocab_size=codec.vocab_size,
    )
    chat = partial(codec.chat, enable_thinking=False)  # a judge answers at once
    return PromptedModel(runner, codec.encode, chat, tiny=speaks_tiny(codec))


def speaks_tiny(codec: Codec) -> bool:
    """Whether a checkpoint speaks one of the tiny languages, so that there is an oracle."""
    return language_of(codec) is not None


def own_judge(codec: Codec) -> str | None:
    """The judge that comes with the package for the tiny language that a checkpoint speaks, if
    there is one.
    """
    language = language_of(codec)
    if language is None:
        return None
    name: str | None = find("lr.tiny.names:companion")(f"{language.family}-target", "judge")
    return name


def usual_verifier(codec: Codec, judge: str | Path | None) -> str:
    """Who judges where nothing is said: a judge where there is one, else the oracle, else equal
    tokens.
    """
    if judge is not None or own_judge(codec) is not None:
        return "judge"
    return "oracle" if speaks_tiny(codec) else "exact"
