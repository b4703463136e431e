"""What happens on the next larger model: the memory law, judged by its slope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.conformance.check import check
from harness.conformance.sync.build import Trainer
from harness.conformance.sync.family import SHALLOW, family
from harness.conformance.sync.stage import SyncCell
from harness.conformance.verdict import Kind, Violation
from harness.memory.law import TOLERANCE, fit


@check(
    "sync/scale",
    must=(
        "Over models of several depths and widths, the peak of live bytes above the resident shard MUST follow the"
        f" largest tensor and not the depth: fitted to a law, each layer raises it by at most {TOLERANCE} of the bytes"
        " of a layer."
    ),
    since="0.2",
    reports=("trl#3133", "ms-swift#7986", "trl#6713"),
    scenarios=("llama-lora-zero3x2-*", "llama-rslora-fsdp2x2-*"),
)
def test_scale(sync: SyncCell) -> None:
    samples = [
        member.measured(
            member.build(),
            lambda model: _on(sync, model).open().stream(),
            passes=2 if member.depth == SHALLOW else 1,
        )
        for member in family(sync.scenario)
    ]
    law = fit(samples)
    sync.evidence.update(
        law=str(law),
        tensors=round(law.tensors, 3),
        layers=round(law.layers, 3),
        layers_error=round(law.layers_error, 3),
        samples=[
            {"depth": one.depth, "largest_bytes": one.largest_bytes, "peak_bytes": one.peak_bytes}
            for one in samples
        ],
    )
    if law.grows():
        raise Violation(Kind.OVER_BOUND, f"{law}; at most {TOLERANCE} of a layer was expected")


def _on(sync: SyncCell, model: Any) -> SyncCell:
    """The same cell on another model, whose evidence nobody reads."""
    return SyncCell(replace(sync.stage, trainer=Trainer(model, model, None)), sync.subject)
