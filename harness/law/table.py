"""The law as a table, and as the document behind it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from harness import __version__
from harness.law.rows import GB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from harness.law.model import Model
    from harness.law.rows import Request, Row

COMPUTED = (
    "Shard and peak are counted from the code of each path, run on fake tensors as rank 0 of a ZeRO-3 trainer with LoRA"
    " on all linear layers: every storage it makes, at the model's own shapes, on PyTorch's CPU path (where PEFT merges"
    " in float32)."
)
ARITHMETIC = (
    "Whether a card fits is arithmetic: shard + peak against its GB (1e9 bytes), with nothing else on it: no optimizer,"
    " gradients, activations, CUDA context or communication buffers."
)
_LIBRARIES = ("torch", "deepspeed", "peft", "transformers", "trl")


def table(request: Request, found: Sequence[Row]) -> RenderableType:
    """A table for people: sizes in GB of 1e9 bytes, one block per model and world size."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    board = Table(title=f"Memory of one sync per GPU, GB ({request.dtype}, LoRA rank {request.adapter_rank})")
    for heading in ("model", "ranks"):
        board.add_column(heading)
    board.add_column("path")
    for heading in ("shard", "peak", "together", *(f"{card} GB" for card in request.cards)):
        board.add_column(heading, justify="right")
    before = ("", 0)
    for row in found:
        place = (row.model, row.world_size)
        if before[1] and place != before:
            board.add_section()
        first = [row.model, str(row.world_size)] if place != before else ["", ""]
        sizes = [_gb(size) for size in (row.shard_bytes, row.peak_bytes, row.together)]
        marks = [
            Text("fits", style="green") if row.fits(card) else Text("no", style="red")
            for card in request.cards
        ]
        board.add_row(*first, row.path, *sizes, *marks)
        before = place
    sources = [Text(f"{model.name}: {_largest(model, found)}; {model.source}") for model in request.models]
    return Group(board, *sources, Text(""), Text(COMPUTED), Text(ARITHMETIC))


def document(request: Request, found: Sequence[Row]) -> dict[str, Any]:
    """The same as data; sizes in bytes."""
    return {
        "schema": 1,
        "suite": __version__,
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "computed": COMPUTED,
        "arithmetic": ARITHMETIC,
        "dtype": request.dtype,
        "adapter_rank": request.adapter_rank,
        "models": [{"name": model.name, "source": model.source} for model in request.models],
        "rows": [row.as_data(request.cards) for row in found],
    }


def _largest(model: Model, found: Sequence[Row]) -> str:
    row = next(row for row in found if row.model == model.name)
    return f"{_gb(row.model_bytes)} GB, largest tensor {_gb(row.largest_bytes)} GB"


def _gb(size: int) -> str:
    return f"{size / GB:.{2 if size >= GB else 4}f}"


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
