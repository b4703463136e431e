"""What the system holds for this process: children, sockets, shared memory, descriptors, device memory.

Read from ``/proc`` by hand, because it is read twice for every test. Where there is no ``/proc``, nothing is
found.
"""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where the system keeps it
_TRACKER = "resource_tracker"
"""multiprocessing's tracker ends by itself when those who use it have ended."""


@dataclass(frozen=True)
class Holdings:
    """A snapshot."""

    children: frozenset[str]
    """Processes started and not ended, as "pid (command)"."""
    descriptors: dict[str, int]
    """What is open: where the descriptor leads (a socket's number, a file's path), and a descriptor."""
    count: int
    """How many descriptors are open."""
    device_bytes: int
    """Allocated by torch on the current CUDA device."""

    @classmethod
    def take(cls) -> "Holdings":
        """Of this process, now."""
        links = _links()
        return cls(
            children=_children(),
            descriptors={link: number for number, link in links},
            count=len(links),
            device_bytes=_device_bytes(),
        )

    def listening_since(self, before: "Holdings") -> list[str]:
        """Sockets that accept connections and did not exist before, as "address:port"."""
        new = [number for link, number in self._new(before) if link.startswith("socket:")]
        return sorted(filter(None, map(_listens, new)))

    def shared_memory_since(self, before: "Holdings") -> list[str]:
        """Segments that are held open by name and were not before."""
        return sorted(link for link, _ in self._new(before) if link.startswith(_SHARED_MEMORY))

    def _new(self, before: "Holdings") -> list[tuple[str, int]]:
        return [(link, number) for link, number in self.descriptors.items() if link not in before.descriptors]


def command_of(pid: int | str) -> str:
    """The command line of a process, shortened; empty when it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # its name may be any bytes
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


def _links() -> list[tuple[int, str]]:
    """Every open descriptor and where it leads."""
    found = []
    for number in _listdir("/proc/self/fd"):
        try:
            found.append((int(number), os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115 - hot
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _children() -> frozenset[str]:
    found = set()
    for task in _listdir("/proc/self/task"):
        try:
            descriptor = os.open(f"/proc/self/task/{task}/children", os.O_RDONLY)
            pids = os.read(descriptor, 1 << 16).decode().split()
            os.close(descriptor)
        except OSError:  # the thread has just ended
            continue
        for pid in pids:
            command = command_of(pid)
            if command and _TRACKER not in command:
                found.add(f"{pid} ({command})")
    return frozenset(found)


def _listens(descriptor: int) -> str:
    """The address at which a socket accepts connections; empty when it does not, or is gone."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family not in {socket.AF_INET, socket.AF_INET6}:
                return ""
            if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return ""
            host, port = one.getsockname()[:2]
            return f"{host}:{port}"
    except OSError:
        return ""


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
