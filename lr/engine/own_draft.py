"""A draft of a variant's own: an engine with the same target and another draft.

The reasoner's draft is not touched, so nobody else drafts with the variant's model, and
nothing has to be undone. With driver "overlapped" it writes in a thread of this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lr.engine.engine import Engine
from lr.engine.loading import Loader
from lr.model.codec import Codec, require_same
from lr.model.qwen import CausalLM
from lr.spec.checks import refuse
from lr.spec.variant import DraftModel
from lr.types import Role


def engine_with(engine: Engine, draft: DraftModel) -> Engine:
    """The engine with `draft`: a model, a checkpoint, or a function of the target."""
    target = engine.target
    codec = engine.codec
    known_tokens = codec.vocab_size
    model: Any = draft
    if isinstance(draft, (str, Path)):
        draft_codec = Codec.load(draft)
        require_same(codec, draft_codec)
        known_tokens = draft_codec.vocab_size
        model = Loader(target.dtype).load_draft(draft, target.device, codec)
    elif not isinstance(draft, CausalLM):
        model = draft(target)
    if not isinstance(model, CausalLM) or model.config.vocab_size < codec.vocab_size:
        expected = f"a lr.model.qwen.CausalLM with {codec.vocab_size} embeddings"
        refuse("draft", draft, model, expected)
    other = Engine(
        codec=codec,
        target=target,
        draft=model,
        judge=engine.judge,
        known_tokens=known_tokens,
        num_blocks=engine.num_blocks,
        names=engine.names,
    )
    other.runners[Role.TARGET] = engine.runners[Role.TARGET]
    other.add_thread()
    return other
