"""Probing: what a server does is found out, whatever it accepts."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from endpoint_kit import (
    IDS,
    PLAIN,
    QUICK,
    TEXT,
    capabilities,
    endpoint,
    served,
    serving,
)
from fake_server import Manners

from lr.errors import SettingError
from lr.measure.endpoint.client import Broken, StreamPiece, Usage, read_piece
from lr.measure.endpoint.probe import TEXT as SAMPLE
from lr.measure.endpoint.probe import Filters, Seeds, Stops
from lr.model.codec import Codec


def test_one_that_can_do_everything() -> None:
    with serving(IDS) as server:
        can = capabilities(server)
        assert can.ids_out == tuple(Codec.load("tiny-target").encode(SAMPLE))
        assert (can.ids_in, can.logprobs, can.streams, can.stream_usage) == (
            True,
            True,
            True,
            True,
        )
        assert (can.seeds, can.top_k, can.min_p) == (
            Seeds.ALWAYS,
            Filters.FIELDS,
            Filters.FIELDS,
        )
        assert (can.stops, can.stop_is_kept) == (Stops.CUT_BEFORE, True)
        asked = len(server.log.bodies)
        assert dict(can.lines())["token ids"] == "in and out"
        assert len(server.log.bodies) == asked, "what was found is remembered"


def test_one_as_transformers_serves() -> None:
    with serving(TEXT) as server:
        can = capabilities(server)
        assert (can.ids_out, can.ids_in, can.logprobs) == (None, False, False)
        assert (can.streams, can.stream_usage) == (True, False)
        assert (can.top_k, can.min_p) == (Filters.CONFIG, Filters.CONFIG)
        assert (can.stops, can.stop_is_kept) == (Stops.OVERSHOOTS, False)


def test_fields_that_are_accepted_and_ignored_do_not_count() -> None:
    with serving(replace(PLAIN, strict=False, stop="ignored", seeds=False)) as server:
        can = capabilities(server)
        assert (can.stops, can.stop_is_kept, can.seeds) == (
            Stops.IGNORED,
            False,
            Seeds.NEVER,
        )
        assert (can.top_k, can.min_p, can.logprobs, can.ids_out) == (
            Filters.NOT,
            Filters.NOT,
            False,
            None,
        )


def test_one_that_does_not_stream() -> None:
    with serving(replace(PLAIN, streams=False)) as server:
        assert not capabilities(server).streams


def test_a_seed_for_everybody_is_nobodys() -> None:
    """The server seeds one generator when a request comes and draws a little later:
    requests that overlap disturb each other.
    """
    with serving(PLAIN) as server:
        can, whole = capabilities(server), server.words
        generator = {"seed": 0}

        def shared(prompt: str, body: dict) -> list:
            if "seed" not in body:
                return whole(prompt, body)
            generator["seed"] = body["seed"]
            time.sleep(0.05)
            return whole(prompt, {**body, "seed": generator["seed"]})

        server.words = shared  # type: ignore[method-assign]
        assert can.seeds is Seeds.ALONE


@pytest.mark.parametrize(
    "manners", [IDS, TEXT, Manners(strict=False)], ids=["ids", "text", "usage"]
)
def test_a_wrong_tokenizer_is_noticed(manners: Manners) -> None:
    """The server counts, or returns, tokens of the tiny language; another tokenizer
    makes others of the sample.
    """
    with serving(manners) as server:
        if manners is TEXT:
            server.behave(usage=False)
        assert served(server).codec.name == "tiny-target"
        server.tokenizer = _Halved(server.tokenizer)
        if server.manners.ids or server.manners.usage:
            with pytest.raises(
                SettingError,
                match=r"of which the tokenizer of tiny-target makes .*--tokenizer",
            ):
                served(server)


class _Halved:
    """A tokenizer with other ids."""

    def __init__(self, tokenizer: object) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, **settings: object) -> list[int]:
        return [i // 2 for i in self.tokenizer.encode(text, **settings)] * 2


def test_ids_go_where_they_are_understood() -> None:
    for manners, ids in ((IDS, True), (TEXT, False), (PLAIN, False)):
        with serving(manners) as server:
            assert served(server).ids is ids
            assert served(server).context == 4096


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"choices": 7},
        {"choices": [{"text": 7}]},
        {"choices": [7]},
        {"choices": [{"text": "", "token_ids": ["x"]}]},
    ],
)
def test_what_is_no_completion(raw: object) -> None:
    with pytest.raises(Broken, match="no completion"):
        read_piece(raw)


def test_pieces() -> None:
    raw = {"choices": [{"text": "a", "token_ids": [3], "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    piece = read_piece({**raw, "usage": usage})
    assert (piece.text, piece.ids, piece.finish) == ("a", (3,), "stop")
    assert piece.usage == Usage(5, 1)
    assert read_piece({"choices": [], "usage": usage}) == StreamPiece(
        "", usage=piece.usage
    )
    with pytest.raises(Broken, match="gave an answer up"):
        read_piece({"choices": [{"text": "a", "finish_reason": "abort"}]})
    with pytest.raises(Broken, match="reported an error"):
        read_piece({"error": "out of memory"})


def test_an_endpoint_says_what_it_is() -> None:
    with serving(PLAIN) as server:
        assert str(endpoint(server, QUICK)) == f"tiny-target at {server.server}"
