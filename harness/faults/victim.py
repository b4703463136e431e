"""An object for workers whose methods go wrong on request, and factories that go wrong themselves."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.faults.fault import named

STAGGER_S = 0.15
"""By how much one worker's answer comes before another's in :meth:`Victim.answer_last_first`."""


class Victim:
    """What a worker holds in tests: honest methods, and :meth:`suffer`.

    Args:
        index: index of the worker; most answers carry it, so that an answer tells who gave it.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.posts: list[Any] = []

    def answer(self, token: Any) -> tuple[int, Any]:
        """``(index, token)``: says who answered, and to which question."""
        return self.index, token

    def pid(self) -> int:
        """Process id of the worker."""
        return os.getpid()

    def echo(self, value: Any) -> Any:
        """``value`` itself."""
        return value

    def size(self, value: bytes) -> int:
        """Length of ``value``, for requests that are large when their answers are not."""
        return len(value)

    def zeros(self, length: int) -> bytes:
        """``length`` bytes, for answers that are large when their requests are not."""
        return bytes(length)

    def wait(self, seconds: float, token: Any = None) -> tuple[int, Any]:
        """:meth:`answer` after ``seconds``."""
        time.sleep(seconds)
        return self.index, token

    def answer_last_first(self, size: int, token: Any) -> tuple[int, Any]:
        """:meth:`answer`, the sooner the higher the index."""
        time.sleep((size - 1 - self.index) * STAGGER_S)
        return self.index, token

    def hold(self, folder: str, victims: tuple[int, ...]) -> int:
        """On the workers in ``victims``: say by a file in ``folder`` that this has begun, and never return."""
        if self.index in victims:
            Path(folder, str(self.index)).touch()
            named("hang").act()
        return self.index

    def suffer(self, fault: str, victims: tuple[int, ...], token: Any = None) -> Any:
        """The fault of that name on the workers in ``victims``; :meth:`answer` on the others."""
        return named(fault).act() if self.index in victims else (self.index, token)

    def note(self, token: Any) -> None:
        """Remember ``token``; for posts."""
        self.posts.append(token)

    def noted(self) -> tuple[int, list[Any]]:
        """``(index, tokens noted so far)``."""
        return self.index, list(self.posts)

    def share(self) -> str:
        """Name of a block of shared memory that this worker holds until it ends."""
        from multiprocessing import shared_memory

        self.block = shared_memory.SharedMemory(create=True, size=4096)
        return self.block.name

    def beget(self) -> tuple[int, int]:
        """Start a grandchild that does nothing for long. ``(pid of the worker, pid of the grandchild)``."""
        child = subprocess.Popen(["sleep", "3600"])
        return os.getpid(), child.pid


@dataclass(frozen=True)
class FailingStart:
    """A factory of victims that suffers a fault instead on some workers.

    Attributes:
        fault: name of the fault.
        victims: indices of the workers on which it strikes.
    """

    fault: str
    victims: tuple[int, ...]

    def __call__(self, index: int) -> Victim:
        """Build a victim, unless it is to fail."""
        if index in self.victims:
            named(self.fault).act()
        return Victim(index)
