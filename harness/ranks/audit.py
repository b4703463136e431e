"""At the end of a session: what tests on ranks left behind, each with the test that left it.

Most of it a rank notices itself after every test (``leftovers``). What slipped away from its rank, a process
that made itself a daemon, is found by a variable that every rank's environment has; it also carries the name
of the test that was running when it was started.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.ranks.holdings import command_of

FOLDER_VARIABLE = "HARNESS_RANKS_FOLDER"
_TEST = b"PYTEST_CURRENT_TEST="


class Audit:
    """Collects the leaks of one session."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        """(node id, what it left), in the order of discovery."""

    def add(self, node_id: str, leaks: Iterable[str]) -> None:
        """A test's own ranks noticed these."""
        self.found += [(node_id, leak) for leak in leaks]

    def sweep(self, folder: Path) -> None:
        """Find processes that outlived the ranks which started them, note them, and SIGKILL them.

        Args:
            folder: The folder of the session's pools: its name is in their environment.
        """
        mine = f"{FOLDER_VARIABLE}={folder}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # ended, or somebody else's
                continue
            if not any(variable.startswith(mine) for variable in variables):
                continue
            command = command_of(entry.name)
            if not command or "resource_tracker" in command:
                continue
            test = next((one[len(_TEST) :] for one in variables if one.startswith(_TEST)), b"an unknown test")
            node_id = test.decode(errors="replace").rpartition(" (")[0] or test.decode(errors="replace")
            self.found.append(
                (node_id, f"process {entry.name} ({command}) outlived its rank, and was killed")
            )
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)

    def lines(self) -> list[str]:
        """For the end of the terminal report."""
        return [f"{node_id}: {leak}" for node_id, leak in dict.fromkeys(self.found)]
