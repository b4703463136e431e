"""The meter for fake tensors: bytes of storages that nobody allocates.

Under ``FakeTensorMode`` the real code of a sync runs at the shapes of any model, and every tensor knows its size and
owns no memory. This meter watches the operators that make storages and the moment at which each is dropped.
"""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.memory.measurement import Measurement, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class FakeMeter:
    """Peak above entry of the storages that operators make, inside ``FakeTensorMode``.

    What an operator needs inside itself is not seen, and neither are Python's objects. A storage that existed at
    entry is recognised when it is first an argument, and not counted.
    """

    @contextmanager
    def __call__(self) -> Iterator[Measurement]:
        measurement = Measurement("fake")
        gc.collect()
        ledger = _Ledger()
        try:
            with _Watch(ledger):
                yield measurement
        finally:
            gc.collect()
            measurement.finish(peak=ledger.peak, retained=ledger.live, sites=ledger.sites_at_peak())


class _Ledger:
    """Live bytes of the storages that were made while it watched."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, tuple[int, tuple[str, int, str]]] = {}
        self._at_peak: list[tuple[int, tuple[str, int, str]]] = []
        self._rising = False

    def existed(self, storage: torch.UntypedStorage) -> None:
        """Take note of a storage that is none of the block's."""
        self._know(storage)

    def made(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, unless it is known."""
        if not self._know(storage):
            return
        size = storage.nbytes()
        self._sizes[id(storage)] = (size, _caller())
        self.live += size
        if self.live > self.peak:
            self.peak, self._rising = self.live, True

    def sites_at_peak(self) -> tuple[Site, ...]:
        """What was live at the highest point, by the line of Python that asked for it."""
        self._remember()
        sums: dict[tuple[str, int, str], int] = {}
        for size, site in self._at_peak:
            sums[site] = sums.get(site, 0) + size
        return tuple(Site(*site, size) for site, size in sums.items())

    def _know(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is new."""
        key = id(storage)
        if key in self._known:
            return False
        self._known[key] = weakref.ref(storage, lambda _: self._dropped(key))
        return True

    def _dropped(self, key: int) -> None:
        self._known.pop(key, None)
        if key in self._sizes:
            self._remember()
            self.live -= self._sizes.pop(key)[0]

    def _remember(self) -> None:
        """Keep what is live, when the first storage is dropped after a new highest point."""
        if self._rising:
            self._at_peak, self._rising = list(self._sizes.values()), False


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows every operator's storages to a ledger."""

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator between two looks: at its arguments, and at its results."""
        del types
        given = kwargs or {}
        if func is torch.ops.prim.device.default:  # most of all calls, and none of them makes a thing
            return func(*args, **given)
        for tensor in _tensors((args, given)):
            self._ledger.existed(tensor.untyped_storage())
        result = func(*args, **given)
        for tensor in _tensors(result):
            self._ledger.made(tensor.untyped_storage())
        return result


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _caller() -> tuple[str, int, str]:
    """The innermost Python frame outside torch and this file."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame.f_back is not None and (
        "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
