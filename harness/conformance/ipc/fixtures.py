"""What the plugin's fixture for IPC cells stands on: the cell of an item, with the coming ones under way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from harness.conformance.ipc.ahead import Ahead, Director, Order, Scout
from harness.conformance.ipc.cell import IpcCell
from harness.conformance.plugin import CellKey, key_of
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_MARGIN_S = 10.0
"""By how much an act must end before the item that waits for it is given up."""


class Stage:
    """The IPC cells of one session."""

    def __init__(self, limit: float) -> None:
        self._ahead = Ahead()
        self._limit = max(limit - _MARGIN_S, limit / 2)
        self._sound: set[str] = set()
        """Subjects that have passed something, the smoke check first of all."""

    def cell(self, request: pytest.FixtureRequest) -> IpcCell:
        """The cell of the item that asks."""
        key: CellKey = request.param
        director = self._director(key)
        if not (key.check.smoke or director.alone):
            items = request.session.items
            self._ahead.foresee(self._orders(items[items.index(request.node) :]))
        return IpcCell(director, self._ahead, lambda: self._sound.add(key.subject.name))

    def close(self) -> None:
        """End what is under way."""
        self._ahead.close()

    def _director(self, key: CellKey) -> Director:
        scenario: Any = key.scenario
        return Director(key.subject, scenario, self._limit)

    def _orders(self, items: list[pytest.Item]) -> Iterator[Order]:
        for item in items:
            key = key_of(item)
            if key is None or key.check.smoke or key.subject.name not in self._sound:
                continue
            with contextlib.suppress(HarnessError):
                applies = key.subject.supports("ipc", key.scenario) is None and key.scenario.missing() is None
                director = self._director(key)
                if applies and not director.alone:
                    yield from Scout(director).hear(item.function)  # type: ignore[attr-defined]
