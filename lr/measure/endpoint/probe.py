"""Finds out what an endpoint can do by asking it. Servers accept fields that they
ignore, so only observed behaviour counts.

Each capability is tested when first needed, with a few tokens, and remembered. *Seed*:
equal seeds must give equal texts and different seeds different ones, also *while other
requests are in flight*: a server with one generator for all requests mixes their noise.
*Stop string*, taken from the middle of a greedy text: is the text cut before it, after
it, or later? *top_k*, *min_p*: with 1, a temperature of 5 must give the greedy text. If
a model is so certain of the text that seeds make no difference, the answer is "no",
because no effect was observed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from enum import Enum
from functools import cached_property
from typing import Any

from lr.measure.endpoint.client import (
    BUSY,
    Broken,
    Endpoint,
    EndpointError,
    Refused,
    StreamPiece,
    read_piece,
)

TEXT = "The quick brown fox is 12 years old.\n\nIt said: \u201cna\u00efve\u201d, and"
"""The text to complete; digits, a blank line and characters beyond ASCII tell
tokenizers apart."""
LENGTH = 12  # Tokens of a probing completion.


class Seeds(Enum):
    """Whether a request's seed determines its draws."""

    ALWAYS = "yes"
    ALONE = "only while no other request is in flight"
    NEVER = "no"


class Stops(Enum):
    """Where a stop string cuts the text."""

    CUT_BEFORE = "cut before the stop string"
    CUT_AFTER = "cut after the stop string"
    OVERSHOOTS = "the stop string and what came with it in one token"
    IGNORED = "ignored"


class Filters(Enum):
    """How an endpoint takes top_k and min_p."""

    FIELDS = "fields of the request"
    CONFIG = "in generation_config"
    NOT = "not at all"


