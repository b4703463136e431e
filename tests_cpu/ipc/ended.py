"""Whether processes that are nobody's children here have ended."""

from __future__ import annotations

import time

import psutil


def gone(pid):
    """A process that only waits for its new parent to reap it counts as gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(pids, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if all(map(gone, pids)):
            return True
        time.sleep(0.02)  # there is no event for the end of a stranger's process
    return False
