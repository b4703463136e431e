"""Models by their configuration: three that everybody knows, and a user's own ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import MissingLibrary, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Model:
    """A model's shapes, and where they were found."""

    name: str
    source: str
    """A publication or a file."""
    config: dict[str, Any]
    """As in a ``config.json`` of transformers."""


_LLAMA_3 = "The Llama 3 Herd of Models (arXiv:2407.21783), table 3; vocabulary of the released 3.1 models"
_SHAPES = {  # layers, width, width of the MLP, heads
    "Llama 3.1 8B": (32, 4096, 14336, 32),
    "Llama 3.1 70B": (80, 8192, 28672, 64),
    "Llama 3.1 405B": (126, 16384, 53248, 128),
}


def standard() -> list[Model]:
    """The three sizes of Llama 3.1, written here as plain figures."""
    return [
        Model(
            name,
            _LLAMA_3,
            {
                "model_type": "llama",
                "vocab_size": 128_256,
                "num_hidden_layers": layers,
                "hidden_size": width,
                "intermediate_size": inner,
                "num_attention_heads": heads,
                "num_key_value_heads": 8,
                "tie_word_embeddings": False,
            },
        )
        for name, (layers, width, inner, heads) in _SHAPES.items()
    ]


def read(path: Path) -> Model:
    """A user's model, by its ``config.json`` or by the folder that holds one.

    Raises:
        UsageError: there is no such file, it is no configuration, its architecture is unknown to the installed
            transformers, or the model is quantised.
        MissingLibrary: transformers is not installed.
    """
    place = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {place}: expected a model's config.json") from None
    except OSError as error:
        raise UsageError(f"cannot read {place}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{place} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(f'{place} has no "model_type": expected the config.json of a transformers model')
    if config.get("quantization_config"):
        raise UsageError(
            f"{place} is of a quantised model, whose weights a LoRA cannot be merged into: give the original's"
        )
    _known(config["model_type"], str(place))
    name = place.parent.resolve().name if place.name == "config.json" else place.stem
    return Model(str(config.get("_name_or_path") or name), str(place), config)


def _known(model_type: str, place: str) -> None:
    try:
        from transformers import __version__
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        raise MissingLibrary("transformers", "zero3", "building a model from its configuration") from None
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UsageError(
            f"{place}: transformers {__version__} knows no causal language model of type {model_type!r}"
        )
