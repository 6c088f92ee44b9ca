"""The verifiers that the paper compares with the judge (arXiv 2506.19830, Table 2).

Also wrappers around a verifier, and the choice of a verifier by name
(`VerifierChoice`)."""

from __future__ import annotations

import hashlib
import math
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from lr.errors import CheckpointError, ProtocolError, SettingError
from lr.kvcache.branch import BLOCK_SIZE
from lr.model.attention import without_cudnn
from lr.model.attention_choice import equip
from lr.model.codec import Codec
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.registry import find
from lr.rng import Stream, uniform
from lr.spec.runner import Runner
from lr.spec.sampling import step_logprobs
from lr.spec.verifiers.base import ExactVerifier, Pair, Requires, Verifier, verdicts_of
from lr.spec.verifiers.judge import (
    JUDGE_TOKENS,
    AnswerTokens,
    AskingVerifier,
    Decode,
    JudgeVerifier,
    PrefixCache,
    PromptedModel,
    PromptRow,
    asked_model,
    at_least,
)
from lr.tiny.names import speaks_tiny
from lr.types import Step, Verdict, require

Embed = Callable[
    [Sequence[str]], Tensor
]  # b texts to their embeddings [b, e], each of length 1
SCORE_QUESTION = """\
How good is the step just written, as a next step towards the right answer? 0 means wrong or \
useless, 9 means right and useful beyond doubt.
Score from 0 to 9:"""
"""Appended to the chain and the step, as if the target wrote it. The answer: space and
digit."""


class ScoreReading(Enum):
    """How the ten probabilities of the digits become one score."""

    EXPECTED = "expected"  # the mean digit
    LIKELIEST = "likeliest"  # the digit that greedy decoding would write

    def score(self, p: Sequence[float]) -> float:
        """The score, 0 to 9, from ten probabilities."""
        if self is ScoreReading.EXPECTED:
            return sum(digit * weight for digit, weight in enumerate(p))
        return float(max(range(10), key=p.__getitem__))


class ScoreVerifier(AskingVerifier):
    """Accepts if the score that `target` gives the draft step is at least `threshold`
    (0 to 9).

    As in SpecReason (arXiv 2504.07891). The paper compares 7 and 9. No target step is
    needed. A step is rejected if the ten digits together have less than `least_mass` of
    the probability."""

    name = "score"
    requires = Requires.NOTHING

    def __init__(
        self,
        target: PromptedModel,
        *,
        threshold: float = 7.0,
        reading: ScoreReading = ScoreReading.EXPECTED,
        question: str = SCORE_QUESTION,
        least_mass: float = 0.01,
    ) -> None:
        require(0 <= threshold <= 9, "threshold", threshold, "a score, 0 to 9")
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.threshold, self.reading, self.least_mass = threshold, reading, least_mass
        self.answers = AnswerTokens.of(
            [target.codec.encode(f" {digit}") for digit in range(10)]
        )
        self.question = [*target.codec.encode(question), *self.answers.common]
        self.prefixes = PrefixCache(target.runner)

    def row_of(self, pair: Pair) -> PromptRow:
        chain = [*pair.prefix, *pair.draft.tokens]
        return PromptRow([*chain, *self.question], keep=len(chain))

    def verdict(self, p: Sequence[float], mass: float) -> Verdict:
        if mass < self.least_mass:
            why = f"the target gives no score (the ten digits have {mass:.1e})"
            return Verdict(aligned=False, why=why)
        score = math.nan if math.isnan(mass) else self.reading.score(p)
        return at_least(self.threshold, score, f"the target scores it {score:.2f} of 9")


