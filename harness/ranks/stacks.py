"""Read a rank's stacks: where the test stands, and in which collective."""

import re
from dataclasses import dataclass
from typing import Any

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
    """``file:line`` of the innermost frame that belongs to neither Python nor a library; empty when there is none."""
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


def place_of(frames: list[Frame]) -> Place:
    """Find the line of the test (or of the code that it tests) and the collective below it."""
    collective = ""
    for file, line, function in frames:
        if _COLLECTIVES in file and function not in _WRAPPERS:
            collective = function
        if not _LIBRARY.search(file):
            return Place(f"{file}:{line}", function, collective)
    return Place("", "", collective)


def describe_collective(entries: list[dict[str, Any]]) -> str:
    """The last collective in torch's flight recorder, in words: number, operation, dtype and shape, done or not."""
    collectives = [entry for entry in entries if not entry.get("is_p2p")]
    if not collectives:
        return ""
    last = collectives[-1]
    name = str(last.get("profiling_name", "")).partition(":")[2] or str(
        last.get("profiling_name", "a collective")
    )
    sizes = last.get("input_sizes") or []
    types = last.get("input_dtypes") or []
    tensors = ", ".join(f"{kind.lower()}{list(size)}" for kind, size in zip(types, sizes, strict=False))
    group = last.get("process_group") or ["", ""]
    state = "finished" if last.get("retired") else "not finished"
    return f"collective #{last.get('collective_seq_id')} {name}({tensors}) on {group[-1]}, {state}"
