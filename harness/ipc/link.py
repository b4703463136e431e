"""The parent's view of one worker: its process, the requests on their way to it, and the reply on its way back."""

from __future__ import annotations

from collections import deque

from harness.ipc.envelope import GarbledPipe, Incoming, Message, Outgoing
from harness.ipc.failure import describe_exit
from harness.ipc.process import WorkerProcess

_CAUSES = {
    -9: "Likely causes: the out-of-memory killer (see `dmesg`), a container's memory limit, or somebody's kill -9.",
    -11: "Likely cause: a fault in native code; its standard error may say where if faulthandler is enabled.",
    -6: "Likely cause: native code called abort(); its standard error says why.",
    -7: "Likely cause: shared memory ran out (see `df /dev/shm`).",
}


class Link:
    """A worker and what is on its way to and from it. Guarded by the pool's lock."""

    def __init__(self, process: WorkerProcess) -> None:
        self.index = process.index
        self.process = process
        self.outbox: deque[Outgoing] = deque()
        self.started = False
        self.closed_pipe = False
        self.epitaph: str | None = None
        """How the worker ended, once it has."""
        self.epitaph_at = 0.0
        self._incoming = Incoming()

    @property
    def ended(self) -> bool:
        return self.epitaph is not None

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes here, bytes announced) of a reply that is half-way."""
        return self._incoming.progress

    def flush(self) -> bool:
        """Send what the pipe takes now; True when nothing is left to send."""
        try:
            while self.outbox:
                if not self.outbox[0].send(self.process.pipe):
                    return False
                self.outbox.popleft()
        except (
            OSError
        ):  # the reading side learns the same as end of file, the sentinel as the end of the process
            self.outbox.clear()
        return True

    def receive(self) -> Message | None:
        """The next whole message, or None when no more is here; ``closed_pipe`` is set when there never will be."""
        try:
            return self._incoming.receive(self.process.pipe)
        except (EOFError, OSError, GarbledPipe):
            self.closed_pipe = True
            return None

    def withdraw(self, call_id: int) -> bool:
        """Take back a request of which not a byte has been sent; True when there was one.

        What has been begun must be finished, or the worker could not read what follows: its data is copied, because
        the caller may now change it.
        """
        for outgoing in list(self.outbox):
            if outgoing.call_id == call_id:
                if not outgoing.begun:
                    self.outbox.remove(outgoing)
                    return True
                outgoing.own()
        return False

    def bury(self, at: float) -> None:
        """The process has ended: reap it and keep how it ended."""
        progress = self.progress
        status = self.process.release()
        self.outbox.clear()
        when = "" if self.started else " while it started"
        if progress is not None:
            when = f" half-way through a reply ({progress[0]} of {progress[1]} bytes had arrived)"
        hint = _CAUSES.get(status, "") if status is not None else ""
        self.epitaph = f"pid {self.process.pid} {describe_exit(status)}{when}. {hint}".strip()
        self.epitaph_at = at
