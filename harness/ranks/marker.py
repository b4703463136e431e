"""The marker ``ranks``: what it accepts, and one test per world size.

``ranks(2)`` runs the item on two ranks, ``ranks(2, 4)`` makes two items of it. Everything is checked at
collection, so that a mistake is one sentence that names the test, before any process starts.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from harness.errors import UsageError

NAME = "ranks"
DESCRIPTION = (
    "ranks(n, ..., backend='gloo', device='cpu'): run the whole item, fixtures included, on n ranks in "
    "lockstep; several sizes make several items."
)
BACKENDS = ("gloo", "nccl", "fake")
DEVICES = ("cpu", "cuda", "auto")
PARAMETER = "ranks_spec"


@dataclass(frozen=True)
class RankSpec:
    """Which ranks an item wants. Equal specs share a pool."""

    world_size: int
    """How many ranks, at least 1."""
    backend: str = "gloo"
    """The default process group's backend; with ``fake`` one process stands for rank 0 of ``world_size``."""
    device: str = "cpu"
    """``cpu``, ``cuda``, or ``auto``: CUDA where there is one."""

    @property
    def processes(self) -> int:
        """How many processes run the item."""
        return 1 if self.backend == "fake" else self.world_size


def specs_of(mark: pytest.Mark, where: str) -> list[RankSpec]:
    """Every combination of sizes and backends that a marker asks for, checked.

    Args:
        mark: The ``ranks`` marker.
        where: The node id to name in an error.

    Raises:
        UsageError: for anything that the marker does not accept, saying what it does accept.
    """
    unknown = sorted(set(mark.kwargs) - {"backend", "device"})
    if unknown:
        raise UsageError(
            f"{where}: ranks() has no argument {unknown[0]!r}; it takes world sizes, backend and device"
        )
    sizes = [_checked_size(size, where) for size in mark.args]
    if not sizes:
        raise UsageError(f"{where}: ranks() needs a world size, as in ranks(2) or ranks(2, 4)")
    backends = _choices("backend", mark.kwargs.get("backend", "gloo"), BACKENDS, where)
    device = mark.kwargs.get("device", "cuda" if backends == ["nccl"] else "cpu")
    _choices("device", device, DEVICES, where)
    if device == "cpu" and "nccl" in backends and len(backends) == 1:
        raise UsageError(
            f"{where}: ranks(backend='nccl', device='cpu'): NCCL moves tensors of CUDA devices only"
        )
    return [
        RankSpec(size, backend, "cuda" if backend == "nccl" else device)
        for size in sizes
        for backend in backends
    ]


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make one item per world size and backend where the marker names several."""
    mark = metafunc.definition.get_closest_marker(NAME)
    if mark is None:
        return
    specs = specs_of(mark, metafunc.definition.nodeid)
    if len(specs) == 1:
        return
    several_backends = len({spec.backend for spec in specs}) > 1
    ids = [f"ranks={spec.world_size}{f'-{spec.backend}' * several_backends}" for spec in specs]
    metafunc.fixturenames.append(PARAMETER)
    metafunc.parametrize(PARAMETER, specs, ids=ids, indirect=True)


def spec_of(item: pytest.Item) -> RankSpec | None:
    """The ranks that an item wants, or None for an item that runs in the session's own process."""
    mark = item.get_closest_marker(NAME)
    if mark is None:
        return None
    callspec = getattr(item, "callspec", None)
    if callspec is not None and PARAMETER in callspec.params:
        chosen: RankSpec = callspec.params[PARAMETER]
        return chosen
    return specs_of(mark, item.nodeid)[0]


def _checked_size(size: Any, where: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise UsageError(f"{where}: ranks({size!r}): a world size is a whole number, as in ranks(2)")
    if size < 1:
        raise UsageError(f"{where}: ranks({size}): a world size is at least 1")
    return size


def _choices(name: str, given: Any, known: tuple[str, ...], where: str) -> list[str]:
    chosen = [given] if isinstance(given, str) else list(given)
    for choice in chosen:
        if choice not in known:
            raise UsageError(
                f"{where}: ranks({name}={choice!r}): unknown {name}, expected one of {', '.join(known)}"
            )
    return chosen
