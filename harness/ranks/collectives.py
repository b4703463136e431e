"""The last collective of each rank, from torch's flight recorder, and who is missing from it.

The recorder numbers the collectives of every process group alike on all its ranks, so a rank that waits in
number 7 waits for those whose last number is smaller. gloo and NCCL keep one in torch 2.13; where a backend
keeps none, the stack of the rank is all there is.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Collective:
    """One recorded collective. Plain data."""

    number: int
    """Sequence number in its process group, from 1."""
    operation: str
    """As in ``all_reduce``."""
    tensors: str
    """Element types and shapes of its inputs, as in ``float[3, 4]``."""
    group: str
    """Description of the process group."""
    finished: bool
    """The recorder has seen its end."""

    def __str__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"collective #{self.number} {self.operation}({self.tensors}) on {self.group}, {state}"


def last_recorded() -> Collective | None:
    """The last collective that this process began, or None where none is recorded."""
    if "torch" not in sys.modules:
        return None
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    recorded = json.loads(dump(includeCollectives=True, onlyActive=False))
    entries = [entry for entry in recorded.get("entries", []) if not entry.get("is_p2p")]
    return _read(entries[-1]) if entries else None


def missing_from(last: Mapping[int, Collective | None]) -> str:
    """A sentence about who did not join a collective that others wait in; empty when that cannot be told.

    Args:
        last: Every rank's last collective.
    """
    waiting = {rank: one for rank, one in last.items() if one is not None and not one.finished}
    if not waiting:
        return ""
    furthest = max(waiting.values(), key=lambda one: one.number)
    behind = []
    for rank, one in sorted(last.items()):
        if one is None:
            behind.append(f"rank {rank} (which began none)")
        elif one.group == furthest.group and one.number < furthest.number:
            behind.append(f"rank {rank} (whose last was #{one.number} {one.operation})")
    name = f"#{furthest.number} {furthest.operation} on {furthest.group}"
    if behind:
        return f"Missing from collective {name}: {', '.join(behind)}."
    kinds = {(one.operation, one.tensors) for one in waiting.values() if one.number == furthest.number}
    if len(kinds) > 1:
        told = ", ".join(
            f"rank {rank} {one.operation}({one.tensors})" for rank, one in sorted(waiting.items())
        )
        return f"The ranks began different collectives as #{furthest.number} on {furthest.group}: {told}."
    return ""


def _read(entry: Mapping[str, Any]) -> Collective:
    named = str(entry.get("profiling_name", "a collective"))
    shapes = zip(entry.get("input_dtypes") or [], entry.get("input_sizes") or [], strict=False)
    group = entry.get("process_group") or ["", "an unnamed group"]
    return Collective(
        number=int(entry.get("collective_seq_id", 0)),
        operation=named.partition(":")[2] or named,
        tensors=", ".join(f"{kind.lower()}{list(size)}" for kind, size in shapes),
        group=str(group[-1]) or str(group[0]),
        finished=bool(entry.get("retired")) or entry.get("state") == "completed",
    )
