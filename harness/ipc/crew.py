"""The workers of one pool: how they come up together, are replaced one by one, and are ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness.ipc import guard
from harness.ipc.errors import WorkerFailed
from harness.ipc.failure import describe_exception, failure_from
from harness.ipc.link import Link
from harness.ipc.process import Recipe, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.ipc.call import Call
    from harness.ipc.failure import Failure
    from harness.ipc.pickling import Parcel
    from harness.ipc.switchboard import Switchboard

_TERMINATE_S = 1.0
"""Between SIGTERM and SIGKILL: time for an engine's own handlers, not for its work."""
_KILLED_S = 10.0
"""A killed process with much memory takes a moment to give it back."""
_OTHERS_S = 0.2
"""After one worker failed to start, how long the others get to say that they failed too."""


class Crew:
    """Starts, replaces and ends the workers behind a switchboard's links."""

    def __init__(self, board: Switchboard, recipe: Recipe, factory: Parcel) -> None:
        """Start nobody yet.

        Args:
            board: where the workers' links go.
            recipe: what the workers are made from.
            factory: the first message of each; see :func:`harness.ipc.door.encode_factory`.
        """
        self._board = board
        self._recipe = recipe
        self._factory = factory

    def start(self, indices: Sequence[int], timeout: float) -> None:
        """Start workers together and wait until each has built its object.

        Raises:
            WorkerFailed: one could not; the others may be running, and are the caller's to end.
        """
        hello = self._board.expect("start", indices)
        until = time.monotonic() + timeout
        try:
            for index in indices:
                self._launch(index, hello)
            while hello.wait(until - time.monotonic()):
                if hello.failures():
                    until = min(until, time.monotonic() + _OTHERS_S)
            if hello.pending and not hello.failures():
                hello.expire(timeout)
            if hello.failures():
                raise WorkerFailed("start", hello.failures(), hello.size)
        finally:
            hello.abandon()

    def _launch(self, index: int, hello: Call) -> None:
        try:
            process = WorkerProcess(self._recipe, index)
        except (OSError, EOFError) as error:  # no more processes or descriptors, or the fork server has ended
            told = failure_from(describe_exception(error), worker=index, kind="raised", method="start")
            raise WorkerFailed("start", [told], hello.size) from error
        self._board.adopt(Link(process), hello, self._factory)

    def end(self, links: Sequence[Link], *, grace: float, reason: str) -> list[Failure]:
        """Ask, wait, terminate, kill, reap. None of the processes is left when this returns.

        Args:
            links: whom.
            grace: seconds to finish what they are doing and stop by themselves; 0 kills at once.
            reason: what is said of those that had to be killed.

        Returns:
            Posts that failed and that no later call has reported.
        """
        asked = [link for link in links if not link.ended]
        if not asked:
            return []
        roots = [pid for link in asked for pid in link.process.roots()]
        relatives = guard.families(roots)  # now, while they can still be found by descent
        unreported: list[Failure] = []
        # One that is stopped cannot hear the question; there is no use in waiting for its answer.
        able = [link for link in asked if link.process.state() != "stopped"]
        if grace > 0 and able:
            unreported = self._ask(able, grace)
            for link in self._living(able):
                link.process.terminate()
            self._await_end(able, _TERMINATE_S)
        for link in self._living(asked):
            link.ended_by = reason
            link.process.kill()
        self._await_end(asked, _KILLED_S)
        guard.kill_families(roots, relatives, roots_too=False)
        return unreported

    def _ask(self, links: Sequence[Link], grace: float) -> list[Failure]:
        farewell = self._board.expect("close", [link.index for link in links])
        self._board.dismiss(links, farewell)
        self._await_end(links, grace)
        while farewell.wait(0):
            pass
        farewell.abandon()
        found = [one for failure in farewell.failures() for one in (failure, *failure.also)]
        return [failure for failure in found if failure.posted]

    def _living(self, links: Sequence[Link]) -> list[Link]:
        with self._board.exchange.lock:
            return [link for link in links if not link.ended]

    def _await_end(self, links: Sequence[Link], seconds: float) -> None:
        self._board.pump(lambda: all(link.ended for link in links), time.monotonic() + seconds)
