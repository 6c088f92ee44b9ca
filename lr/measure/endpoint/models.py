"""A served model: an endpoint, the tokenizer of its checkpoint, and what the two can
do.

Steps have the server's own token ids if the endpoint takes and returns ids. Otherwise
they have ids that spell the server's text byte for byte (`exact_ids` of `writer.py`).
docs/engines.md says what follows from that, and from a draft with another tokenizer. A
model on a server gives no logits, so no rule can accept tokens that were drafted here.
Settings that need what an endpoint lacks are refused before anything is generated. Read
next: `writer.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lr.errors import CheckpointError, SettingError
from lr.measure.endpoint.address import Address, Servers
from lr.measure.endpoint.client import Client, Endpoint
from lr.measure.endpoint.probe import TEXT, Capabilities, Filters, Seeds
from lr.model.codec import Codec, first_difference
from lr.model.files import read_json, resolve
from lr.spec.verifiers.base import Requires
from lr.types import SamplingParams

if TYPE_CHECKING:
    from lr.engine.engine import Run
    from lr.measure.endpoint.writer import ServedWriter
    from lr.spec.write import WriterConfig

LONGEST_CONTEXT = 32768  # Tokens, if neither server nor checkpoint states a limit.
INDEPENDENT = "Use coupling 'independent'"


class NotHere(SettingError, AttributeError):
    """The attribute exists only for a model in this process."""


class ServedModel:
    """A model on a server. `codec`: that of its checkpoint; `target`: the target's,
    whose token ids the chain has, if it differs.

    `ids`: requests and answers use token ids, not text. `context`: the longest sequence
    in tokens. `adds_bos`: the server puts a beginning-of-sequence token before a text.
    `heads`: for prompts of a target with another tokenizer, their text by this model's
    chat template."""

    def __init__(
        self,
        endpoint: Endpoint,
        codec: Codec,
        context: int,
        target: Codec | None = None,
    ) -> None:
        self.endpoint, self.codec, self.context = endpoint, codec, context
        self.can = Capabilities(endpoint, tuple(sorted(codec.eos_ids)))
        self.chain = codec if target is None else target
        self.foreign = bool(first_difference(self.chain, codec))
        self.heads: dict[tuple[int, ...], str] = {}
        self.adds_bos = self._check_tokenizer()
        self.ids = not self.foreign and self.can.ids_out is not None and self.can.ids_in

    @classmethod
    def open(
        cls,
        address: str,
        servers: Servers,
        role: str = "target",
        target: Codec | None = None,
    ) -> ServedModel:
        """The model at an address, as target, draft or judge. `target`: the codec of
        the chain's ids. Raises `EndpointError`, `SettingError`, or `CheckpointError`
        for its tokenizer."""
        client = Client(Address.parse(address), servers.api_key, servers.retry)
        flag = "tokenizer" if role == "target" else f"{role}_tokenizer"
        endpoint, named = Endpoint.open(client), getattr(servers, flag)
        try:
            codec = Codec.load(named or endpoint.name)
        except CheckpointError as error:
            if named is not None:
                raise
            raise CheckpointError(
                f"no tokenizer is found under the name of {endpoint} ({error}) Give --{flag}, the "
                "directory or hub name of the server's checkpoint; its weights are not needed here."
            ) from error
        return cls(endpoint, codec, endpoint.context or stated_context(codec), target)

    def prepare(self, run: Run) -> None:
        """See `ModelElsewhere`. Also keeps the prompt for a draft with another
        tokenizer."""
        check_run(run)
        if self.foreign:
            system, thinking = run.options.system, run.options.enable_thinking
            chat = self.codec.chat(
                run.question, system=system, enable_thinking=thinking
            )
            self.heads[tuple(run.prompt)] = self.text(chat, self.codec)

    def writer(self, config: WriterConfig) -> ServedWriter:
        """See `ModelElsewhere`. Text is handled byte by byte: byte i is the "token" -1
        - i."""
        from lr.measure.endpoint.writer import (  # imports torch
            ServedRunner,
            ServedWriter,
        )

        def token_bytes(token: int) -> bytes:
            return self.chain.token_bytes(token) if token >= 0 else bytes([~token])

        config = replace(config, speculation=None, keeps_logprobs=False)
        return ServedWriter(config, ServedRunner(self), token_bytes, model=self)

    def text(self, tokens: Sequence[int], codec: Codec | None = None) -> str:
        """The text to send for ids from the beginning of a sequence: with special
        tokens, except a first one that the server adds. `codec` of the ids; None: the
        chain's."""
        text = spell(codec or self.chain, tokens)
        return (
            text.removeprefix(self.codec.tokenizer.bos_token or "")
            if self.adds_bos
            else text
        )

    def settings(
        self, sampling: SamplingParams, limit: int, seed: int
    ) -> dict[str, Any]:
        """The fields of a request for at most `limit` tokens, without those that the
        endpoint would refuse or ignore. top_k and min_p are sent even if off: servers
        may have other defaults."""
        fields: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": sampling.temperature,
        }
        if not sampling.greedy:
            fields |= {"top_p": sampling.top_p, "seed": seed % 2**31}
            if self.can.top_k is Filters.FIELDS:
                fields["top_k"] = sampling.top_k or -1
                if self.can.min_p is Filters.FIELDS:
                    fields["min_p"] = sampling.min_p
            elif self.can.top_k is Filters.CONFIG:
                min_p = {"min_p": sampling.min_p} if sampling.min_p else {}
                fields |= self.can.config(top_k=sampling.top_k, **min_p)
        if self.ids:
            fields["return_token_ids"] = True
        if self.can.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        return fields

    def _check_tokenizer(self) -> bool:
        """Whether the server puts a beginning-of-sequence token before a text. Raises
        `SettingError` if it visibly tokenizes otherwise than `codec`."""
        theirs, ours = self.can.ids_out, self.codec.encode(TEXT)
        begun = list(
            self.codec.tokenizer(TEXT)["input_ids"]
        )  # perhaps with such a token
        adds_bos = begun[1:] == ours
        if theirs is not None:
            found, seen = list(theirs), f"the ids {list(theirs[:8])}..."
            agree, adds_bos = found in (ours, begun), adds_bos and found == begun
        elif (count := self.can.prompt_tokens) is not None:
            seen = f"{count} tokens"
            agree, adds_bos = (
                count in (len(ours), len(begun)),
                adds_bos and count == len(begun),
            )
        else:
            return adds_bos
        if not agree:
            raise SettingError(
                f"{self.endpoint} makes {seen} of a sample, of which the tokenizer of "
                f"{self.codec.name} makes {ours[:8]}... ({len(ours)} tokens). Name the server's "
                "checkpoint: --tokenizer, --draft_tokenizer or --judge_tokenizer."
            )
        return adds_bos

    def __getattr__(self, name: str) -> Any:
        """Explain that only a model in this process has this attribute."""
        raise NotHere(
            f"{self.__dict__.get('endpoint', 'a model')} is on a server, and this needs the model "
            f"itself (its {name}). Give a checkpoint to load in this process instead."
        )

    def __str__(self) -> str:
        return str(self.endpoint)


