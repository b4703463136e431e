"""Every collective and every message that this process begins, in order, seen at torch's process groups.

All of torch's Python functions, and whoever kept a reference to one (DeepSpeed does), end in a method of
``ProcessGroup``; so that is where they are counted, for as long as a recording lasts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "reduce_scatter_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "all_to_all_single",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
_MESSAGES = ("send", "recv", "recv_anysource")


@dataclass(frozen=True)
class Begun:
    """One collective, or one end of a message.

    Attributes:
        operation: torch's name for it.
        group: name of the process group, the same on all its members.
        members: their global ranks.
        nbytes: of the tensors that it was given; of a broadcast or a message that is what moves.
        peer: global rank at the other end of a message; None for a collective.
    """

    operation: str
    group: str
    members: tuple[int, ...]
    nbytes: int
    peer: int | None = None

    def __str__(self) -> str:
        other = "" if self.peer is None else f" with rank {self.peer}"
        return f"{self.operation.strip('_')} of {self.nbytes} bytes{other} on ranks {list(self.members)}"


@contextmanager
def recorded() -> Iterator[list[Begun]]:
    """The list that fills, while the block runs, with what this process begins."""
    begun: list[Begun] = []
    own = vars(ProcessGroup)  # what getattr gives of a class of pybind11's would not bind when it is put back
    originals = {name: own[name] for name in (*_COLLECTIVES, *_MESSAGES) if name in own}
    for name in originals:
        setattr(ProcessGroup, name, _noting(begun, name, getattr(ProcessGroup, name)))
    try:
        yield begun
    finally:
        for name, original in originals.items():
            setattr(ProcessGroup, name, original)


def _noting(begun: list[Begun], name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def noted(group: Any, *given: Any, **named: Any) -> Any:
        members = tuple(torch.distributed.get_process_group_ranks(group))
        peer = None
        if name in {"send", "recv"}:
            peer = members[given[1]] if len(given) > 1 else None
        begun.append(Begun(name, str(group.group_name), members, _nbytes((given, named)), peer))
        return original(group, *given, **named)

    return noted


def _nbytes(given: object) -> int:
    if isinstance(given, torch.Tensor):
        return given.nbytes
    if isinstance(given, dict):
        given = list(given.values())
    return sum(map(_nbytes, given)) if isinstance(given, (list, tuple)) else 0
