"""What an engine is started from: a scenario's model before any adapter, saved, with a tokenizer made on the spot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.conformance.sync.build import bare
from harness.conformance.sync.models import VOCABULARY

if TYPE_CHECKING:
    from pathlib import Path

    from harness.conformance.sync.scenarios import SyncScenario

CONTEXT = 64
"""Longest sequence of the model, in tokens."""
_CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def save(scenario: SyncScenario, folder: Path) -> Path:
    """Write the checkpoint that the scenario's trainer started from; equal scenarios give equal bytes.

    The tokenizer has one word per id: ``w7`` is token 7.
    """
    bare(scenario).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "w0",
        "eos_token": "w1",
        "pad_token": "w1",
        "model_max_length": CONTEXT,
        "chat_template": _CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
