"""What an endpoint really does, found out by asking it. Servers accept fields that they ignore, so
nothing is believed that is not seen.

Each capability is asked for when it is first needed (`Capabilities` remembers), with a few tokens.
How it is told: *seed*, the same one twice gives the same text and others give others, and *while
other requests are in flight* as well: a server that seeds one generator for all gives everybody
somebody else's noise. *stop*, a string from the middle of a greedy text: is the text cut before it,
behind it, or later? *top_k*, *min_p*: with 1, a temperature of 5 writes the greedy text. Where a
model is so certain of the text that seeds make no difference, the answer is "no": nothing was seen.

Knows no tokenizer: whether ids mean the same here and there is `models.py`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lr.lab.endpoint.abilities import Filters, Seeds, Stops, generation_config
from lr.lab.endpoint.completions import COMPLETIONS, Endpoint, read_piece
from lr.lab.endpoint.failures import Broken, EndpointError, Refused, parse_json
from lr.lab.endpoint.http import Call

TEXT = "The quick brown fox is 12 years old.\n\nIt said: \u201cna\u00efve\u201d, and"
"""The text that is completed: words, digits, a blank line and characters beyond ASCII, so that
tokenizers differ on it.
"""
LENGTH = 12
"""Tokens of a probing completion."""
_Found = TypeVar("_Found")


class Capabilities:
    """What one endpoint can do. Every property asks the server once; all raise `EndpointError` if
    it does not answer.
    """

    def __init__(self, endpoint: Endpoint, eos_ids: tuple[int, ...] = ()) -> None:
        self.endpoint = endpoint
        self._eos_ids = eos_ids
        self._found: dict[str, Any] = {}

    @property
    def greedy(self) -> str:
        """The greedy completion of `TEXT`."""
        return self._once("greedy", lambda: _text(self._ask(temperature=0)))

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the server makes of `TEXT`; None where it does not count."""
        return self._once(
            "prompt_tokens", lambda: _prompt_tokens(self._ask(max_tokens=1, temperature=0))
        )

    @property
    def ids_out(self) -> tuple[int, ...] | None:
        """The ids that the server makes of `TEXT`, where it returns token ids of prompts and of
        completions.
        """
        return self._once("ids_out", self._ids_out)

    @property
    def ids_in(self) -> bool:
        """Whether a prompt may be token ids: those of `TEXT` must be completed as `TEXT` is."""
        return self._once("ids_in", self._ids_in)

    @property
    def logprobs(self) -> bool:
        """Whether the likeliest tokens come with their log-probabilities."""
        return self._once("logprobs", self._logprobs)

    @property
    def streams(self) -> bool:
        return self._once("streams", self._streams)

    @property
    def stream_usage(self) -> bool:
        """Whether a stream may be asked to end with the usage."""
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        return self._once("stream_usage", lambda: self.streams and self._accepts_stream(asked))

    @property
    def seeds(self) -> Seeds:
        return self._once("seeds", self._seeds)

    @property
    def stops(self) -> Stops:
        return self._once("stops", lambda: self._stops({}))

    @property
    def stop_is_kept(self) -> bool:
        """Whether `include_stop_str_in_output` is understood."""
        kept = {"include_stop_str_in_output": True}
        return self._once(
            "stop_is_kept", lambda: self._stops(kept) in (Stops.CUT_BEHIND, Stops.OVERSHOOTS)
        )

    @property
    def top_k(self) -> Filters:
        return self._once("top_k", lambda: self._filter({"top_k": 1}))

    @property
    def min_p(self) -> Filters:
        return self._once("min_p", lambda: self._filter({"min_p": 1.0}))

    @property
    def several(self) -> bool:
        """Whether `n` gives several completions."""
        return self._once(
            "several",
            lambda: len((self._try(n=2, max_tokens=1) or {"choices": []})["choices"]) == 2,
        )

    def lines(self) -> list[tuple[str, str]]:
        """All of it, in words."""
        ids = {
            (True, True): "in and out",
            (True, False): "in",
            (False, True): "out",
            (False, False): "no: steps go as text",
        }
        keeps = (
            ", or kept on request" if self.stops is Stops.CUT_BEFORE and self.stop_is_kept else ""
        )
        return [
            ("streaming", _yes(self.streams)),
            ("token ids", ids[self.ids_in, self.ids_out is not None]),
            ("log-probabilities", _yes(self.logprobs)),
            ("seed", self.seeds.value),
            ("stop string", self.stops.value + keeps),
            ("top_k", self.top_k.value),
            ("min_p", self.min_p.value),
            ("n", _yes(self.several)),
        ]

    def _once(self, name: str, find: Callable[[], _Found]) -> _Found:
        if name not in self._found:
            self._found[name] = find()
        found: _Found = self._found[name]
        return found

    def _ask(self, prompt: Any = TEXT, **settings: Any) -> dict[str, Any]:
        return self.endpoint.complete(prompt, **{"max_tokens": LENGTH, **settings})

    def _try(self, prompt: Any = TEXT, **settings: Any) -> dict[str, Any] | None:
        """The answer; None if the server refuses the request, or fails at it although it answers
        plain ones.
        """
        self.greedy  # noqa: B018  # a server that is not there at all is another matter
        try:
            return self._ask(prompt, **settings)
        except Refused:
            return None
        except EndpointError as error:
            if (
                isinstance(error.__cause__, Broken)
                and error.__cause__.status
                and not error.__cause__.busy
            ):
                return None
            raise

    def _ids_out(self) -> tuple[int, ...] | None:
        answer = self._try(temperature=0, return_token_ids=True)
        choice = answer["choices"][0] if answer else {}
        ids = choice.get("prompt_token_ids") or (answer or {}).get("prompt_token_ids")
        proper = (
            isinstance(ids, list)
            and isinstance(choice.get("token_ids"), list)
            and all(isinstance(i, int) for i in ids)
        )
        return tuple(ids or ()) if proper else None

    def _ids_in(self) -> bool:
        ids = self.ids_out
        answer = self._try(list(ids) if ids else [1, 2, 3], temperature=0)
        return answer is not None and (ids is None or _text(answer) == self.greedy)

    def _logprobs(self) -> bool:
        answer = self._try(temperature=0, max_tokens=1, logprobs=5)
        found = (answer["choices"][0].get("logprobs") or {}) if answer else {}
        return bool(found.get("top_logprobs"))

    def _streams(self) -> bool:
        return self._accepts_stream({"stream": True})

    def _accepts_stream(self, settings: dict[str, Any]) -> bool:
        """Whether a stream gives the greedy text, and ends properly."""
        wanted, heard = self.greedy, ""
        body = self.endpoint.body(TEXT, {"max_tokens": LENGTH, "temperature": 0, **settings})
        try:
            for data in self.endpoint.client.events(COMPLETIONS, body, Call()):
                if data != "[DONE]":
                    heard += read_piece(parse_json(data)).text
        except (Broken, Refused):
            return False
        return heard == wanted

    def _seeds(self) -> Seeds:
        def drawn(seed: int) -> str:
            answer = self._try(temperature=2.0, top_p=1.0, seed=seed)
            return "" if answer is None else _text(answer)

        seeds = (11, 12, 13)
        alone = {seed: drawn(seed) for seed in seeds}
        if len(set(alone.values())) == 1 or any(drawn(seed) != alone[seed] for seed in seeds[:2]):
            return Seeds.NEVER
        with ThreadPoolExecutor(len(seeds)) as pool:
            together = list(pool.map(drawn, seeds * 2))
        return Seeds.ALWAYS if together == [alone[seed] for seed in seeds * 2] else Seeds.ALONE

    def _stops(self, settings: dict[str, Any]) -> Stops:
        """With a stop string from the middle of the greedy text, which must not have come
        before.
        """
        whole = self.greedy
        stop = next(
            (
                whole[i : i + 2]
                for i in range(len(whole) // 3, len(whole) - 2)
                if whole.find(whole[i : i + 2]) == i
            ),
            "",
        )
        answer = self._try(temperature=0, stop=[stop], **settings) if stop else None
        if answer is None:
            return Stops.IGNORED
        text, place = _text(answer), whole.find(stop)
        if text == whole or not whole.startswith(text):
            return Stops.IGNORED
        if len(text) <= place:
            return Stops.CUT_BEFORE
        return Stops.CUT_BEHIND if len(text) == place + len(stop) else Stops.OVERSHOOTS

    def _filter(self, one: dict[str, Any]) -> Filters:
        """`one` leaves a single token, so that the temperature must not matter."""
        hot = {"temperature": 5.0, "top_p": 1.0}
        answer = self._try(**hot, **one)
        if answer is not None and _text(answer) == self.greedy != self._hot():
            return Filters.FIELDS
        answer = self._try(**hot, generation_config=generation_config(self._eos_ids, **one))
        if answer is not None and _text(answer) == self.greedy != self._hot():
            return Filters.CONFIG
        return Filters.NOT

    def _hot(self) -> str | None:
        def find() -> str | None:
            answer = self._try(temperature=5.0, top_p=1.0)
            return None if answer is None else _text(answer)

        return self._once("hot", find)


def _text(answer: dict[str, Any]) -> str:
    try:
        return read_piece(answer).text
    except Broken as error:
        raise EndpointError(f"the server {error}.") from error


def _prompt_tokens(answer: dict[str, Any]) -> int | None:
    try:
        usage = read_piece(answer).usage
    except Broken:
        return None
    return None if usage is None else usage.prompt


def _yes(value: bool) -> str:
    return "yes" if value else "no"
