"""Whoever descends from a cell, found by a mark in the environment that every descendant inherits.

Descent itself is lost when a parent ends first, and a session can be left; the environment that a process was started
with stays readable for as long as it lives.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psutil

MARK = "HARNESS_CELL"
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Leftover:
    """A process that is still there."""

    pid: int
    state: str
    command: str

    @property
    def is_helper(self) -> bool:
        """Whether it is an interpreter's resource tracker, which only stays for others that do."""
        return "resource_tracker" in self.command

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.state}): {self.command}"


def marked(value: str) -> list[psutil.Process]:
    """The processes whose environment holds the mark with this value; those that only wait to be reaped left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def outliving(value: str, seconds: float) -> list[Leftover]:
    """Those that are still there after ``seconds``; returns at once when there are none."""
    until = time.monotonic() + seconds
    while (processes := marked(value)) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)  # the end of somebody else's process is no event that one could wait for
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())[:120] or process.name()
            found.append(Leftover(process.pid, process.status(), command))
    return found


def end_all(value: str) -> None:
    """Kill them, and those that they start meanwhile."""
    for _ in range(50):
        processes = marked(value)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_LOOK_EVERY_S)
