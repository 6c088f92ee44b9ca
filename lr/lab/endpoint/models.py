"""A served model as the rest of the house sees it: an endpoint, the tokenizer of its checkpoint,
and what may be asked of the two.

*What is the truth.* Where an endpoint takes and returns token ids, they are, as everywhere in this
house. Where it speaks text only, the text of a step is: it is what the server wrote, cut where the
step ends, and never changed. The rest of the house deals in ids all the same, so a step gets ids
that spell its text, byte for byte (`exact_ids`); which they are matters to nobody, because the next
request sends the text again.

*Another tokenizer.* A draft that speaks text may have a tokenizer, and a chat template, of its own:
steps go over as text, and the prompt is put by its own template (`ask`). Ids are exchanged only
between models whose ids mean the same. Read next: `writer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.errors import CheckpointError, SettingError
from lr.lab.endpoint.address import Address, Servers, is_address
from lr.lab.endpoint.client import Client, Endpoint, EndpointError, Prompt
from lr.lab.endpoint.probe import TEXT, Capabilities, Filters, generation_config
from lr.model.codec import Codec, same_tokenizer
from lr.model.files import read_json, resolve
from lr.types import SamplingParams

if TYPE_CHECKING:
    from lr.engine.engine import Run
    from lr.lab.endpoint.writer import ServedWriter
    from lr.spec.write import Writing

LONGEST_CONTEXT = 32768
"""Tokens, where neither the server nor the checkpoint says."""


class NotHere(SettingError, AttributeError):
    """Something of a model is asked for that only a model of this process has."""


class ServedModel:
    """A model behind an endpoint. `codec` is that of its checkpoint; `target` the codec of the
    chain's ids, where that is another's.

    `ids`: prompts and answers go as token ids. `context`: the longest sequence in tokens.
    `adds_bos`: the server puts a beginning-of-sequence token in front of a text.
    """

    def __init__(
        self, endpoint: Endpoint, codec: Codec, context: int, target: Codec | None = None
    ) -> None:
        self.endpoint, self.codec, self.context = endpoint, codec, context
        self.can = Capabilities(endpoint, tuple(sorted(codec.eos_ids)))
        self.chain = codec if target is None else target
        self.foreign = not same_tokenizer(self.chain, codec)
        self.heads: dict[tuple[int, ...], str] = {}
        self.adds_bos = False
        self._require_its_tokenizer()
        self.ids = not self.foreign and self.can.ids_out is not None and self.can.ids_in

    @classmethod
    def open(
        cls, address: str, servers: Servers, role: str = "target", target: Codec | None = None
    ) -> ServedModel:
        """The model at an address, as the target, the draft or the judge. `target`: the codec whose
        ids the chain is made of.

        Raises `EndpointError`, `SettingError`, or `CheckpointError` where its tokenizer cannot be
        had.
        """
        client = Client(Address.parse(address), servers.api_key, servers.retry)
        endpoint = Endpoint.open(client)
        named = servers.tokenizer_of(role)
        codec = tokenizer_for(
            endpoint, named, "tokenizer" if role == "target" else f"{role}_tokenizer"
        )
        return cls(endpoint, codec, endpoint.context or stated_context(codec), target)

    def prepare(self, run: Run) -> None:
        """See `ModelElsewhere`; a draft with another tokenizer is also told how to put the prompt."""
        from lr.lab.endpoint.needs import check_run

        draft = run.models.draft if run.options.needs_draft else None
        check_run(run.options, run.sampling, run.verifier, run.models.target, draft)
        if self.foreign:
            options = run.options
            thinking = options.enable_thinking
            self.ask(run.prompt, run.question, system=options.system, enable_thinking=thinking)

    def writer(self, writing: Writing) -> ServedWriter:
        """See `ModelElsewhere`."""
        from lr.lab.endpoint.branches import ServedRunner
        from lr.lab.endpoint.writer import ServedWriter, byte_of

        return ServedWriter(
            role=writing.role,
            runner=ServedRunner(self),
            sampling=writing.sampling,
            segmenter=writing.segmenter(self.chain.token_bytes if self.ids else byte_of),
            eos_ids=writing.eos_ids,
            model=self,
        )

    def ask(self, prompt: Sequence[int], question: str, **chat: Any) -> None:
        """From now on the target's `prompt` is put to this model by its own chat template; `chat`
        as in `Codec.chat`.
        """
        self.heads[tuple(prompt)] = self.text(self.codec.chat(question, **chat), self.codec)

    def text(self, tokens: Sequence[int], codec: Codec | None = None) -> str:
        """Ids that begin a sequence, as the text to send: special tokens written out, but for a
        first one that the server puts there itself. `codec`: whose ids they are; None: the
        chain's."""
        text = spell(codec or self.chain, tokens)
        return text.removeprefix(self.codec.tokenizer.bos_token or "") if self.adds_bos else text

    def prompt(self, head: str, start: int, tokens: Sequence[int]) -> Prompt:
        """What is sent for a sequence of ids of the chain, of which the first `start` are to be put
        as `head`.
        """
        if self.ids:
            return tokens
        return head + self.chain.decode(tokens[start:])

    def settings(self, sampling: SamplingParams, limit: int, seed: int) -> dict[str, Any]:
        """The fields of a request for at most `limit` tokens. A field that the endpoint would
        refuse or ignore is left out.
        """
        fields: dict[str, Any] = {"max_tokens": limit, "temperature": sampling.temperature}
        if not sampling.greedy:
            fields |= {"top_p": sampling.top_p, "seed": seed % 2**31, **self._filters(sampling)}
        if self.ids:
            fields["return_token_ids"] = True
        if self.can.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        return fields

    def _filters(self, sampling: SamplingParams) -> dict[str, Any]:
        """top_k and min_p, said even where they keep everything: a server may have defaults of its
        own.
        """
        if self.can.top_k is Filters.FIELDS:
            given: dict[str, Any] = {"top_k": sampling.top_k or -1}
            return given | ({"min_p": sampling.min_p} if self.can.min_p is Filters.FIELDS else {})
        if self.can.top_k is Filters.CONFIG:
            min_p = {"min_p": sampling.min_p} if sampling.min_p else {}
            config = generation_config(
                tuple(sorted(self.codec.eos_ids)), top_k=sampling.top_k, **min_p
            )
            return {"generation_config": config}
        return {}

    def _require_its_tokenizer(self) -> None:
        """Raise `SettingError` where the server visibly cuts text into other tokens than `codec`
        does. Sets `adds_bos`.
        """
        theirs, ours = self.can.ids_out, self.codec.encode(TEXT)
        begun = list(self.codec.tokenizer(TEXT)["input_ids"])  # perhaps with a token of beginning
        self.adds_bos = begun[1:] == ours
        if theirs is not None:
            agree = list(theirs) in (ours, begun)
            self.adds_bos = self.adds_bos and list(theirs) == begun
            seen = f"makes the ids {list(theirs[:8])}... of a sample"
        else:
            count = self.can.prompt_tokens
            agree = count is None or count in (len(ours), len(begun))
            self.adds_bos = self.adds_bos and count in (None, len(begun))
            seen = f"makes {count} tokens of a sample"
        if not agree:
            raise SettingError(
                f"{self.endpoint} {seen}, of which the tokenizer of {self.codec.name} makes {ours[:8]}... ({len(ours)} tokens). "
                "Name the checkpoint that the server has loaded: tokenizer, draft_tokenizer or judge_tokenizer (on the command line "
                "--tokenizer, --draft_tokenizer, --judge_tokenizer)."
            )

    def __getattr__(self, name: str) -> Any:
        """What only a model of this process has is refused in words, wherever it is asked for."""
        raise NotHere(
            f"{self.__dict__.get('endpoint', 'a model')} is behind a server, and this needs the model itself (its {name}): name a "
            "checkpoint to be loaded here instead."
        )

    def __str__(self) -> str:
        return str(self.endpoint)


