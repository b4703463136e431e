"""Performs the acts of coming cells while the present one is judged: their time is mostly waiting.

Which acts a check has performed is found by calling it with a :class:`Scout` in the place of a cell. Nothing is done
ahead for a subject whose smoke check has not passed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.conformance.ipc.disposable import SETTLE_S, Outcome, perform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from harness.conformance.ipc.scenarios import IpcScenario
    from harness.conformance.ipc.trial import Trial
    from harness.subjects import Subject

DEADLINE_S = 10.0
ORPHANS_S = 5.0
"""How long processes may outlive their owner."""


@dataclass(frozen=True)
class Order:
    """One act to be performed: who, where, what, and how long it may take."""

    subject: str
    scenario: str
    act: str
    deadline: float
    settle: float

    def performed(self, abort: threading.Event) -> Outcome:
        """Perform it now."""
        arguments = {"subject": self.subject, "scenario": self.scenario, "act": self.act}
        return perform(arguments, self.deadline, self.settle, abort)


class Director:
    """Gives the orders for a subject in a scenario."""

    def __init__(self, subject: Subject, scenario: IpcScenario, limit: float) -> None:
        """Look at what the subject declares.

        Args:
            subject: the implementation under test.
            scenario: how its workers start.
            limit: seconds that no act may exceed, however patient the subject asks to be.
        """
        self.subject, self.scenario, self._limit = subject, scenario, limit
        declared = subject.load("ipc")
        self.alone = bool(getattr(declared, "alone", False))
        self._patience = float(getattr(declared, "patience", 1.0))
        self._start_s = float(getattr(declared, "start_s", 0.0))

    def order(
        self, play: Callable[[Trial], None], deadline: float = DEADLINE_S, settle: float = SETTLE_S
    ) -> Order:
        """The order to perform ``play``, a function of a module."""
        return Order(
            self.subject.targets["ipc"],
            self.scenario.id,
            f"{play.__module__}:{play.__qualname__}",
            min(self._start_s + deadline * self._patience, self._limit),
            settle,
        )


class _Seen(Exception):
    """The check has said what it wants performed."""


class Scout:
    """Stands in for a cell, to hear what a check wants performed."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._heard: list[Order] = []

    def hear(self, check: Callable[..., None]) -> list[Order]:
        """The orders of ``check``."""
        with contextlib.suppress(_Seen):
            check(ipc=self)
        return self._heard

    def act(self, play: Callable[[Trial], None], deadline: float = DEADLINE_S) -> None:
        self._heard = [self._director.order(play, deadline)]
        raise _Seen

    def act_each(self, plays: dict[str, Callable[[Trial], None]], deadline: float = DEADLINE_S) -> None:
        self._heard = [self._director.order(play, deadline) for play in plays.values()]
        raise _Seen

    def act_to_death(self, play: Callable[[Trial], None], deadline: float = DEADLINE_S) -> None:
        self._heard = [self._director.order(play, deadline, ORPHANS_S)]
        raise _Seen


class Ahead:
    """Performs orders side by side, twice as many at a time as there are processors: many of them only wait."""

    def __init__(self) -> None:
        self._width = 2 * (os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._width, thread_name_prefix="ipc-act")
        self._abort = threading.Event()
        self._under_way: dict[Order, Future[Outcome]] = {}

    def foresee(self, orders: Iterator[Order]) -> None:
        """Begin with as many of the coming orders as there is room for."""
        for order in orders:
            self._begin(order)
            if len(self._under_way) >= 2 * self._width:
                return

    def outcomes(self, orders: Iterable[Order], *, alone: bool = False) -> list[Outcome]:
        """How each of these ended; performed now unless that has begun, one after the other if ``alone``."""
        if alone:
            return [order.performed(self._abort) for order in orders]
        begun = [self._begin(order) for order in orders]
        ended = [future.result() for future in begun]
        for order in orders:
            self._under_way.pop(order, None)
        return ended

    def close(self) -> None:
        """Kill what is still being performed."""
        self._abort.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _begin(self, order: Order) -> Future[Outcome]:
        if order not in self._under_way:
            self._under_way[order] = self._threads.submit(order.performed, self._abort)
        return self._under_way[order]
