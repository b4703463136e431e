"""Ends the workers of a process that was killed: a small process of its own, one for each owner of pools.

A worker cannot be trusted to notice that its owner is gone: it may be stopped, or stuck in native code that never
gives Python a turn. This process can. It holds the reading end of a pipe whose writing end only the owner holds; when
the owner ends, however it ends, the kernel closes that end. The guard then kills every registered worker and all that
descends from it, and removes the owner's temporary folders, which a killed process cannot.

This file is run by its path, without the package, so that it starts in milliseconds: it imports only a few modules of
the standard library. The package imports :func:`family` and :func:`kill_family` from here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple


class Relative(NamedTuple):
    """One process as the system lists it."""

    pid: int
    parent: int
    session: int
    born: str
    """Start time: tells a process from a later one of the same number."""


def family(root: int) -> list[Relative]:
    """The processes that descend from ``root`` or belong to the session that it leads, ``root`` left out.

    A worker leads a session of its own, so grandchildren are found even when their parent has ended before them.
    Resource trackers of ``multiprocessing`` are left out: they end by themselves when those who use them have ended,
    and unlink shared memory as they do; killed, they would leak it.
    """
    everyone = _processes()
    found: dict[int, Relative] = {one.pid: one for one in everyone if one.session == root and one.pid != root}
    parents = {root, *found}
    while True:
        more = [one for one in everyone if one.parent in parents and one.pid not in parents]
        if not more:
            break
        for one in more:
            found[one.pid] = one
            parents.add(one.pid)
    found.pop(os.getpid(), None)
    return [one for one in found.values() if not _is_resource_tracker(one.pid)]


def kill_family(root: int, known: Iterable[Relative] = (), *, root_too: bool = True) -> list[int]:
    """SIGKILL ``root`` and its family, and those of ``known`` that still run. Returns the pids that got the signal."""
    killed = []
    if root_too:
        killed += _kill([root])
    for _ in range(8):  # a process may fork while it is being killed; its child is found on the next look
        current = family(root)
        alive = [one.pid for one in known if _born(one.pid) == one.born]
        fresh = [pid for pid in {*(one.pid for one in current), *alive} if pid not in killed]
        if not fresh:
            break
        killed += _kill(fresh)
    return killed


def _kill(pids: Iterable[int]) -> list[int]:
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            reached.append(pid)
    return reached


def _processes() -> list[Relative]:
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib would double this file's start time
        return _processes_by_ps()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            one = _stat(int(name))
            if one is not None:
                found.append(one)
    return found


def _stat(pid: int) -> Relative | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Relative(pid, int(fields[1]), int(fields[3]), fields[19])


def _born(pid: int) -> str | None:
    if os.path.isdir("/proc/self"):  # noqa: PTH112
        one = _stat(pid)
        return one.born if one else None
    return next((one.born for one in _processes_by_ps() if one.pid == pid), None)


def _processes_by_ps() -> list[Relative]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,sess=,stat=,lstart="], capture_output=True, text=True, check=False
    )
    found = []
    for line in listing.stdout.splitlines():
        pid, parent, session, state, born = line.split(None, 4)
        if not state.startswith("Z"):
            found.append(Relative(int(pid), int(parent), int(session, 16) if session != "0" else 0, born))
    return found


def _is_resource_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return b"resource_tracker import main" in file.read()
    except OSError:
        return False


def _watch(orders: int, owner: int) -> None:
    """Read orders until the owner is gone: ``+pid`` registers, ``-pid`` forgets, ``d path`` names a folder."""
    workers: set[int] = set()
    folders: list[str] = []
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    with contextlib.suppress(AttributeError, OSError):  # not on every system; the pipe alone then tells
        poll.register(os.pidfd_open(owner), select.POLLIN)
    rest = b""
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        data = os.read(orders, 65536) if orders in ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order, operand = line[:1], line[1:].decode()
            if order == b"+":
                workers.add(int(operand))
            elif order == b"-":
                workers.discard(int(operand))
            elif order == b"d":
                folders.append(operand)
        if not data:
            break
    for worker in workers:
        kill_family(worker)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _main() -> None:
    orders, owner = int(sys.argv[1]), int(sys.argv[2])
    os.setsid()  # a Ctrl-C at the terminal is for the owner
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    _watch(orders, owner)


if __name__ == "__main__":
    _main()
