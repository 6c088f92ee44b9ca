"""From names to models and a verifier, loaded here, spread over ranks, or behind a server.

What is missing or does not fit is said before anything large is loaded: tokenizers first, then the
verifier's name, then the target, the draft and what the verifier is made of. Verifiers by name
(`lr/parts/verifiers.py`) and models behind servers are found through `lr/registry.py`. Read next:
`engine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lr.engine.engine import Models
from lr.engine.runner import Runners
from lr.engine.worker import DraftWorker, Parts
from lr.errors import SettingError
from lr.model.attention_choice import equip
from lr.model.codec import Codec, require_same
from lr.model.device import Device, DeviceMap
from lr.model.weights import load_model
from lr.registry import find, is_served
from lr.spec.verifiers.base import Verifier, check_verifier
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.endpoint.address import Servers

MOST_BLOCKS = 1 << 24  # Of a cache: 268 million tokens.


def load_models(
    target: str | Path,
    draft: str | Path | None,
    verifier: str | Verifier | None,
    judge: str | Path | None,
    device: Device | Mapping[str, Device] | DeviceMap,
    dtype: torch.dtype | None,
    num_blocks: int | None,
    servers: Servers | None,
    attention: str,
    graphs: bool,
) -> tuple[Models, str | Verifier]:
    """All models, and the verifier (its name where nothing is drafted). See `Reasoner`."""
    whole = num_blocks is None or 0 < num_blocks <= MOST_BLOCKS
    require(whole, "num_blocks", num_blocks, f"1 to {MOST_BLOCKS}, or None")
    devices = DeviceMap.of(device)
    if devices.ranks > 1 and is_served(target):
        raise SettingError(
            f"target {target} is behind a server, and tensor_parallel is {devices.ranks}: the "
            "server spreads its models itself; leave tensor_parallel out."
        )
    served_target = _served(target, servers, "target")
    codec: Codec = Codec.load(target) if served_target is None else served_target.codec
    served_draft = _served(draft, servers, "draft", codec)
    known_tokens = codec.vocab_size
    if draft is not None and served_draft is None:
        draft_codec = Codec.load(draft)
        require_same(codec, draft_codec)
        known_tokens = draft_codec.vocab_size
    if dtype is None and devices.target[0].type == "cpu":
        dtype = torch.float32

    if verifier is None:
        verifier = find("lr.parts.verifiers:usual_verifier")(codec, judge)
    served_judge, choice = _served(judge, servers, "judge"), None
    if not isinstance(verifier, str):
        verifier = check_verifier(verifier)
    elif draft is not None or judge is not None:
        how = (devices.judge, dtype, num_blocks, attention, graphs)
        choice = find("lr.parts.verifiers:VerifierChoice")(verifier, codec, judge, *how)
        if served_judge is not None:
            verifier = find("lr.lab.endpoint.judge:served_judge")(choice, served_judge)
            choice = None
    named = {"target": target, "draft": draft, "judge": judge}
    named["verifier"] = verifier if isinstance(verifier, str) else verifier.name
    names = {role: None if name is None else str(name) for role, name in named.items()}

    target_model = served_target
    if devices.ranks > 1:
        spread = find("lr.model.ranks:load_parallel")
        target_model = spread(target, devices.target, dtype, devices.torchrun)
    elif served_target is None:
        target_model = load_model(target, device=devices.target[0], dtype=dtype)
    draft_model = served_draft
    if draft is not None and served_draft is None:
        draft_model = load_model(draft, device=devices.draft, dtype=dtype)
        if draft_model.config.vocab_size < codec.vocab_size:
            raise SettingError(
                f"draft {draft} embeds {draft_model.config.vocab_size} token ids, target {target} "
                f"writes {codec.vocab_size}. Choose a draft whose embedding has a row for each of "
                "the target's tokens."
            )
    models = Models(codec, target_model, draft_model, known_tokens, num_blocks, names=names)
    if draft is not None and served_draft is None and served_target is None:
        models = replace(models, worker=draft_worker(draft, models, devices))
    try:
        use_attention(models, attention, graphs=graphs)
    except BaseException:
        if devices.ranks > 1:
            target_model.close()
        raise
    if choice is not None and draft is not None:
        build: Any = choice.build
        if served_target is not None:
            build = partial(find("lr.lab.endpoint.judge:beside_served_target"), choice)
        verifier = build(target_model)
        models = replace(models, judge=choice.model)
    return models, verifier


def draft_worker(name: str | Path, models: Models, devices: DeviceMap) -> DraftWorker:
    """The worker of a loaded draft: a thread shares its weights, a process loads its own."""
    model, codec = models.draft, models.codec
    assert model is not None
    how = (codec.vocab_size, models.known_tokens, models.num_blocks)
    if devices.shares_gpu:
        parts = (Runners(model, *how), codec.token_bytes)
        return DraftWorker(lambda: parts, as_thread=True)
    tokens = tuple(map(codec.token_bytes, range(codec.vocab_size)))
    return DraftWorker(partial(load_parts, name, devices.draft, model.dtype, tokens, how))


def load_parts(
    name: str | Path,
    device: torch.device,
    dtype: torch.dtype,
    tokens: Sequence[bytes],
    how: tuple[int, int, int | None],
    attention: str = "auto",
    graphs: bool = True,
) -> Parts:
    """What a worker process needs: the checkpoint, and the bytes of all tokens by id. `how`:
    `vocab_size`, `known_tokens` and `num_blocks` of `Runners`.
    """
    model = load_model(name, device=device, dtype=dtype)
    equip(model, attention, graphs=graphs)
    return Runners(model, *how), tokens.__getitem__


def use_attention(models: Models, name: str = "auto", *, graphs: bool = True) -> None:
    """Attention for target, draft and worker."""
    for model in models.here.values():
        equip(model, name, graphs=graphs)
    if models.worker is not None:
        models.worker.close()  # the next answer starts another, with this attention
        if not models.worker.as_thread:
            load: Any = models.worker.load
            models.worker.load = partial(load, attention=name, graphs=graphs)


def _served(
    name: str | Path | None, servers: Servers | None, role: str, codec: Codec | None = None
) -> Any:
    """The served model, where `name` is an address; `codec`: the target's."""
    if not is_served(name):
        return None
    settings = servers or find("lr.lab.endpoint.address:Servers")()
    return find("lr.lab.endpoint.models:ServedModel").open(name, settings, role, codec)
