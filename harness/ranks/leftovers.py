"""What a test may leave behind in its rank's process, found by comparing before and after.

A pool whose rank was left changed is replaced, so that the next test cannot pass, or fail, because of it. A
fixture of a wider scope than the test may change things for as long as it lives: its changes are looked for
when it is gone. Leaks (processes, sockets, shared memory, device memory) are also kept for the audit at the
end of the session.
"""

import os
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from harness.ranks import holdings

_MAY_CHANGE = {"PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "PYTEST_VERSION"}
_MAY_CHANGE |= {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}  # torch sets them when it first needs them
_MANY_DESCRIPTORS = 64
_MANY_GROUPS = 16
"""Libraries make a group or two when first used, and keep them."""
_MANY_DEVICE_BYTES = 1 << 20


@dataclass
class Leftovers:
    """What one item left, each in one phrase."""

    changes: list[str] = field(default_factory=list)
    """State that the next test would find changed."""
    leaks: list[str] = field(default_factory=list)
    """Resources that were not given back."""


@dataclass(frozen=True)
class Fingerprint:
    """The state of the process that tests must leave as they found it."""

    environ: dict[str, str]
    directory: str
    threads: frozenset[str]
    """Names of the threads that would keep a process alive."""
    switches: dict[str, str]
    """Global switches of torch, and its default process group."""
    groups: int
    """How many process groups exist."""
    held: holdings.Holdings
    """What the system holds for the process."""

    @classmethod
    def take(cls) -> "Fingerprint":
        """Of this process, now. Costs well under a millisecond."""
        switches, groups = _torch_state()
        return cls(
            environ={name: value for name, value in os.environ.items() if name not in _MAY_CHANGE},
            directory=os.getcwd(),  # noqa: PTH109 - a string is compared
            threads=frozenset(one.name for one in threading.enumerate() if not one.daemon),
            switches=switches,
            groups=groups,
            held=holdings.Holdings.take(),
        )

    def since_all(self, before: "Fingerprint", own: Leftovers) -> Leftovers:
        """What is different from a state before several items, with the item's own leftovers told as such."""
        everything = self.since(before)
        shared = "by a fixture that several tests shared, or by an earlier test"
        return Leftovers(
            [one if one in own.changes else f"{one} ({shared})" for one in everything.changes],
            [one if one in own.leaks else f"{one} ({shared})" for one in everything.leaks],
        )

    def since(self, before: "Fingerprint") -> Leftovers:
        """What is different."""
        return Leftovers(self._changes(before), self._leaks(before))

    def _changes(self, before: "Fingerprint") -> list[str]:
        found = [
            f"environment variable {name} "
            + ("removed" if name not in self.environ else "changed" if name in before.environ else "set")
            for name in sorted(set(self.environ) | set(before.environ))
            if self.environ.get(name) != before.environ.get(name)
        ]
        if self.directory != before.directory:
            found.append(f"working directory changed to {self.directory}")
        found += [
            f"{name} left as {value}"
            for name, value in sorted(self.switches.items())
            if before.switches.get(name, value) != value
        ]
        if self.groups > before.groups + _MANY_GROUPS:
            found.append(f"{self.groups - before.groups} process groups left")
        return found

    def _leaks(self, before: "Fingerprint") -> list[str]:
        now, then = self.held, before.held
        found = [f"process {name} left running" for name in sorted(now.children - then.children)]
        found += [f"thread {name!r} left running" for name in sorted(self.threads - before.threads)]
        # A process group of gloo listens for as long as it exists, and libraries keep the groups they make.
        kept = max(0, self.groups - before.groups)
        found += [f"socket left listening on {where}" for where in now.listening_since(then)[kept:]]
        found += [f"shared memory {name} left" for name in now.shared_memory_since(then)]
        if now.count > then.count + _MANY_DESCRIPTORS:
            found.append(f"{now.count - then.count} file descriptors left open")
        if now.device_bytes > then.device_bytes + _MANY_DEVICE_BYTES:
            found.append(f"{now.device_bytes - then.device_bytes} bytes of device memory left allocated")
        return found


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
