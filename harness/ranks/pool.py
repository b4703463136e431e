"""One pool: the processes of one world size, the store they meet at, and how a stuck one is questioned and ended.

The parent owns the store and every process. A process ends by ``close`` (orderly, bounded), by ``end`` (its stack is
taken, then SIGTERM, then SIGKILL to it and to all that it started), or with the parent, which ``harness.ipc`` sees to.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.ipc import WorkerPool
from harness.ipc.failure import Failure
from harness.ranks import inquest, preload
from harness.ranks.session import Collected, RankFactory
from harness.ranks.settings import RankSettings

_ORDERLY_S = 10.0
"""How long the sessions of a healthy pool may take to tear down what still lives and to leave the group."""
_TERMINATE_S = 1.0
"""Between SIGTERM, which coverage and others use to save their data, and SIGKILL."""


@dataclass
class Round:
    """One request to every rank, over. Every rank is in exactly one of the three."""

    values: dict[int, Any] = field(default_factory=dict)
    """Ranks that answered."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """Ranks whose process died or whose worker could not answer."""
    ended: dict[int, inquest.Evidence] = field(default_factory=dict)
    """Ranks that did not answer in time, and were ended."""


class RankPool:
    """The ranks of one specification. Healthy until a rank fails; then its owner closes it and makes a new one."""

    def __init__(self, settings: RankSettings, store: Any, *, start_timeout: float) -> None:
        """Start the processes. The sessions begin with ``start``.

        Args:
            settings: What the ranks must know.
            store: The ``TCPStore`` server that the ranks connect to; kept alive with the pool.
            start_timeout: Seconds for all processes to come up.
        """
        self.settings = settings
        self.spec = settings.spec
        self._store = store
        self._captured: dict[int, list[int]] = {}
        self.collected: dict[int, Collected] = {}
        self.workers = WorkerPool(
            RankFactory(settings),
            self.spec.processes,
            start_method="forkserver",
            start_timeout=start_timeout,
            preload=[preload.__name__],
            name="rank",
        )

    def ask(
        self,
        method: str,
        *args: Any,
        deadline: float,
        grace: float,
        failing: Callable[[Any], bool] = bool,
    ) -> Round:
        """Ask every rank, and have an answer from, or the end of, each of them by the deadline.

        Args:
            method: Method of ``RankSession``.
            args: Its arguments, the same for all.
            deadline: ``time.monotonic()`` after which a silent rank is questioned and ended.
            grace: Seconds that the others still have once one rank has failed.
            failing: Whether an answer is a failure.
        """
        call = self.workers.begin(method, *args)
        seen: set[int] = set()
        limit = deadline
        while call.pending and (left := limit - time.monotonic()) > 0:
            call.wait(left)
            for rank in call.replies.keys() - seen:
                seen.add(rank)
                reply = call.replies[rank]
                if reply.failure is not None or failing(reply.value):
                    limit = min(limit, time.monotonic() + grace)
        late = sorted(call.pending)
        call.abandon()
        answered = call.replies.items()
        return Round(
            values={rank: reply.value for rank, reply in answered if reply.failure is None},
            failures={rank: reply.failure for rank, reply in answered if reply.failure is not None},
            ended=self.end(late) if late else {},
        )

    def end(self, ranks: Iterable[int]) -> dict[int, inquest.Evidence]:
        """Question the ranks, then end them and all that they started. Bounded: about 4 s at the very worst."""
        ranks = list(ranks)
        found = inquest.question(
            {rank: self.workers.workers[rank].pid for rank in ranks}, self.settings, self._store
        )
        for rank in ranks:
            self.workers.workers[rank].terminate()
        until = time.monotonic() + _TERMINATE_S
        for rank in ranks:
            self.workers.workers[rank].wait(max(0.0, until - time.monotonic()))
            self.workers.workers[rank].kill()
            self.workers.workers[rank].wait(_TERMINATE_S)
            found[rank].exit_status = self.workers.workers[rank].exitcode
            found[rank].output = self.output_of(rank)
        return found

    def remember_capture(self) -> None:
        """Open the files into which the ranks' pytest captures, so that they outlive the rank."""
        for rank, collected in self.collected.items():
            pid = self.workers.workers[rank].pid
            paths = [f"/proc/{pid}/fd/{number}" for number in collected.capture]
            self._captured[rank] = [os.open(path, os.O_RDONLY) for path in paths if os.path.exists(path)]  # noqa: PTH110

    def output_of(self, rank: int) -> str:
        """What a rank that is gone had written: captured by pytest, then past pytest (crash reports)."""
        parts = [_whole(descriptor) for descriptor in self._captured.get(rank, [])]
        if not self.settings.live:
            file = self.settings.output_file(rank)
            parts.append(file.read_text(errors="replace")[-20_000:] if file.exists() else "")
        return "\n".join(part.rstrip() for part in parts if part.strip())

    def close(self, *, orderly: bool, grace: float = 1.0) -> None:
        """End every process.

        Args:
            orderly: First let the sessions finish, for a healthy pool; a rank that does not is ended.
            grace: Seconds between asking a process to end and SIGKILL.
        """
        if orderly:
            self.ask("finish", deadline=time.monotonic() + _ORDERLY_S, grace=1.0)
        self.workers.close(grace=grace)
        for descriptors in self._captured.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self._captured.clear()
        self._store = None


def _whole(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
