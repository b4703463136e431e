"""Read a rank's stacks: where the test stands, and in which collective."""

import re
from dataclasses import dataclass

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_LIBRARY = re.compile(
    r"/(torch|deepspeed|accelerate|_pytest|pluggy|multiprocess|harness/ranks|harness/ipc)/|/lib/python3"
)
_COLLECTIVES = "/torch/distributed/"
_WRAPPERS = {"wrapper", "decorator", "inner", "_wrapped", "new_group_wrapper", "<lambda>"}

Frame = tuple[str, int, str]


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    location: str
    """``file:line`` of the innermost frame outside Python and the libraries; may be empty."""
    function: str
    """Name of that frame's function."""
    collective: str
    """Name of the torch.distributed function it waits in, or empty."""

    def __str__(self) -> str:
        if not self.location and not self.collective:
            return "an unknown place"
        return (self.location or "an unknown line") + (f" in {self.collective}" if self.collective else "")


def main_thread_frames(dump: str) -> list[Frame]:
    """Frames of the main thread, innermost first, from what faulthandler wrote for all threads.

    faulthandler names no thread; the main thread is the one whose outermost frames entered the worker.
    """
    threads: list[list[Frame]] = []
    for line in dump.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            threads.append([])
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append((found["file"], int(found["line"]), found["function"]))
    for frames in reversed(threads):
        if any("harness/ranks/session.py" in file for file, _, _ in frames):
            return frames
    return threads[-1] if threads else []


def without_machinery(dump: str) -> str:
    """A dump without what is the same in every rank: pytest's frames and our own below the test."""
    kept: list[str] = []
    for block in re.split(r"\n(?=Thread 0x|Current thread 0x)", dump.strip()):
        if "harness/ranks/evidence.py" in block:
            continue
        lines = block.splitlines()
        outer = [
            number
            for number, line in enumerate(lines)
            if re.search(r"/_pytest/python\.py\", line \d+ in", line)
        ]
        entry = [number for number, line in enumerate(lines) if "harness/ranks/session.py" in line]
        end = min([*outer, *entry], default=len(lines))
        kept += [*lines[:end], *([] if end == len(lines) else ["  (pytest and the rank's own loop)"])]
    return "\n".join(kept)


def place_of(frames: list[Frame]) -> Place:
    """Find the line of the test (or of the code that it tests) and the collective below it."""
    collective = ""
    for file, line, function in frames:
        if _COLLECTIVES in file and function not in _WRAPPERS:
            collective = function
        if not _LIBRARY.search(file):
            return Place(f"{file}:{line}", function, collective)
    return Place("", "", collective)
