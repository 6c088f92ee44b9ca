"""Servers and reasoners for the tests of served models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fake_server import END, FakeServer, Manners, babble

from lr.measure.endpoint.address import Address, Retry, Servers
from lr.measure.endpoint.client import Client, Endpoint
from lr.measure.endpoint.models import ServedModel
from lr.measure.endpoint.probe import Capabilities
from lr.model.codec import Codec
from lr.reasoner import Reasoner

QUICK = Retry(timeout=30, attempts=4, pause=0.01, longest=0.05)
QUESTION = "How many coins does Ann have?"
IDS = Manners(ids=True, top_k=True, keeps_stop=True, logprobs=True)
"""As vLLM is."""
TEXT = Manners(config=True, usage=False, done=False, stop="overshoot", models=None)
"""As transformers' server is, where it cannot list its models; but seeds are heeded."""
PLAIN = Manners(strict=False)
"""Text, a list of models, nothing else."""
MANNERS = {"ids": IDS, "text": TEXT, "plain": PLAIN}


def tokenizer() -> Any:
    return Codec.load("tiny-target").tokenizer


@contextmanager
def serving(
    manners: Manners, *, salt: str = "target", longest: int = 300
) -> Iterator[FakeServer]:
    """A server of a babbling model. It has the models tiny-target and tiny-draft,
    unless it lists none.
    """
    names = (
        None if manners.models is None else ("tiny-target", "tiny-draft", "tiny-judge")
    )
    server = FakeServer(babble(longest, salt=salt), manners, tokenizer())
    server.behave(models=names)
    with server:
        yield server


def client(server: FakeServer, retry: Retry = QUICK, **settings: Any) -> Client:
    return Client(Address.parse(server.address()), retry=retry, **settings)


def endpoint(server: FakeServer, retry: Retry = QUICK) -> Endpoint:
    return Endpoint.open(client(server, retry))


def capabilities(server: FakeServer) -> Capabilities:
    return Capabilities(endpoint(server), (430,))


def served(server: FakeServer, **settings: Any) -> ServedModel:
    return ServedModel.open(server.address(), Servers(retry=QUICK, **settings))


def reasoner(
    target: FakeServer | str,
    draft: FakeServer | str | None,
    verifier: Any = "exact",
    **settings: Any,
) -> Reasoner:
    """A reasoner on servers and checkpoints."""
    names = [
        one.address(name) if isinstance(one, FakeServer) else one
        for one, name in ((target, "tiny-target"), (draft, "tiny-draft"))
    ]
    return Reasoner(
        names[0], names[1], verifier, servers=Servers(retry=QUICK), **settings
    )


def plain_text(server: FakeServer, prompt: str, words: int = 400) -> str:
    """What the server's model writes greedily after a prompt, at one go."""
    text = ""
    for _ in range(words):
        word = server.write(prompt + text, None)
        if word == END:
            break
        text += word
    return text
