"""What passes: the names, the declared metadata and the values of one round."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from harness.conformance.check import check
from harness.conformance.sync.consumer import read_at_once
from harness.conformance.verdict import Kind, NotApplicable, Violation
from harness.memory import measure

if TYPE_CHECKING:
    from harness.conformance.sync.stage import SyncCell


@check(
    "sync/smoke",
    must="A subject MUST start on every rank and yield at least one (name, tensor) pair.",
    since="0.1",
    smoke=True,
)
def test_smoke(sync: SyncCell) -> None:
    stream = sync.open().stream()
    yielded = sum(1 for _ in stream)
    sync.evidence["yielded"] = yielded
    if not yielded:
        raise Violation(Kind.BROKEN, "expected at least one (name, tensor) pair, the subject yielded nothing")


@check(
    "sync/names",
    must=(
        "Every parameter of the merged model MUST be yielded exactly once, under the name that the inference engine"
        " knows it by; no name of the adapter or of a wrapper around a module may be yielded."
    ),
    since="0.1",
    reports=("trl#6975",),
)
def test_names(sync: SyncCell) -> None:
    seen = Counter(name for name, _ in sync.open().stream())
    expected = set(sync.targets)
    unknown = sorted(set(seen) - expected)
    missing = sorted(expected - set(seen))
    repeated = sorted(name for name, count in seen.items() if count > 1)
    sync.evidence.update(
        yielded=sum(seen.values()),
        expected=len(expected),
        unknown=unknown[:5],
        missing=missing[:5],
        repeated=repeated[:5],
    )
    if unknown:
        raise Violation(
            Kind.LEAKED_NAME,
            f"{len(unknown)} name(s) that the engine does not know, the first: {unknown[0]}"
            + (f"; {len(missing)} missing, the first: {missing[0]}" if missing else ""),
        )
    if missing:
        raise Violation(
            Kind.MISSING,
            f"{len(missing)} of {len(expected)} parameters never yielded, the first: {missing[0]}",
        )
    if repeated:
        raise Violation(
            Kind.WRONG, f"{len(repeated)} parameter(s) yielded more than once, the first: {repeated[0]}"
        )


@check(
    "sync/metadata",
    must=(
        "metadata() MUST give the name, dtype and full shape of every tensor of a pass, in the order of the pass,"
        " without a collective and without gathering anything."
    ),
    since="0.1",
    reports=("SkyRL#1581", "SkyRL#1816"),
)
def test_metadata(sync: SyncCell) -> None:
    source = sync.open()
    if not hasattr(source.source, "metadata"):
        raise NotApplicable("the subject declares no metadata()")
    source.metadata()  # warm: lazily made tables are not what the requirement is about
    with measure(sync.scenario.device) as memory:
        declared = source.metadata()
    assert declared is not None
    passed = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source.stream()]
    largest = max(sync.sizes.values())
    sync.evidence.update(
        declared=len(declared),
        yielded=len(passed),
        peak_bytes=memory.peak_bytes,
        largest_bytes=largest,
    )
    for index, (before, after) in enumerate(zip(declared, passed, strict=False)):
        if before != after:
            raise Violation(
                Kind.WRONG, f"entry {index}: metadata() declares {before}, the pass yielded {after}"
            )
    if len(declared) != len(passed):
        raise Violation(
            Kind.WRONG, f"metadata() declares {len(declared)} tensors, the pass yielded {len(passed)}"
        )
    if memory.peak_bytes >= largest:
        raise Violation(
            Kind.OVER_BOUND,
            f"metadata() allocated {memory.peak_bytes} bytes, as much as the largest tensor ({largest}):"
            " something was gathered",
        )


@check(
    "sync/values",
    must=(
        "Every yielded tensor MUST equal merge_and_unload() of the unsharded model, up to the rounding of the model's"
        " dtype, when it is read at the moment of the yield."
    ),
    since="0.1",
    reports=("trl#2698", "trl#2856", "peft#3531"),
)
def test_values(sync: SyncCell) -> None:
    got = read_at_once(sync.open().stream())
    worst, worst_name, exact, unmerged = 0.0, "", 0, []
    for name, target in sync.targets.items():
        value = got.get(name)
        if value is None:
            continue  # sync/names judges that
        if value.shape != target.merged.shape or value.dtype != target.merged.dtype:
            raise Violation(
                Kind.WRONG,
                f"{name}: expected {target.merged.dtype} {tuple(target.merged.shape)},"
                f" got {value.dtype} {tuple(value.shape)}",
            )
        exact += target.merged.equal(value.cpu())
        if target.is_unmerged(value):
            unmerged.append(name)
        error = target.error(value)
        if error > worst:
            worst, worst_name = error, name
    adapted = sum(target.adapted for target in sync.targets.values())
    sync.evidence.update(
        tensors=len(got),
        bit_equal_to_peft=exact,
        adapted=adapted,
        unmerged=len(unmerged),
        worst_in_bounds=worst,
    )
    if unmerged:
        raise Violation(
            Kind.STALE,
            f"{len(unmerged)} of {adapted} adapted tensors arrived without the adapter, the first: {unmerged[0]}",
        )
    if worst > 1.0:
        raise Violation(
            Kind.WRONG, f"{worst_name}: off by {worst:.3g} times what rounding in its dtype explains"
        )
    if not got.keys() & sync.targets.keys():
        raise Violation(Kind.MISSING, "no tensor arrived under a name of the merged model")
