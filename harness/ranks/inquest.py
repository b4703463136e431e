"""Ask stuck ranks where they stand: stacks by signal, frames and collectives over the store."""

import contextlib
import datetime as dt
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.ranks import evidence, stacks
from harness.ranks.collectives import Collective
from harness.ranks.group import part_of
from harness.ranks.settings import RankSettings

_STACK_S = 1.0
"""For faulthandler to write; it needs milliseconds, and a stopped process never answers."""
_TESTIMONY_S = 1.0
"""For the rank's evidence thread."""
_SAVED_S = 2.0
"""For a rank that measures coverage to write what it has counted."""
_SETTLED_S = 0.02
"""A dump that has not grown for this long is complete: it is written by one run of a signal handler."""

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

NOWHERE = stacks.Place("", "", "")


@dataclass
class Evidence:
    """What was found out about one rank before it was ended."""

    at: float
    stack: str = ""
    place: stacks.Place = NOWHERE
    collective: Collective | None = None
    exit_status: int | None = None
    output: str = ""

    @property
    def silent(self) -> bool:
        """Neither way of asking got an answer."""
        return not self.stack and not self.place.location


def question(pids: dict[int, int], settings: RankSettings, store: "Store") -> dict[int, Evidence]:
    """Ask ranks for their stacks and their last collectives.

    Args:
        pids: Rank to process id.
        settings: The pool's settings.
        store: The parent's store.

    Returns:
        For every rank what it said; empty where it did not answer within about 2 s.
    """
    found = {rank: Evidence(time.monotonic()) for rank in pids}
    prefixed = part_of(store, settings.prefix)
    offsets = {rank: _size(settings.stack_file(rank)) for rank in pids}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, evidence.STACK_SIGNAL)
    _await_stacks(found, offsets, settings)
    # Only now: faulthandler walks the frames of all threads without the interpreter lock, and none must run.
    for rank in pids:
        prefixed.set(evidence.asked_key(rank), "1")
    until = time.monotonic() + _TESTIMONY_S
    for rank, said in found.items():
        told = _told(prefixed, evidence.told_key(rank), until)
        said.place = stacks.place_of(stacks.main_thread_frames(said.stack))
        if told is not None:
            testimony = json.loads(told)
            said.place = stacks.place_of([(file, line, name) for file, line, name in testimony["frames"]])
            said.collective = Collective(**testimony["collective"]) if testimony["collective"] else None
            _told(prefixed, evidence.saved_key(rank), time.monotonic() + _SAVED_S)
    return found


def _await_stacks(found: dict[int, Evidence], offsets: dict[int, int], settings: RankSettings) -> None:
    until = time.monotonic() + _STACK_S
    waiting = set(found)
    while waiting and time.monotonic() < until:
        before = {rank: _size(settings.stack_file(rank)) for rank in waiting}
        time.sleep(_SETTLED_S)  # a file gives no event; the loop is bounded by its deadline
        for rank in list(waiting):
            if offsets[rank] < before[rank] == _size(settings.stack_file(rank)):
                found[rank].stack = evidence.read_stacks(settings.stack_file(rank), offsets[rank])
                waiting.discard(rank)


def _told(store: "Store", key: str, until: float) -> bytes | None:
    left = dt.timedelta(seconds=max(0.01, until - time.monotonic()))
    try:
        store.wait([key], left)
    except RuntimeError:  # the store's own timeout: this rank cannot speak
        return None
    value: bytes = store.get(key)
    return value


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
