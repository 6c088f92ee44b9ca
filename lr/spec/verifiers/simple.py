"""Verifiers that ask no language model: exact, random, oracle, embedding; and two wrappers.

- `ExactVerifier`: equal token ids. With it Lookahead Reasoning at temperature 0 emits what greedy
  decoding of the target emits.
- `RandomVerifier`: accepts with probability rho, whatever the steps say; the control of the paper's
  Table 2 (arXiv 2506.19830).
- `OracleVerifier`: equal meaning, for a language that a program can read.
- `EmbeddingVerifier`: cosine of two sentence embeddings (Table 2: thresholds 0.85 and 0.95). Cheap,
  but one wrong digit hardly moves an embedding.
- `NormalisedMatch` and `TimedVerifier` wrap other verifiers.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lr.errors import CheckpointError
from lr.kvcache.branch import common_length
from lr.rng import Stream, uniform
from lr.spec.verifiers.base import Pair, Requires, Verifier, at_least, difference, verdicts_of
from lr.types import Step, Verdict, require

Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""
Embed = Callable[[Sequence[str]], Tensor]
"""n texts to their embeddings [n, e], each of length 1."""
Parse = Callable[[str], Any]
"""A step's text to its meaning, a named tuple; None if it is not in the language."""


class ExactVerifier(Verifier):
    """Accepts if the token ids are equal, the end-of-sequence token included."""

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for draft, target in ((pair.draft.tokens, pair.target_step.tokens) for pair in pairs):
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


class RandomVerifier(Verifier):
    """Accepts a draft step with probability `rho`.

    The draw is keyed by seed, prefix and draft step: the same step always gets the same verdict, in
    any order and batch. As a control it stands in for a verifier that compares, so by default it
    requires the target's step, although it does not look at it.
    """

    def __init__(
        self, rho: float, seed: int = 0, *, requires: Requires = Requires.TARGET_STEP
    ) -> None:
        require(0 <= rho <= 1, "rho", rho, "a probability, 0 to 1")
        self.name, self.rho, self.requires = f"random:{rho:g}", rho, requires
        self.stream = Stream.root(seed).fold_in("random verifier")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._draw(pair) for pair in pairs]

    def _draw(self, pair: Pair) -> Verdict:
        # The prefix's length is part of the key: no token can move from prefix to draft unnoticed.
        content = array("q", (len(pair.prefix), *pair.prefix, *pair.draft.tokens)).tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        drawn = uniform(self.stream.key(int.from_bytes(digest, "little") >> 1))
        return Verdict(drawn < self.rho, why=f"drew {drawn:.3f}, accepts below {self.rho:g}")


class OracleVerifier(Verifier):
    """Accepts if `parse` reads both steps and finds the same meaning."""

    name = "oracle"

    def __init__(self, decode: Decode, parse: Parse) -> None:
        self.decode, self.parse = decode, parse

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [self._compare(pair) for pair in pairs]

    def _compare(self, pair: Pair) -> Verdict:
        draft, target = (
            self.parse(self.decode(step.tokens)) for step in (pair.draft, pair.target_step)
        )
        if draft is None or target is None:
            which = "draft" if draft is None else "target"
            return Verdict(aligned=False, why=f"the {which} step is not in the language")
        if draft == target:
            return Verdict(aligned=True, why="same meaning")
        return Verdict(aligned=False, why=difference(draft, target))


class EmbeddingVerifier(Verifier):
    """Accepts if the cosine of the two steps' embeddings is at least `threshold`."""

    name = "embedding"

    def __init__(self, embed: Embed, decode: Decode, *, threshold: float = 0.95) -> None:
        require(-1 <= threshold <= 1, "threshold", threshold, "a cosine, -1 to 1")
        self.embed, self.decode, self.threshold = embed, decode, threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        steps = [step for pair in pairs for step in (pair.target_step, pair.draft)]
        self.passes += 1
        rows = self.embed([self.decode(step.tokens).strip() for step in steps]).double()  # [2n, e]
        cosines: list[float] = (rows[0::2] * rows[1::2]).sum(-1).tolist()
        return [at_least(self.threshold, cosine, f"cosine {cosine:.3f}") for cosine in cosines]


def load_encoder(name_or_path: str | Path, *, device: str = "cpu") -> Embed:
    """The sentence encoder of a directory or hub id, by the library sentence-transformers.

    Raises `CheckpointError` if the library is not installed or the checkpoint cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise CheckpointError(
            "verifier 'embedding' needs the package sentence-transformers: "
            'install it with pip install "lookahead-reasoning[encoder]".'
        ) from error
    try:
        encoder = SentenceTransformer(str(name_or_path), device=device)
    except Exception as error:  # what a broken or absent checkpoint raises differs between versions
        said = (str(error).splitlines() or ["no message"])[0]
        raise CheckpointError(
            f"{name_or_path} cannot be loaded as a sentence encoder ({type(error).__name__}: "
            f"{said}). Give the directory or the hub id of one, such as "
            "sentence-transformers/all-mpnet-base-v2."
        ) from error

    def embed(texts: Sequence[str]) -> Tensor:
        rows = encoder.encode(
            list(texts), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        assert isinstance(rows, Tensor)
        return rows

    return embed


class NormalisedMatch(Verifier):
    """Accepts equal texts, ignoring case and outer white space; asks `verifier` about the others.

    A shortcut for verifiers that read text. White space inside a text counts: "x = 1 1" is not
    "x = 11", unlike in the official code, which deletes all white space.
    """

    def __init__(self, verifier: Verifier, decode: Decode) -> None:
        self.name, self.verifier, self.decode = verifier.name, verifier, decode
        self.requires = verifier.requires | Requires.TARGET_STEP
        self.fallible = verifier.fallible

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        def text(step: Step) -> str:
            return self.decode(step.tokens).strip().casefold()

        same = [text(pair.draft) == text(pair.target_step) for pair in pairs]
        others = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
        rest = iter(self.verifier.judge(others) if others else [])
        return [Verdict(aligned=True, why="equal text") if equal else next(rest) for equal in same]


class TimedVerifier(Verifier):
    """`verifier` with at most `seconds` for each batch; after that every pair is rejected.

    The call runs in a thread, which cannot be stopped: until it ends, further pairs are rejected at
    once. What is rejected depends on the machine's speed, so such runs are not reproducible.
    """

    def __init__(self, verifier: Verifier, seconds: float) -> None:
        require(seconds > 0, "seconds", seconds, "a time > 0")
        self.name, self.requires = verifier.name, verifier.requires
        self.fallible = verifier.fallible
        self.verifier, self.seconds = verifier, seconds
        self.last: Future[list[Verdict]] | None = None

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        why = f"is still busy with pairs of {self.seconds:g} s ago"
        if self.last is None or self.last.done():
            self.last = Future()
            work = partial(self._work, self.last, list(pairs))
            threading.Thread(target=work, name=f"verifier {self.name}", daemon=True).start()
            wait([self.last], self.seconds)
            if self.last.done():
                return self.last.result()
            why = f"did not answer within {self.seconds:g} s"
        return [Verdict(False, why=f"verifier {self.name} {why}", failed=True) for _ in pairs]

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return self.verifier.passes

    def _work(self, answer: Future[list[Verdict]], pairs: Sequence[Pair]) -> None:
        try:
            answer.set_result(verdicts_of(self.verifier, pairs))
        except BaseException as error:
            answer.set_exception(error)