class LikelihoodVerifier(AskingVerifier):
    """Accepts if the mean log-probability per token is at least `threshold` (nats, at
    most 0).

    A mean of -1 nat is a geometric mean probability of 0.37. The prefill of the draft
    step gives it for free. It measures wording as well as meaning, so each pair of
    models needs its own threshold. `runner` computes log-probabilities for pairs
    without them; if it is None, such a pair raises `ProtocolError`."""

    name = "likelihood"
    requires = Requires.TARGET_LOGPROBS

    def __init__(self, threshold: float = -1.0, runner: Runner | None = None) -> None:
        require(
            threshold <= 0,
            "threshold",
            threshold,
            "a mean log-probability in nats, at most 0",
        )
        self.threshold, self.asks = threshold, runner is not None
        if runner is not None:
            self.prefixes = PrefixCache(runner)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        bare = [pair for pair in pairs if pair.logprobs is None]
        if bare and not self.asks:
            raise ProtocolError(
                "a pair has no log-probabilities of the target, and this verifier has no runner to "
                "compute them: fill in what `requires` names, or give it a runner."
            )
        computed = iter(super().judge(bare))
        return [
            next(computed) if p.logprobs is None else self.mean(p.logprobs)
            for p in pairs
        ]

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.prefixes.passes if self.asks else 0

    def row_of(self, pair: Pair) -> PromptRow:
        """The prefix and the draft step without its last token. Example: 10 tokens of
        prefix and a draft of 4. The logits after the last 4 of these 13 tokens are
        those of the draft tokens."""
        tokens = [*pair.prefix, *pair.draft.tokens[:-1]]
        return PromptRow(tokens, wanted=len(pair.draft.tokens), keep=len(pair.prefix))

    def read(self, ran: Sequence[tuple[Pair, Tensor]]) -> list[Verdict]:
        tokens = [token for pair, _ in ran for token in pair.draft.tokens]
        found = iter(step_logprobs(torch.cat([logits for _, logits in ran]), tokens))
        return [
            self.mean(tuple(islice(found, len(pair.draft.tokens)))) for pair, _ in ran
        ]

    def mean(self, logprobs: Sequence[float]) -> Verdict:
        """The verdict from the log-probabilities of the draft step's tokens."""
        mean = math.fsum(logprobs) / len(logprobs) if logprobs else math.nan
        return at_least(self.threshold, mean, f"{mean:.3f} nats per token")


class RandomVerifier(Verifier):
    """Accepts a draft step with probability `rho`.

    The draw is keyed by seed, prefix and draft step, so a step gets the same verdict in
    any order and batch. As a control for verifiers that compare steps it requires the
    target's step by default, although it does not look at it."""

    def __init__(
        self, rho: float, seed: int = 0, *, requires: Requires = Requires.TARGET_STEP
    ) -> None:
        require(0 <= rho <= 1, "rho", rho, "a probability, 0 to 1")
        self.name, self.rho, self.requires = f"random:{rho:g}", rho, requires
        self.stream = Stream.root(seed).fold_in("random verifier")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._draw(pair) for pair in pairs]

    def _draw(self, pair: Pair) -> Verdict:
        # with the length of the prefix, moving a token from prefix to draft changes the
        # key
        content = array(
            "q", (len(pair.prefix), *pair.prefix, *pair.draft.tokens)
        ).tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        drawn = uniform(self.stream.key(int.from_bytes(digest, "little") >> 1))
        return Verdict(
            drawn < self.rho, why=f"drew {drawn:.3f}, accepts below {self.rho:g}"
        )


class EmbeddingVerifier(Verifier):
    """Accepts if the cosine of the two steps' embeddings is at least `threshold`.

    The paper uses 0.85 and 0.95. It is cheap, but a wrong digit hardly changes an
    embedding."""

    name = "embedding"

    def __init__(self, embed: Embed, decode: Decode, threshold: float = 0.95) -> None:
        require(-1 <= threshold <= 1, "threshold", threshold, "a cosine, -1 to 1")
        self.embed, self.decode, self.threshold = embed, decode, threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        steps = [step for pair in pairs for step in (pair.target_step, pair.draft)]
        self.passes += 1
        rows = self.embed(
            [self.decode(step.tokens).strip() for step in steps]
        ).double()  # [2 b, e]
        cosines: list[float] = (rows[0::2] * rows[1::2]).sum(-1).tolist()
        return [
            at_least(self.threshold, cosine, f"cosine {cosine:.3f}")
            for cosine in cosines
        ]


