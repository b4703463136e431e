"""What a round costs in memory, by formula of the scenario's tensor sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.conformance.check import check
from harness.conformance.sync.consumer import discard
from harness.conformance.verdict import Kind, Violation
from harness.memory import measure

if TYPE_CHECKING:
    from harness.conformance.sync.stage import SyncCell

# A module-wise sync holds the gathered weight, the yielded copy and a working copy: three of the largest tensor.
TENSORS_AT_ONCE = 3
INTERPRETER = 512 << 10  # bytes: Python objects and handles


@check(
    "sync/peak",
    must=(
        "On every rank, the peak of live bytes above what is resident between rounds, in a round whose consumer keeps"
        f" nothing, MUST NOT exceed {TENSORS_AT_ONCE} times the largest tensor, whatever the depth of the model."
    ),
    since="0.1",
    reports=("trl#3133", "ms-swift#7986", "trl#5766", "trl#6713"),
)
def test_peak(sync: SyncCell) -> None:
    discard(sync.open().stream())  # warm: first collectives, first matrix products, lazy imports
    with measure(sync.scenario.device) as memory:
        discard(sync.open().stream())
    largest, model = max(sync.sizes.values()), sum(sync.sizes.values())
    bound = TENSORS_AT_ONCE * largest + INTERPRETER
    sync.evidence.update(
        peak_bytes=memory.peak_bytes,
        bound_bytes=bound,
        largest_bytes=largest,
        model_bytes=model,
        retained_bytes=memory.retained_bytes,
        top=[{"site": str(site), "bytes": site.bytes} for site in memory.top(3)],
    )
    if memory.peak_bytes > bound:
        site = memory.top(1)[0]
        raise Violation(
            Kind.OVER_BOUND,
            f"peak {_mib(memory.peak_bytes)} above the resident shard, bound {_mib(bound)}"
            f" ({TENSORS_AT_ONCE} x largest tensor {_mib(largest)}; whole model {_mib(model)});"
            f" {_mib(site.bytes)} of it allocated by {site.function} ({_short(site.file)}:{site.line})",
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _short(path: str) -> str:
    """The part of a path that a reader of an installed package needs."""
    return path.rpartition("site-packages/")[2]
