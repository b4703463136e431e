"""Ends the workers of a process that was killed: a small process of its own, one for each owner of pools.

A worker cannot be trusted to notice that its owner is gone: it may be stopped, or stuck in native code that never
gives Python a turn. This process can. It holds the reading end of a pipe whose writing end only the owner holds; when
the owner ends, however it ends, the kernel closes that end. The guard then kills every registered worker and all that
descends from it, and removes the owner's temporary folders, which a killed process cannot.

This file is run by its path, without the package, so that it starts in milliseconds: it imports only a few modules
of the standard library. The package imports :func:`families` and :func:`kill_families` from here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROUNDS = 8
"""A process may fork while it is being killed; its child is found on the next look. This many looks at most."""

_LOOKS, _BETWEEN_LOOKS_S = 50, 0.002
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
}


class Relative(NamedTuple):
    """One process as the system lists it."""

    pid: int
    parent: int
    session: int
    born: str
    """Start time: tells a process from a later one of the same number."""


def families(roots: Iterable[int]) -> list[Relative]:
    """The processes that descend from ``roots`` or belong to a session that one of them leads, roots left out.

    A worker leads a session of its own, so a grandchild is found even when its parent has ended before it. This
    process is left out.
    """
    known = set(roots)
    everyone = _processes()
    found = {one.pid: one for one in everyone if one.session in known and one.pid not in known}
    known.update(found)
    while more := [one for one in everyone if one.parent in known and one.pid not in known]:
        found.update((one.pid, one) for one in more)
        known.update(one.pid for one in more)
    found.pop(os.getpid(), None)
    return list(found.values())


def kill_families(
    roots: Iterable[int], known: Iterable[Relative] = (), *, roots_too: bool = True
) -> list[int]:
    """SIGKILL ``roots`` and their families.

    Resource trackers of ``multiprocessing`` are spared: they end by themselves when the processes that use them have
    ended, and unlink shared memory as they do; killed, they would leave it behind.

    Args:
        roots: pids of workers; one that has ended still leads its session.
        known: relatives noted earlier, which may have lost their place in the family since.
        roots_too: False to spare the roots themselves.

    Returns:
        The pids that got the signal.
    """
    roots = set(roots)
    # Who descends from whom must be read before the first is killed: orphans get another parent.
    doomed = {one.pid for one in families(roots)} | {one.pid for one in known if born(one.pid) == one.born}
    killed: set[int] = set()
    fresh = doomed | roots if roots_too else doomed
    for _ in range(_ROUNDS):
        if not fresh:
            break
        killed |= {pid for pid in fresh if _kill(pid)}
        fresh = {one.pid for one in families(roots | doomed)} - doomed - roots
        doomed |= fresh
    return sorted(killed)


def is_still(pid: int, birth: str | None) -> bool:
    """Whether a number means the process that was born then, or nobody, but not a later process.

    The number of one that has ended is free as soon as it has been reaped, which a fork server does at once. As long
    as it leads a session with members, no other process gets it.
    """
    return born(pid) in {None, birth}


def state(pid: int) -> str:
    """What a process does, in a word or two; ``ended`` when there is none."""
    fields = _stat_fields(pid)
    if fields is None:
        return "ended" if _has_proc() else "state unknown"
    return _STATES.get(fields[0], f"state {fields[0]}")


def _kill(pid: int) -> bool:
    if _is_resource_tracker(pid):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _processes() -> list[Relative]:
    if not _has_proc():
        return _processes_by_ps()
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib doubles the
    return [
        one for one in map(_stat, numbers) if one is not None
    ]  #                     start time of this file


def _has_proc() -> bool:
    return os.path.isdir("/proc/self")  # noqa: PTH112 - as above


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
    return text[text.rindex(")") + 2 :].split()


def _stat(pid: int) -> Relative | None:
    """A process that runs; None for one that has ended or only waits to be reaped."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Relative(pid, int(fields[1]), int(fields[3]), fields[19])


def born(pid: int) -> str | None:
    """Start time of a process that runs; None when there is none of that number."""
    if _has_proc():
        one = _stat(pid)
        return one.born if one else None
    return next((one.born for one in _processes_by_ps() if one.pid == pid), None)


def _processes_by_ps() -> list[Relative]:
    """Where there is no /proc; sessions stay unknown there, and only descent counts."""
    command = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    listing = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.split(None, 3) for line in listing.stdout.splitlines()]
    return [Relative(int(pid), int(parent), 0, born) for pid, parent, stat, born in rows if stat[0] != "Z"]


def _is_resource_tracker(pid: int) -> bool:
    return b"resource_tracker import main" in _command(pid)


def _command(pid: int) -> bytes:
    """The command line of a process. In the middle of ``exec`` it has none, for a moment."""
    for _ in range(_LOOKS):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as above
                command = file.read()
        except OSError:
            return b""
        if command or _stat(pid) is None:
            return command
        time.sleep(_BETWEEN_LOOKS_S)
    return b""


def _watch(orders: int, owner: int) -> None:
    """Heed orders until the owner is gone.

    ``+pid birth`` registers, ``-pid`` forgets, ``dpath`` names a folder; each ends with a newline.
    """
    workers: dict[int, str | None] = {}
    folders: list[str] = []
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    with contextlib.suppress(AttributeError, OSError):  # not on every system; the pipe alone then tells
        poll.register(os.pidfd_open(owner), select.POLLIN)
    rest = b""
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        data = os.read(orders, 65536) if orders in ready else b""
        over = not data or ready != [orders]
        if over:  # its last orders may have come after poll() had looked at the pipe
            data += _what_is_there(orders)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order, operand = line[:1], os.fsdecode(line[1:])
            if order == b"+":
                pid, _, birth = operand.partition(" ")
                workers[int(pid)] = birth or None
            elif order == b"-":
                workers.pop(int(operand), None)
            else:
                folders.append(operand)
        if over:
            break
    kill_families([pid for pid, birth in workers.items() if is_still(pid, birth)])
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _what_is_there(pipe: int) -> bytes:
    """What can be read without waiting; the end may never come, should somebody else hold the other one."""
    os.set_blocking(pipe, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 65536):
            parts.append(part)
    return b"".join(parts)


def _main() -> None:
    orders, owner = int(sys.argv[1]), int(sys.argv[2])
    os.setsid()  # a Ctrl-C at the terminal is for the owner
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    _watch(orders, owner)


if __name__ == "__main__":
    _main()
