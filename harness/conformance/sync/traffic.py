"""Every collective and every message that this process begins, in order, seen at torch's process groups.

All of ``torch.distributed``, and whoever kept a reference to a function of it (DeepSpeed does), ends in a method of
``ProcessGroup``; functional collectives (``DTensor.full_tensor``) are operators. Both are noted where they pass, for as
long as a recording lasts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

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
        with _Functional(begun):
            yield begun
    finally:
        for name, original in originals.items():
            setattr(ProcessGroup, name, original)


class _Functional(TorchDispatchMode):
    """Notes the functional collectives of this thread."""

    def __init__(self, begun: list[Begun]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._begun = begun

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """One operator: noted if it is a collective, and carried out."""
        del types
        name = operator._schema.name  # noqa: SLF001 - what torch's own modes read
        group = next((text for text in reversed(given) if isinstance(text, str)), None)
        if name.startswith("_c10d_functional::") and group is not None:
            members = torch.distributed.get_process_group_ranks(_resolve_process_group(GroupName(group)))
            self._begun.append(Begun(name.partition("::")[2], group, tuple(members), _nbytes(given)))
        return operator(*given, **(named or {}))


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
