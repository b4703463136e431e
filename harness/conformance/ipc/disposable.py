"""Runs one act in a process that may be thrown away: a session of its own, a deadline, and a search for leftovers.

The pool under test lives in that process, not in this one: a subject that hangs, exits or crashes takes nothing of
ours with it. What the act notes is written to a file line by line, so that it is there however the act ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.conformance.ipc import leftovers

_STACK_S = 0.5
"""How long a stuck process gets to write down where it stands."""
SETTLE_S = 3.0
"""How long helpers of an interpreter that has ended (resource trackers, fork servers) may take to notice."""
_ABORT_S = 0.5
"""How soon an abort is heeded."""
_TAIL_BYTES = 3000


@dataclass
class Outcome:
    """How an act ended.

    Attributes:
        notes: what it noted, in order: dictionaries with ``at`` (seconds since its start) and what it had to say.
        status: exit status, negative for a signal; None when it had to be killed at its deadline.
        seconds: how long it ran.
        errors: the end of its standard error; of a stuck one, with the stacks of its threads.
        left: processes that outlived it.
        files: what they left in the folder for temporary files.
    """

    notes: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None
    seconds: float = 0.0
    errors: str = ""
    left: list[leftovers.Leftover] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def last(self, key: str) -> Any:
        """The last note of this kind, or None."""
        return next((note[key] for note in reversed(self.notes) if key in note), None)


def perform(
    arguments: dict[str, Any], deadline: float, settle: float = SETTLE_S, abort: threading.Event | None = None
) -> Outcome:
    """Run :mod:`harness.conformance.ipc.actor` with ``arguments`` and see it, and all that it started, to its end.

    Args:
        arguments: what to act; see the actor.
        deadline: seconds until it is killed.
        settle: seconds until who is still there counts as left behind.
        abort: when it is set, the act is killed at once.
    """
    mark = uuid.uuid4().hex
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="harness-ipc-", ignore_cleanup_errors=True) as folder:
        notes, errors, temporary = (Path(folder, name) for name in ("notes", "errors", "tmp"))
        temporary.mkdir()
        begun = time.monotonic()
        with errors.open("wb") as stream:
            actor = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "harness.conformance.ipc.actor",
                    json.dumps(arguments | {"notes": str(notes)}),
                ],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env={**os.environ, leftovers.MARK: mark, "TMPDIR": str(temporary)},
            )
        try:
            outcome.status = _await_end(actor, begun + deadline, abort or threading.Event())
            outcome.seconds = round(time.monotonic() - begun, 3)
            if outcome.status is None:
                actor.send_signal(signal.SIGUSR1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    actor.wait(_STACK_S)
            else:
                outcome.left = leftovers.outliving(mark, settle)
        finally:
            leftovers.end_all(mark)
            actor.kill()
            actor.wait()
        outcome.files = sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*"))
        outcome.errors = errors.read_text(errors="replace")[-_TAIL_BYTES:]
        if notes.exists():
            outcome.notes = [
                json.loads(line) for line in notes.read_text().splitlines() if line.endswith("}")
            ]
    return outcome


def _await_end(actor: subprocess.Popen[bytes], until: float, abort: threading.Event) -> int | None:
    while (left := until - time.monotonic()) > 0 and not abort.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return actor.wait(min(left, _ABORT_S))
    return None
