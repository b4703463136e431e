"""The parent's view of one worker: its process, the requests on their way to it, the reply on its way back."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from harness.ipc import guard
from harness.ipc.envelope import NOTHING, GarbledPipe, Incoming, Kind, Message, Outgoing
from harness.ipc.failure import describe_exit

if TYPE_CHECKING:
    from harness.ipc.process import WorkerProcess

_LIKELY = {
    -9: "Likely causes: the out-of-memory killer (see dmesg), a container's memory limit, somebody's kill -9.",
    -11: "Likely cause: a fault in native code; with faulthandler enabled its standard error says where.",
    -6: "Likely cause: native code called abort(); its standard error says why.",
    -7: "Likely cause: shared memory ran out; see df /dev/shm.",
}
_LIKELY_AT_START = {
    1: "Its standard error says why. A script that makes a pool when it is imported must guard that with"
    " if __name__ == '__main__', because spawn and forkserver import the script again.",
}


class Link:
    """A worker and what is on its way to and from it. Guarded by the pool's lock."""

    def __init__(self, process: WorkerProcess) -> None:
        self.index = process.index
        self.process = process
        self.outbox: deque[Outgoing] = deque()
        self.started = False
        """Whether it has answered anything yet."""
        self.asked_to_stop = False
        self.mute: str | None = None
        """Why no further message can come, once that is so; the process may still run."""
        self.ended_by: str | None = None
        """Why the parent itself ended the process, if it did."""
        self.epitaph: str | None = None
        """How the process ended, once it has."""
        self.epitaph_at = 0.0
        self._incoming = Incoming()

    @property
    def ended(self) -> bool:
        """Whether the process has ended and been reaped."""
        return self.epitaph is not None

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes here, bytes announced) of a reply that is half-way, or None."""
        return self._incoming.progress

    @property
    def buffered(self) -> bool:
        """Whether a further message may be here that the pipe does not announce any more."""
        return self.mute is None and self._incoming.buffered

    def flush(self) -> bool:
        """Send what the pipe takes now; True when nothing is left to send."""
        try:
            while self.outbox:
                if not self.outbox[0].send(self.process.pipe):
                    return False
                self.outbox.popleft()
        except OSError:  # the worker's end is gone; that its process has ended is for the sentinel to say
            self.outbox.clear()
        return True

    def receive(self) -> Message | None:
        """The next whole message, or None when there is none now; ``mute`` says when there never will be."""
        if self.mute is None:
            try:
                return self._incoming.receive(self.process.pipe)
            except GarbledPipe:
                self.mute = "sent bytes that are no reply: something else writes to its pipe"
            except (EOFError, OSError):
                self.mute = "closed its pipe"
        return None

    def give_up(self, call_id: int) -> None:
        """Nobody will read the reply to a call: take its request back if not a byte of it has been sent.

        One that has been begun must be finished, or the worker could not read what follows. Its data is copied,
        because the caller may now change it. And the worker must know, in case it had used the reply to report
        failed posts.
        """
        for outgoing in [one for one in self.outbox if one.call_id == call_id]:
            if not outgoing.begun:
                self.outbox.remove(outgoing)
                return
            outgoing.own()
        if not self.ended:
            self.outbox.append(Outgoing(Kind.GIVEN_UP, call_id, NOTHING))

    def bury(self) -> None:
        """The process has ended: end whom it left behind, reap it, and keep how it ended."""
        self.epitaph_at = time.monotonic()
        if (
            not self.asked_to_stop
        ):  # when several are asked to stop, whoever asked looks for all of them at once
            guard.kill_families(self.process.roots(), roots_too=False)
        status = self.process.release()
        self.outbox.clear()
        self.epitaph = f"pid {self.process.pid} {self._end(status)}"

    def _end(self, status: int | None) -> str:
        if self.ended_by is not None:
            return self.ended_by
        progress = self.progress
        how = describe_exit(status)
        if progress is not None:
            how += f" half-way through a reply ({progress[0]} of {progress[1]} bytes had arrived)"
        elif not self.started:
            how += " while it started"
        likely = _LIKELY.get(status or 0) or (not self.started and _LIKELY_AT_START.get(status or 0))
        return f"{how}. {likely}" if likely else how
