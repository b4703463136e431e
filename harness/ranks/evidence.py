"""What a rank can still say when its main thread is stuck: every stack, and its last collective.

Two independent ways, both prepared before any test runs. ``faulthandler`` answers a signal from C, whatever
holds the interpreter. A thread of Python waits on the parent's store and, asked, tells the main thread's
frames and what torch's flight recorder holds; it needs the interpreter lock, which a wait inside a collective
does not hold.
"""

import faulthandler
import json
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from harness.ranks.collectives import last_recorded
from harness.ranks.group import connect
from harness.ranks.settings import RankSettings

STACK_SIGNAL = signal.SIGUSR2


def asked_key(rank: int) -> str:
    """Key that the parent sets to ask a rank for evidence."""
    return f"evidence/asked/{rank}"


def told_key(rank: int) -> str:
    """Key under which a rank answers, as JSON."""
    return f"evidence/told/{rank}"


def saved_key(rank: int) -> str:
    """Key that a rank sets when it has written what should outlive it."""
    return f"evidence/saved/{rank}"


def register(rank: int, settings: RankSettings) -> None:
    """Let the stack signal write every thread's stack to the rank's file, open as long as the process."""
    file = settings.stack_file(rank).open("a")
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)
    _KEPT_OPEN.append(file)


def watch(rank: int, settings: RankSettings) -> None:
    """Start the thread that answers the parent's request. It ends with the process; it answers once."""
    store = connect(settings)

    def answer() -> None:
        store.get(asked_key(rank))
        store.set(told_key(rank), json.dumps(testimony()))
        save_coverage()
        store.set(saved_key(rank), "1")

    threading.Thread(target=answer, name="harness-evidence", daemon=True).start()


def testimony() -> dict[str, Any]:
    """The main thread's frames (innermost first) and the last collective that torch recorded."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    last = last_recorded()
    return {"frames": _frames(frame), "collective": asdict(last) if last is not None else None}


def save_coverage() -> None:
    """Write what coverage.py has counted, if it measures this process: it may not live to do so itself."""
    if "coverage" in sys.modules:
        current = sys.modules["coverage"].Coverage.current()
        if current is not None:
            current.save()


def _frames(frame: FrameType | None) -> list[tuple[str, int, str]]:
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


_KEPT_OPEN: list[Any] = []
"""faulthandler holds a file descriptor, not the file: closing the file would let another take its number."""


def read_stacks(path: Path, offset: int) -> str:
    """What faulthandler wrote since ``offset`` bytes; empty when it has not answered."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