class Capabilities:
    """What one endpoint can do. A property asks once; it raises `EndpointError` on no
    answer."""

    def __init__(self, endpoint: Endpoint, eos_ids: tuple[int, ...] = ()) -> None:
        self.endpoint, self._eos_ids = endpoint, eos_ids

    def config(self, **settings: Any) -> dict[str, str]:
        """The field that the server of transformers takes instead of one per setting.
        It replaces the model's own settings, including its end-of-sequence tokens."""
        config: dict[str, Any] = {"do_sample": True, "top_k": 0, **settings}
        if self._eos_ids:
            config |= {
                "eos_token_id": list(self._eos_ids),
                "pad_token_id": self._eos_ids[0],
            }
        return {"generation_config": json.dumps(config)}

    @cached_property
    def greedy(self) -> str:
        """The greedy completion of `TEXT`."""
        return self._piece(
            self.endpoint.complete(TEXT, max_tokens=LENGTH, temperature=0)
        ).text

    @cached_property
    def hot(self) -> str | None:
        """A completion at a temperature at which nearly any text is possible."""
        return self._text(temperature=5.0, top_p=1.0)

    @cached_property
    def prompt_tokens(self) -> int | None:
        """The length of `TEXT` in the server's tokens; None if it reports no usage."""
        usage = self._piece(
            self.endpoint.complete(TEXT, max_tokens=1, temperature=0)
        ).usage
        return None if usage is None else usage.prompt

    @cached_property
    def ids_out(self) -> tuple[int, ...] | None:
        """The server's ids of `TEXT`; None unless it returns ids of prompts and
        completions."""
        answer = self._try(temperature=0, return_token_ids=True) or {"choices": [{}]}
        choice = answer["choices"][0]
        ids = choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
        if not isinstance(ids, list) or not isinstance(choice.get("token_ids"), list):
            return None
        return tuple(ids) if all(isinstance(i, int) for i in ids) else None

    @cached_property
    def ids_in(self) -> bool:
        """Whether a prompt may be token ids: those of `TEXT` must have the completion
        of `TEXT`."""
        text = self._text(list(self.ids_out or (1, 2, 3)), temperature=0)
        return text is not None and (self.ids_out is None or text == self.greedy)

    @cached_property
    def logprobs(self) -> bool:
        """Whether the server gives log-probabilities of the likeliest tokens."""
        answer = self._try(temperature=0, max_tokens=1, logprobs=5)
        found = (answer["choices"][0].get("logprobs") or {}) if answer else {}
        return bool(found.get("top_logprobs"))

    @cached_property
    def streams(self) -> bool:
        return self._streams({})

    @cached_property
    def stream_usage(self) -> bool:
        """Whether a stream can end with the usage on request."""
        return self.streams and self._streams(
            {"stream_options": {"include_usage": True}}
        )

    @cached_property
    def seeds(self) -> Seeds:
        def drawn(seed: int) -> str | None:
            return self._text(temperature=2.0, top_p=1.0, seed=seed)

        seeds = (11, 12, 13)
        alone = {seed: drawn(seed) for seed in seeds}
        if len(set(alone.values())) == 1 or any(
            drawn(seed) != alone[seed] for seed in seeds[:2]
        ):
            return Seeds.NEVER
        with ThreadPoolExecutor(len(seeds)) as pool:
            together = list(pool.map(drawn, seeds * 2))
        return (
            Seeds.ALWAYS
            if together == [alone[seed] for seed in seeds * 2]
            else Seeds.ALONE
        )

    @cached_property
    def stops(self) -> Stops:
        return self._stops({})

    @cached_property
    def stop_is_kept(self) -> bool:
        """Whether `include_stop_str_in_output` is understood."""
        kept = self._stops({"include_stop_str_in_output": True})
        return kept in (Stops.CUT_AFTER, Stops.OVERSHOOTS)

    @cached_property
    def top_k(self) -> Filters:
        return self._filter({"top_k": 1})

    @cached_property
    def min_p(self) -> Filters:
        return self._filter({"min_p": 1.0})

    def lines(self) -> list[tuple[str, str]]:
        ways = [
            word for word, can in (("in", self.ids_in), ("out", self.ids_out)) if can
        ]
        kept, yes = self.stops is Stops.CUT_BEFORE and self.stop_is_kept, ("no", "yes")
        return [
            ("streaming", yes[self.streams]),
            ("token ids", " and ".join(ways) or "no: steps go as text"),
            ("log-probabilities", yes[self.logprobs]),
            ("seed", self.seeds.value),
            (
                "stop string",
                self.stops.value + (", or kept on request" if kept else ""),
            ),
            ("top_k", self.top_k.value),
            ("min_p", self.min_p.value),
        ]

    def _try(self, prompt: Any = TEXT, **settings: Any) -> dict[str, Any] | None:
        """The answer; None if the server refuses or fails only this request."""
        self.greedy  # noqa: B018  # raises if the server does not answer at all
        try:
            return self.endpoint.complete(prompt, **{"max_tokens": LENGTH, **settings})
        except EndpointError as error:
            if error.status is None or error.status in BUSY:
                raise
            return None

    def _text(self, prompt: Any = TEXT, **settings: Any) -> str | None:
        answer = self._try(prompt, **settings)
        return None if answer is None else self._piece(answer).text

    def _piece(self, answer: dict[str, Any]) -> StreamPiece:
        try:
            return read_piece(answer)
        except Broken as error:
            raise EndpointError(f"{self.endpoint} {error}.") from error

    def _streams(self, settings: dict[str, Any]) -> bool:
        """Whether a stream with these settings gives the greedy text and ends
        properly."""
        body = self.endpoint.body(
            TEXT, {"max_tokens": LENGTH, "temperature": 0, **settings}
        )

        async def listen() -> str:
            async with aclosing(self.endpoint.client.pieces(body)) as pieces:
                return "".join([piece.text async for piece in pieces])

        try:
            return bool(self.endpoint.client.wait(listen()) == self.greedy)
        except (Broken, Refused):
            return False

    def _stops(self, settings: dict[str, Any]) -> Stops:
        """Test with a stop string that first occurs near a third of the greedy text."""
        whole = self.greedy
        first = [
            i for i in range(1, len(whole) - 2) if whole.find(whole[i : i + 2]) == i
        ]
        start = min(first, key=lambda i: abs(i - len(whole) // 3), default=0)
        stop = whole[start : start + 2]
        text = self._text(temperature=0, stop=[stop], **settings) if stop else None
        if text is None or text == whole or not whole.startswith(text):
            return Stops.IGNORED
        beyond = len(text) - whole.find(stop)
        if beyond <= 0:
            return Stops.CUT_BEFORE
        return Stops.CUT_AFTER if beyond == len(stop) else Stops.OVERSHOOTS

    def _filter(self, one: dict[str, Any]) -> Filters:
        """Test with a setting that leaves a single token, so the temperature must not
        matter."""
        for way, fields in (
            (Filters.FIELDS, one),
            (Filters.CONFIG, self.config(**one)),
        ):
            text = self._text(temperature=5.0, top_p=1.0, **fields)
            if text is not None and text == self.greedy != self.hot:
                return way
        return Filters.NOT