def check_run(run: Run) -> None:
    """Raise `SettingError` if a served target or draft lacks what the settings need."""
    from lr.spec.variant import Corrector  # imports torch

    options, verifier = run.options, run.verifier
    target: object = run.models.target
    draft: object = run.models.draft if options.needs_draft else None
    served = [model for model in (target, draft) if isinstance(model, ServedModel)]
    if options.looks_ahead and not isinstance(verifier, str):
        what, remedy = f"verifier {verifier.name!r}", "Use exact, judge or score"
        for model in served:
            given = Requires.TARGET_LOGPROBS if model is target else Requires.NOTHING
            if verifier.requires & (given | Requires.SAMPLING_LOGPROBS):
                refuse(model, what, "the log-probabilities of given tokens", remedy)
            if model is target and verifier.requires & Requires.HIDDEN:
                refuse(model, what, "hidden states", remedy)
    if isinstance(target, ServedModel) and options.speculates:
        how = f"drafter {options.drafter!r} and acceptance {options.acceptance!r}"
        lack = "the probabilities of tokens that were proposed elsewhere"
        mode = "lr" if options.mode == "lr+sd" else "ar"
        remedy = (
            f"Use mode {mode!r}, and start the server with its own speculative decoding"
        )
        refuse(target, f"mode {options.mode!r} with {how}", lack, remedy)
    if isinstance(draft, ServedModel) and options.drafts_tokens:
        remedy = "Use drafter ngram, suffix or step (lr+sd)"
        refuse(draft, f"drafter {options.drafter!r}", "logits", remedy)
    drawn, corrector = (
        "the log-probabilities under which it draws tokens",
        run.given.corrector,
    )
    keeps_all = (
        corrector is None or getattr(type(corrector), "keep", None) is Corrector.keep
    )
    if isinstance(target, ServedModel) and options.looks_ahead and not keeps_all:
        what = f"corrector {type(corrector).__name__}, because of its `keep`,"
        refuse(target, what, drawn, "Use a corrector without `keep`")
    if isinstance(draft, ServedModel) and run.given.may_follow is not None:
        refuse(draft, "the variant's may_follow", drawn, "Use a variant without it")
    shared = options.coupling == "shared"
    for model in served:
        if options.segmenter == "fixed" and not model.ids:
            lack, remedy = "token ids, which it counts", "Use another segmenter"
            refuse(model, "segmenter 'fixed'", lack, remedy)
        if not run.sampling.greedy:
            for name in ("top_k", "min_p"):
                value = getattr(run.sampling, name)
                if value and getattr(model.can, name) is Filters.NOT:
                    lack = f"{name}, which it refuses or ignores"
                    refuse(
                        model, f"{name} {value:g}", lack, f"Give {name} 0 (--{name} 0)"
                    )
            if shared and model.can.seeds is not Seeds.ALWAYS:
                lack = f"seeds that determine the draws (here: {model.can.seeds.value})"
                refuse(model, "coupling 'shared'", lack, INDEPENDENT)
    if shared and draft and len(served) == 1:
        refuse(served[0], "coupling 'shared'", "the noise of this process", INDEPENDENT)


