"""A draft of a variant's own: an engine with the same target and another draft.

The reasoner's draft is not touched, so nobody else drafts with the variant's model, and
nothing has to be undone. With driver "overlapped" it writes in a thread of this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lr.engine.engine import Engine
from lr.engine.runner import Runners
from lr.engine.worker import DraftWorker
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.spec.checks import refuse
from lr.spec.variant import DraftModel
from lr.types import Role


def engine_with(engine: Engine, draft: DraftModel) -> Engine:
    """The engine with `draft`: a model, a checkpoint, or a function of the target."""
    target = engine.target
    model: Any = draft
    known_tokens = engine.codec.vocab_size
    if isinstance(draft, (str, Path)):
        codec = Codec.load(draft)
        require_same(engine.codec, codec)
        known_tokens = codec.vocab_size
        model = load_model(draft, device=target.device, dtype=target.dtype)
        equip(model)
    elif not isinstance(draft, CausalLM):
        model = draft(target)
    if not isinstance(model, CausalLM):
        refuse("draft", draft, model, "a lr.model.qwen.CausalLM")
    if model.config.vocab_size < engine.codec.vocab_size:
        raise SettingError(
            f"the variant's draft has embeddings for {model.config.vocab_size} token ids, but "
            f"the target can write {engine.codec.vocab_size}."
        )
    other = Engine(
        codec=engine.codec,
        target=target,
        draft=model,
        judge=engine.judge,
        known_tokens=known_tokens,
        num_blocks=engine.num_blocks,
        names=engine.names,
    )
    other.runners[Role.TARGET] = engine.runners[Role.TARGET]
    sizes = (engine.codec.vocab_size, known_tokens, engine.num_blocks)
    parts = Runners(model, *sizes), engine.codec.token_bytes
    other.worker = DraftWorker(lambda: parts, as_thread=True)
    return other
