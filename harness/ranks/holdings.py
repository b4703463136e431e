"""What the system holds for this process: children, sockets, shared memory, descriptors, device memory.

Read from ``/proc`` by hand, because it is read twice for every test. Where there is no ``/proc``, nothing is
found.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where the system keeps it
_LISTEN = "0A"
_TRACKER = "resource_tracker"
"""multiprocessing's tracker ends by itself when those who use it have ended."""


@dataclass(frozen=True)
class Holdings:
    """A snapshot."""

    children: frozenset[str]
    """Processes started and not ended, as "pid (command)"."""
    listening: frozenset[str]
    """Sockets that accept connections, as "address:port"."""
    shared_memory: frozenset[str]
    """Segments that this process holds open by name."""
    descriptors: int
    """How many are open."""
    device_bytes: int
    """Allocated by torch on the current CUDA device."""

    @classmethod
    def take(cls) -> "Holdings":
        """Of this process, now."""
        links = _links()
        return cls(
            children=_children(),
            listening=_listening({link[8:-1] for link in links if link.startswith("socket:[")}),
            shared_memory=frozenset(link for link in links if link.startswith(_SHARED_MEMORY)),
            descriptors=len(links),
            device_bytes=_device_bytes(),
        )


def command_of(pid: int | str) -> str:
    """The command line of a process, shortened; empty when it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        if status[status.rindex(")") + 2] in "ZX":
            return ""
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:80]
            .strip()
        )
    except OSError:
        return ""


def _links() -> list[str]:
    """Where every open descriptor leads."""
    found = []
    for number in _listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115 - hot
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _children() -> frozenset[str]:
    found = set()
    for task in _listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{task}/children").read_text().split()
        except OSError:  # the thread has just ended
            continue
        for pid in pids:
            command = command_of(pid)
            if command and _TRACKER not in command:
                found.add(f"{pid} ({command})")
    return frozenset(found)


def _listening(inodes: set[str]) -> frozenset[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.add(_address(fields[1]))
    return frozenset(found)


def _address(field: str) -> str:
    host, port = field.split(":")
    if len(host) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(host))) + f":{int(port, 16)}"
    return f"[{host}]:{int(port, 16)}"


def _device_bytes() -> int:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    allocated: int = torch.cuda.memory_allocated()
    return allocated


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - hot, and names suffice
    except OSError:
        return []
