"""What a test may leave behind in its rank's process, found by comparing before and after.

A pool whose rank was left changed is replaced, so that the next test cannot pass, or fail, because of it. A
fixture of a wider scope than the test may change things for as long as it lives: its changes are looked for
when it is gone.
"""

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAY_CHANGE = {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "PYTEST_VERSION"}
_MANY_DESCRIPTORS = 64
_MANY_GROUPS = 16
"""Libraries make a group or two when first used, and keep them."""


@dataclass(frozen=True)
class Fingerprint:
    """The state of the process that tests must leave as they found it."""

    environ: dict[str, str]
    directory: str
    threads: frozenset[str]
    """Names of the threads that would keep a process alive."""
    children: frozenset[str]
    """Processes started and not ended, as "pid (command)"."""
    descriptors: int
    """How many are open."""
    torch: dict[str, str]
    """Global switches of torch, and the default process group."""
    groups: int
    """How many process groups exist."""

    @classmethod
    def take(cls) -> "Fingerprint":
        """Of this process, now. Costs well under a millisecond."""
        switches, groups = _torch_state()
        return cls(
            environ={name: value for name, value in os.environ.items() if name not in _MAY_CHANGE},
            directory=os.getcwd(),  # noqa: PTH109 - a string is compared
            threads=frozenset(one.name for one in threading.enumerate() if not one.daemon),
            children=_children(),
            descriptors=_descriptors(),
            torch=switches,
            groups=groups,
        )

    def changes_since(self, before: "Fingerprint") -> list[str]:
        """What is different, each in one phrase."""
        found = [
            f"environment variable {name} "
            + ("removed" if name not in self.environ else "changed" if name in before.environ else "set")
            for name in sorted(set(self.environ) | set(before.environ))
            if self.environ.get(name) != before.environ.get(name)
        ]
        if self.directory != before.directory:
            found.append(f"working directory changed to {self.directory}")
        found += [f"thread {name!r} left running" for name in sorted(self.threads - before.threads)]
        found += [f"process {name} left running" for name in sorted(self.children - before.children)]
        if self.descriptors > before.descriptors + _MANY_DESCRIPTORS:
            found.append(f"{self.descriptors - before.descriptors} file descriptors left open")
        found += [
            f"{name} left as {self.torch.get(name)}"
            for name in sorted(self.torch)
            if name in before.torch and self.torch[name] != before.torch[name]
        ]
        if self.groups > before.groups + _MANY_GROUPS:
            found.append(f"{self.groups - before.groups} process groups left")
        return found


def _torch_state() -> tuple[dict[str, str], int]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}, 0
    switches = {
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's default device": str(torch.get_default_device()),
        "gradient mode": str(torch.is_grad_enabled()),
        "torch's thread count": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return switches, 0
    default = c10d.GroupMember.WORLD
    switches["default process group"] = "destroyed" if default is None else f"another one ({id(default):#x})"
    return switches, len(c10d._world.pg_map)  # noqa: SLF001 - torch tells it nowhere else


def sticky_device_error() -> str:
    """The error that every further use of this process's device would raise, or empty."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"device error that stays: {str(error).splitlines()[0]}"
    return ""


def _children() -> frozenset[str]:
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            pids = task.read_text().split()
        except OSError:  # the thread has just ended
            continue
        for pid in pids:
            command = _command(pid)
            if command and "resource_tracker" not in command:
                found.add(f"{pid} ({command})")
    return frozenset(found)


def _command(pid: str) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        if status[status.rindex(")") + 2] == "Z":
            return ""
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:80]
            .strip()
        )
    except OSError:  # it has just ended
        return ""


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0  # noqa: PTH208 - counted, not walked
