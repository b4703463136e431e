"""Ranks on this machine: workers of ``harness.ipc``, forked from a server with the heavy imports."""

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harness.ipc import Call, WorkerPool, WorkerProcess
from harness.ranks import inquest, preload
from harness.ranks.launch.terminal import Terminal
from harness.ranks.session import RankFactory
from harness.ranks.settings import RankSettings
from harness.ranks.starting import starting_conditions

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

TERMINATE_S = 1.0
"""Between SIGTERM, which coverage and others use to save their data, and SIGKILL."""
_TAIL = 20_000
"""Bytes of what a process wrote past pytest's capture that are worth a reader's time."""


class LocalLauncher:
    """Pools on this machine."""

    host = "127.0.0.1"
    capacity: int | None = None
    name = "this machine"

    def warm_up(self, settings: RankSettings) -> None:
        """Start the fork server: its imports run while the parent still has other things to do."""
        from multiprocess import forkserver, get_context

        with starting_conditions(settings):
            get_context("forkserver").set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()

    def launch(self, settings: RankSettings, store: "Store", *, start_timeout: float) -> "LocalRanks":
        """Start the processes of a pool."""
        return LocalRanks(settings, store, start_timeout=start_timeout)

    def close(self) -> None:
        """The fork server ends with this process."""


class LocalRanks:
    """The processes of one pool on one machine. They end by ``close``, by ``end``, or with this process."""

    def __init__(
        self,
        settings: RankSettings,
        store: "Store",
        *,
        start_timeout: float,
        ranks: Iterable[int] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            settings: What the ranks must know.
            store: The parent's store, for evidence.
            start_timeout: Seconds for all processes to come up.
            ranks: Which ranks live here, in worker order; all of them by default.

        Raises:
            WorkerFailed: one could not start; the others have been ended.
        """
        self.settings = settings
        self._store = store
        self._ranks = list(range(settings.spec.processes) if ranks is None else ranks)
        self._captured: dict[int, list[int]] = {}
        self._marks: dict[int, int] = {}
        self._terminal = Terminal(settings, self._ranks) if settings.live else None
        try:
            with starting_conditions(settings):
                self._workers = WorkerPool(
                    RankFactory(settings, tuple(self._ranks)),
                    len(self._ranks),
                    start_method="forkserver",
                    start_timeout=start_timeout,
                    preload=[preload.__name__],
                    name="rank",
                )
        except BaseException:
            if self._terminal is not None:
                self._terminal.close()
            raise

    def begin(self, method: str, *args: Any) -> Call:
        """Send a request to every rank here; workers are numbered as the ranks were given."""
        return self._workers.begin(method, *args)

    def end(self, ranks: Iterable[int]) -> dict[int, inquest.Evidence]:
        """Question, then end. Bounded: about 4 s at the very worst."""
        ranks = list(ranks)
        processes = {rank: self._workers.workers[self._ranks.index(rank)] for rank in ranks}
        pids = {rank: process.pid for rank, process in processes.items()}
        found = inquest.question(pids, self.settings, self._store)
        for process in processes.values():
            process.terminate()
        until = time.monotonic() + TERMINATE_S
        for rank, process in processes.items():
            process.wait(max(0.0, until - time.monotonic()))
            process.kill()
            process.wait(TERMINATE_S)
            found[rank].exit_status = _exit_status(process)
            found[rank].output = self.output_of(rank)
        return found

    def replace_ended(self) -> None:
        """A pool of ``harness.ipc`` sends nothing to anybody while a worker is missing."""
        for index, process in enumerate(self._workers.workers):
            if not process.alive:
                with starting_conditions(self.settings):
                    self._workers.restart(index)

    def output_of(self, rank: int) -> str:
        """What pytest had captured, then what went past pytest (crash reports, native code)."""
        parts = [_whole(descriptor) for descriptor in self._captured.get(rank, [])]
        if self._terminal is None:
            parts.append(_since(self.settings.output_file(rank), self._marks.get(rank, 0)))
        return "\n".join(part.rstrip() for part in parts if part.strip())

    def mark(self) -> None:
        """A test begins."""
        if self._terminal is None:
            for rank in self._ranks:
                file = self.settings.output_file(rank)
                self._marks[rank] = file.stat().st_size if file.exists() else 0

    def remember_capture(self, descriptors: dict[int, tuple[int, ...]]) -> None:
        """Open the ranks' capture files a second time, through /proc: they have no name."""
        for rank, numbers in descriptors.items():
            pid = self._workers.workers[self._ranks.index(rank)].pid
            paths = [f"/proc/{pid}/fd/{number}" for number in numbers]
            self._captured[rank] = [os.open(path, os.O_RDONLY) for path in paths if os.path.exists(path)]  # noqa: PTH110

    def close(self, grace: float) -> None:
        """End every process."""
        self._workers.close(grace=grace)
        if self._terminal is not None:
            self._terminal.close()
        for descriptors in self._captured.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self._captured.clear()


def _exit_status(process: WorkerProcess) -> int | None:
    """Of a process that has ended: the fork server, its parent, tells it a moment after the kernel does."""
    until = time.monotonic() + TERMINATE_S
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.005)  # the pipe on which the server tells it is multiprocess's own
    return process.exitcode


def _whole(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _since(file: "os.PathLike[str]", offset: int) -> str:
    if not os.path.exists(file):  # noqa: PTH110
        return ""
    with open(file, "rb") as stream:  # noqa: PTH123
        stream.seek(max(offset, os.path.getsize(file) - _TAIL))  # noqa: PTH202
        return stream.read().decode(errors="replace")
