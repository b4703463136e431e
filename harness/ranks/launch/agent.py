"""An agent keeps one rank's process, on whatever machine: started, asked, questioned and ended from afar.

The agent itself runs none of the tests, so it answers when its rank is stuck, and can give the next pool a
new process. Its methods may be called from several threads at once: ``end`` while ``ask`` waits.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

from harness.ipc import Reply
from harness.ranks.folder import SessionFolder
from harness.ranks.group import connect_to
from harness.ranks.inquest import Evidence
from harness.ranks.launch.local import LocalRanks
from harness.ranks.settings import RankSettings

_LOOK_S = 0.2
"""How often a waiting request looks whether its rank was ended by another one."""


class Agent:
    """Owns the process of one rank. Ends it with ``close``, or with its own process."""

    def __init__(self) -> None:
        self._local: LocalRanks | None = None
        self._rank = 0
        self._folder: SessionFolder | None = None

    def clock(self) -> float:
        """``time.monotonic()`` of this machine."""
        return time.monotonic()

    def start(self, rank: int, settings: RankSettings, start_timeout: float) -> None:
        """Start the rank's process with folders and an environment of this machine.

        Args:
            rank: Its number.
            settings: As the parent made them.
            start_timeout: Seconds for the process to come up.
        """
        self.close(0.0)
        self._folder = SessionFolder()
        here = dataclasses.replace(
            settings,
            folder=self._folder.path,
            basetemp=self._folder.path / "tmp",
            environ=merged_environment(os.environ, settings.environ),
            live=False,
        )
        here.basetemp.mkdir()
        self._rank = rank
        store = connect_to(settings.store_host, settings.store_port)
        self._local = LocalRanks(here, store, start_timeout=start_timeout, ranks=[rank])

    def ask(self, method: str, *args: Any) -> Reply:
        """One request to the rank; returns when it has answered, died, or been ended."""
        local = self._started()
        request = local.begin(method, *args)
        while request.pending:
            request.wait(_LOOK_S)
        reply: Reply = request.replies[0]
        if reply.failure is not None:
            return Reply(failure=dataclasses.replace(reply.failure, worker=self._rank))
        return reply

    def end(self) -> Evidence:
        """Question the rank, then end it and all that it started."""
        return self._started().end([self._rank])[self._rank]

    def output(self) -> str:
        """What the rank had written since the last ``mark``."""
        return self._started().output_of(self._rank)

    def mark(self) -> None:
        """A test begins."""
        self._started().mark()

    def remember_capture(self, descriptors: tuple[int, ...]) -> None:
        """Take hold of the files into which the rank's pytest captures."""
        self._started().remember_capture({self._rank: descriptors})

    def close(self, grace: float) -> None:
        """End the process; the agent can start another."""
        local, self._local = self._local, None
        if local is not None:
            local.close(grace)
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _started(self) -> LocalRanks:
        if self._local is None:
            raise RuntimeError(f"the agent of rank {self._rank} has no process: it was closed")
        return self._local


def merged_environment(here: Mapping[str, str], parents: Mapping[str, str]) -> dict[str, str]:
    """This machine's variables, and those of the parent that this machine does not have."""
    return {**parents, **here}