def refuse_for_logprobs(model: ServedModel, what: str, remedy: str) -> None:
    """Raise `SettingError` if the server gives no log-probabilities of the likeliest
    tokens."""
    if not model.can.logprobs:
        refuse(model, what, "log-probabilities of the likeliest tokens", remedy)


def refuse(model: ServedModel, what: str, lacks: str, remedy: str) -> None:
    """Raise `SettingError`: `what` needs something that the endpoint `lacks`."""
    raise SettingError(
        f"{what} needs something that {model} does not give: {lacks}. {remedy}, or take a "
        "checkpoint in this process instead."
    )


def spell(codec: Codec, tokens: Sequence[int]) -> str:
    """The text of ids, special tokens included, as in a prompt."""
    added = codec.tokenizer.added_tokens_decoder.items()
    special = {i: token.content.encode() for i, token in added if token.special}
    parts = [special[i] if i in special else codec.token_bytes(i) for i in tokens]
    return b"".join(parts).decode(errors="replace")


def stated_context(codec: Codec) -> int:
    """The context length by the checkpoint's own files."""
    folder = resolve(codec.name, weights=False)
    if (folder / "config.json").is_file():
        stated = read_json(folder / "config.json").get("max_position_embeddings")
        if isinstance(stated, int) and stated > 0:
            return stated
    longest = codec.tokenizer.model_max_length
    return (
        int(longest)
        if isinstance(longest, int) and longest < 10**9
        else LONGEST_CONTEXT
    )
