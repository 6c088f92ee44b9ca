"""Sentence embeddings from a checkpoint of the sentence-transformers kind, by transformers alone.

The encoder's last hidden states are averaged over the tokens of a text and scaled to length 1,
which is what all-mpnet-base-v2 and all-MiniLM-L6-v2 are made for. A checkpoint that says it pools
otherwise is refused. transformers is imported when one is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lr.errors import CheckpointError


class SentenceEncoder:
    """Texts to unit vectors. Made by `load`; called with texts."""

    def __init__(self, tokenizer: Any, model: Any, max_tokens: int) -> None:
        self.tokenizer, self.model, self.max_tokens = tokenizer, model, max_tokens

    @classmethod
    def load(
        cls, name_or_path: str | Path, *, device: str | torch.device = "cpu"
    ) -> SentenceEncoder:
        """The encoder of a directory or a hub id, in the checkpoint's own precision. Raises
        CheckpointError.
        """
        from transformers import AutoModel, AutoTokenizer

        name = str(name_or_path)
        if not Path(name).is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise CheckpointError(
                f"there is no sentence encoder {name!r}: no such directory, and not a name on the Hugging Face hub (owner/model). "
                "Give the directory or the hub id of one, such as sentence-transformers/all-mpnet-base-v2."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
            model = AutoModel.from_pretrained(name).to(device).eval()
            pooling, stated = (
                _side_file(name, "1_Pooling/config.json"),
                _side_file(name, "sentence_bert_config.json"),
            )
        except (
            Exception
        ) as error:  # what a broken or absent checkpoint raises differs between versions
            said = (str(error).splitlines() or ["no message"])[0]
            raise CheckpointError(
                f"{name} cannot be loaded as a sentence encoder ({type(error).__name__}: {said}). "
                "Give the directory or the hub id of one, such as sentence-transformers/all-mpnet-base-v2."
            ) from error
        if not pooling.get("pooling_mode_mean_tokens", True):
            raise CheckpointError(
                f"{name} does not pool by the mean over tokens (1_Pooling/config.json: {pooling}), which is the only way known here. "
                "Choose another sentence encoder, such as sentence-transformers/all-mpnet-base-v2."
            )
        positions = (
            getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        )
        return cls(
            tokenizer,
            model,
            stated.get("max_seq_length") or min(tokenizer.model_max_length, positions),
        )

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """The embeddings [n, e] of n texts, each of length 1. Texts longer than the encoder takes
        are cut at their end.
        """
        batch = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        ).to(self.model.device)
        hidden = self.model(**batch).last_hidden_state  # [n, t, e]
        mask = batch["attention_mask"][..., None].to(hidden.dtype)
        return F.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1), dim=-1)


def _side_file(name: str, file: str) -> dict[str, Any]:
    """A JSON file beside the weights; empty where there is none."""
    from transformers.utils import cached_file

    found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    content: dict[str, Any] = json.loads(Path(found).read_text(encoding="utf-8")) if found else {}
    return content