def load_encoder(name_or_path: str | Path, *, device: str = "cpu") -> Embed:
    """Load a sentence encoder from a directory or hub id, with sentence-transformers.

    Raises `CheckpointError` if the library is not installed or the checkpoint cannot be
    loaded."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise CheckpointError(
            "verifier 'embedding' needs the package sentence-transformers: "
            'install it with pip install "lookahead-reasoning[encoder]".'
        ) from error
    without_cudnn(torch.device(device))
    try:
        encoder = SentenceTransformer(str(name_or_path), device=device)
    except (
        Exception
    ) as error:  # for a bad checkpoint, each version raises something different
        said = (str(error).splitlines() or ["no message"])[0]
        raise CheckpointError(
            f"{name_or_path} cannot be loaded as a sentence encoder ({type(error).__name__}: "
            f"{said}). Give the directory or the hub id of one, such as "
            "sentence-transformers/all-mpnet-base-v2."
        ) from error

    def embed(texts: Sequence[str]) -> Tensor:
        rows = encoder.encode(
            list(texts),
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        assert isinstance(rows, Tensor)
        return rows

    return embed


class Around(Verifier):
    """A wrapper around `verifier` with the same attributes unless a subclass changes
    them."""

    def __init__(self, verifier: Verifier) -> None:
        self.name, self.requires = verifier.name, verifier.requires
        self.fallible, self.verifier = verifier.fallible, verifier

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes


class NormalisedMatch(Around):
    """Accepts equal texts, ignoring case and outer white space; asks `verifier` about
    other pairs.

    A shortcut for verifiers that read text. White space inside a text counts: "x = 1 1"
    is not "x = 11", unlike in the official code, which deletes all white space."""

    def __init__(self, verifier: Verifier, decode: Decode) -> None:
        super().__init__(verifier)
        self.requires, self.decode = verifier.requires | Requires.TARGET_STEP, decode

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        def text(step: Step) -> str:
            return self.decode(step.tokens).strip().casefold()

        same = [text(pair.draft) == text(pair.target_step) for pair in pairs]
        others = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
        rest = iter(self.verifier.judge(others) if others else [])
        return [
            Verdict(aligned=True, why="equal text") if equal else next(rest)
            for equal in same
        ]


class TimedVerifier(Around):
    """`verifier` with a time limit of `seconds` per batch, after which all its pairs
    are rejected.

    The call runs in a thread, which cannot be stopped. Until it ends, further pairs are
    rejected immediately. Rejections depend on the machine's speed, so such runs are not
    reproducible."""

    def __init__(self, verifier: Verifier, seconds: float) -> None:
        require(seconds > 0, "seconds", seconds, "a time > 0")
        super().__init__(verifier)
        self.seconds = seconds
        self.last: Future[list[Verdict]] | None = None

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        why = f"is still busy with pairs that exceeded {self.seconds:g} s"
        if self.last is None or self.last.done():
            answer, asked = Future[list[Verdict]](), list(pairs)
            self.last = answer
            # in the caller's stream, since the default stream would block all other
            # streams
            stream = (
                torch.cuda.current_stream() if torch.cuda.is_initialized() else None
            )

            def work() -> None:
                try:
                    with nullcontext() if stream is None else torch.cuda.stream(stream):
                        answer.set_result(verdicts_of(self.verifier, asked))
                except BaseException as error:
                    answer.set_exception(error)

            threading.Thread(
                target=work, name=f"verifier {self.name}", daemon=True
            ).start()
            wait([answer], self.seconds)
            if answer.done():
                return answer.result()
            why = f"did not answer within {self.seconds:g} s"
        return [
            Verdict(False, why=f"verifier {self.name} {why}", failed=True)
            for _ in pairs
        ]


# By name

EXAMPLES = {
    "judge": "an instruction-tuned Qwen such as Qwen/Qwen2.5-7B-Instruct",
    "embedding": "a sentence encoder such as sentence-transformers/all-mpnet-base-v2",
}
"""The verifiers with their own checkpoint, each with an example of one."""
THRESHOLDS = {
    "judge": 0.5,
    "embedding": 0.95,
    "score": 7.0,
    "likelihood": -1.0,
    "random": 0.5,
}
"""The kinds that take a number, and its default."""
PLAIN = ("exact", "oracle", "always", "never")


def parse_verifier(
    text: str, *, speaks_tiny: bool, checkpoint: str
) -> tuple[str, float | None]:
    """Kind and threshold of a verifier, such as exact, judge, judge:0.8, score:9 or
    random:0.3.

    Raises `SettingError`, with the choices, if there is no such verifier, or if it is
    "oracle" and the checkpoint speaks no tiny language."""
    kind, colon, number = text.partition(":")
    numbered = [f"{known}:{default:g}" for known, default in THRESHOLDS.items()]
    plain = [known for known in PLAIN if known != "oracle" or speaks_tiny]
    choices = f"choose one of: {', '.join([*plain[:-2], *numbered, *plain[-2:]])}."
    if kind == "oracle" and not speaks_tiny:
        raise SettingError(
            f"verifier {kind!r} knows only the tiny languages, and {checkpoint} speaks none of "
            f"them. For this checkpoint {choices}"
        )
    if kind not in PLAIN and kind not in THRESHOLDS:
        raise SettingError(f"there is no verifier {text!r}; {choices}")
    if not colon:
        return kind, THRESHOLDS.get(kind)
    if kind in PLAIN:
        raise SettingError(
            f"verifier {text!r}: {kind} takes no number. Say {kind!r}, or {choices}"
        )
    try:
        return kind, float(number)
    except ValueError:
        raise SettingError(
            f"verifier {text!r}: {number!r} is not a number. "
            f"Say for example '{kind}:{THRESHOLDS[kind]:g}'."
        ) from None


@dataclass
class VerifierChoice:
    """A verifier by name for a target with `codec`, checked but not loaded yet.

    `judge` is its extra checkpoint: a language model for "judge" (None: the judge of
    the target's tiny language), an encoder for "embedding". It runs on `device` in
    `dtype`, a judge with this `attention` and `graphs`. `num_blocks`: cache blocks of
    16 tokens for the model that the verifier asks (None: as many as it needs). `model`:
    the judge, once loaded. Raises `SettingError` if the verifier does not fit the
    target or the `judge`."""

    name: str
    codec: Codec
    judge: str | Path | None = None
    device: str | torch.device = "cpu"
    dtype: torch.dtype | None = None
    num_blocks: int | None = None
    attention: str = "auto"
    graphs: bool = True
    kind: str = field(init=False)
    threshold: float | None = field(init=False)
    model: CausalLM | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        codec, tiny = self.codec, speaks_tiny(self.codec)
        self.kind, self.threshold = parse_verifier(
            self.name, speaks_tiny=tiny, checkpoint=codec.name
        )
        if self.judge is not None and self.kind not in EXAMPLES:
            raise SettingError(
                f"judge is {str(self.judge)!r}, but verifier {self.name!r} uses no judge model; "
                "omit judge, or use verifier judge."
            )
        if self.judge is None and self.kind == "judge":
            self.judge = own_judge(codec)
        if self.judge is None and self.kind in EXAMPLES:
            raise SettingError(
                f"verifier {self.name!r} needs its own checkpoint: give judge (on the command line "
                f"--judge_model), {EXAMPLES[self.kind]}."
            )

    def build(self, target: CausalLM) -> Verifier:
        """Load the verifier. Raises `SettingError` for an impossible threshold.

        Some verifiers ask the `target`. Those that compare texts accept equal texts
        without a model."""
        kind, decode = self.kind, self.codec.decode
        threshold = (
            float(kind == "always") if self.threshold is None else self.threshold
        )
        if kind == "exact":
            return ExactVerifier()
        if kind == "oracle":
            oracle: Verifier = find("lr.tiny.oracle:OracleVerifier")(decode)
            return oracle
        if kind in ("score", "likelihood"):
            asked = asked_model(target, self.codec, self.num_blocks)
            if kind == "score":
                return ScoreVerifier(asked, threshold=threshold)
            return LikelihoodVerifier(threshold, asked.runner)
        if self.judge is None:  # random, always, never: they look at nothing
            return RandomVerifier(threshold)
        if kind == "embedding":
            embed = load_encoder(self.judge, device=str(self.device))
            return NormalisedMatch(EmbeddingVerifier(embed, decode, threshold), decode)
        model = self.model = load_model(
            self.judge, device=self.device, dtype=self.dtype
        )
        equip(model, self.attention, graphs=self.graphs)
        blocks = self.num_blocks or -(-JUDGE_TOKENS // BLOCK_SIZE)
        asked = asked_model(model, Codec.load(self.judge), blocks)
        return NormalisedMatch(
            JudgeVerifier(asked, decode, threshold=threshold), decode
        )


def usual_verifier(codec: Codec, judge: str | Path | None) -> str:
    """The default verifier: the judge if there is one, else exact."""
    return "exact" if judge is None and own_judge(codec) is None else "judge"


def own_judge(codec: Codec) -> str | None:
    """The package's judge, for a checkpoint of the tiny language."""
    return "tiny-judge" if speaks_tiny(codec) else None
