"""DeepSpeed's shared-memory op for CPU: compiled by DeepSpeed at its first use, which takes about a minute.

A cell's deadline is no place for a compiler, so it is built before the first cell, in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from harness.errors import HarnessError, UsageError

DEADLINE = 600.0  # seconds
_BUILD = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"


def is_built() -> bool:
    """Whether the op was built by this very environment: torch rebuilds what another one left."""
    return any(_stamp(op).is_file() and _stamp(op).read_text() == str(op.stat().st_mtime_ns) for op in _ops())


def ensure_built() -> None:
    """Compile the op unless that was done before (only DeepSpeed's CPU accelerator has it).

    Raises:
        UsageError: no C++ compiler on this machine.
        HarnessError: the compilation failed, with the end of what it said.
    """
    if os.environ.get("DS_ACCELERATOR") != "cpu" or is_built():
        return
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise UsageError(
            "DeepSpeed on CPU compiles an operator at its first use and found no C++ compiler:"
            " install one (Debian: apt-get install g++), or run only '--scenario *replicated*'"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BUILD],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise HarnessError(
            f"compiling DeepSpeed's shared-memory op did not end within {DEADLINE:.0f} s"
        ) from None
    if done.returncode:
        raise HarnessError(
            f"compiling DeepSpeed's shared-memory op failed:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    for op in _ops():
        _stamp(op).write_text(str(op.stat().st_mtime_ns))


def put_ninja_on_path() -> None:
    """Torch calls ``ninja`` by name; pip puts it beside the interpreter, which need not be on the path."""
    beside = str(Path(sys.executable).parent)
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"


def _ops() -> list[Path]:
    """Compiled copies of the op in torch's extension cache."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = Path(named) if named else Path.home() / ".cache" / "torch_extensions"
    return [*cache.glob("deepspeed_shm_comm/*.so"), *cache.glob("*/deepspeed_shm_comm/*.so")]


def _stamp(op: Path) -> Path:
    """The note beside a compiled op that says which build of it this environment made."""
    identity = f"{sys.prefix} {version('torch')} {version('deepspeed')}"
    return op.with_name(f"harness-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.stamp")