def served_or_none(
    name: str | Path | None, servers: Servers, role: str, target: Codec | None = None
) -> ServedModel | None:
    """The served model, where `name` is an address; see `ServedModel.open`."""
    return ServedModel.open(str(name), servers, role, target) if is_address(name) else None


def spell(codec: Codec, tokens: Sequence[int]) -> str:
    """The text of ids with special tokens written out, as a prompt has it."""
    special = {
        i: token.content
        for i, token in codec.tokenizer.added_tokens_decoder.items()
        if token.special
    }
    parts = [
        special[token].encode() if token in special else codec.token_bytes(token)
        for token in tokens
    ]
    return b"".join(parts).decode(errors="replace")


def tokenizer_for(endpoint: Endpoint, named: str | None, flag: str) -> Codec:
    """The codec of a served model: that of the checkpoint that was named for it, or of the
    checkpoint that has the model's name.
    """
    try:
        return Codec.load(named or endpoint.name)
    except CheckpointError as error:
        if named is not None:
            raise
        raise CheckpointError(
            f"the tokenizer of {endpoint} is not to be had under that name ({error}) Give {flag} (on the command line --{flag}): "
            "the directory or hub name of the checkpoint that the server has loaded; its weights are not needed here."
        ) from error


def stated_context(codec: Codec) -> int:
    """The context by the checkpoint's own files."""
    folder = resolve(codec.name, weights=False)
    if (folder / "config.json").is_file():
        stated = read_json(folder / "config.json").get("max_position_embeddings")
        if isinstance(stated, int) and stated > 0:
            return stated
    longest = codec.tokenizer.model_max_length
    return int(longest) if isinstance(longest, int) and longest < 10**9 else LONGEST_CONTEXT


def exact_ids(codec: Codec, text: str) -> list[int]:
    """Ids that spell `text`, byte for byte: its encoding where that gives the text back, else
    character by character.

    A tokenizer may change what it reads (Qwen's composes "e" and an accent into one character), or
    read a special token where the text merely names it. Raises `EndpointError` if it has no tokens
    for some character.
    """
    ids = codec.encode(text)
    if codec.decode(ids) == text:
        return ids
    single = {codec.token_bytes(token): token for token in reversed(range(codec.vocab_size))}
    ids = []
    for character in text:
        own, pieces = codec.encode(character), [bytes([byte]) for byte in character.encode()]
        if codec.decode(own) == character:
            ids += own
        elif all(piece in single for piece in pieces):
            ids += [single[piece] for piece in pieces]
        else:
            raise EndpointError(
                f"the tokenizer of {codec.name} has no tokens for {character!r}, which a server wrote."
            )
    return ids
