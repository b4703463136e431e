"""DeepSpeed's shared-memory op for CPU: compiled by DeepSpeed at its first use, which takes about a minute.

A cell's deadline is no place for a compiler, so the op is built before the first cell, in a process of its own, into a
folder for this Python, torch and DeepSpeed: what was built against them serves every environment that has them, and is
loaded without torch's own way, by which environments rebuild it in turn. torch guards a build by a
file that a killed build leaves behind, and whoever comes later waits for it without end; so builds here take turns by
a lock that the kernel gives back, and what a dead one left is cleared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from harness.errors import HarnessError, UsageError

DEADLINE = 600.0  # seconds
NAME = "deepspeed_shm_comm"
_VARIABLE = "TORCH_EXTENSIONS_DIR"
_BUILD = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"


def folder() -> Path:
    """Where the build for this Python, torch and DeepSpeed lives, under torch's folder for extensions."""
    named = os.environ.get(_VARIABLE)
    root = Path(named) if named else Path.home() / ".cache" / "torch_extensions"
    identity = f"{sys.version} {version('torch')} {version('deepspeed')}"
    own = f"harness-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return root if root.name == own else root / own


def is_built() -> bool:
    """Whether the op was built for these versions."""
    return (folder() / NAME / f"{NAME}.so").is_file()


def ensure_built() -> None:
    """Compile the op unless that was done before, and let this process's children find it.

    Only DeepSpeed's CPU accelerator has the op: for another one nothing is done.

    Raises:
        UsageError: no C++ compiler on this machine.
        HarnessError: the compilation failed, with the end of what it said.
    """
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        return
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    os.environ[_VARIABLE] = str(place)
    _put_ninja_on_path()
    with FileLock(place / "harness.lock", timeout=DEADLINE):
        if not is_built():
            _build(place)
        _clear_abandoned(place / NAME / "lock")


def _clear_abandoned(lock: Path) -> None:
    """Remove torch's lock if no living process can hold it any more: one that does fails when it is gone."""
    with suppress(FileNotFoundError):
        if time.time() - lock.stat().st_mtime > DEADLINE:
            lock.unlink()


def load() -> None:
    """Load the op that was built into this process and everything forked from it.

    DeepSpeed finds it as loaded and asks torch no more, which would run ninja and wait for its lock.
    """
    if os.environ.get("DS_ACCELERATOR") != "cpu" or not is_built():
        return
    import torch  # noqa: F401 - the op links against its libraries
    from deepspeed.ops.op_builder.builder import OpBuilder

    spec = importlib.util.spec_from_file_location(NAME, folder() / NAME / f"{NAME}.so")
    if spec is None or spec.loader is None:
        raise HarnessError(f"{folder() / NAME} holds no loadable build of DeepSpeed's op: remove the folder")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    OpBuilder._loaded_ops[NAME] = module  # noqa: SLF001 - where DeepSpeed looks


def _build(place: Path) -> None:
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise UsageError(
            "DeepSpeed on CPU compiles an operator at its first use and found no C++ compiler:"
            " install one (Debian: apt-get install g++), or run only '--scenario *replicated*'"
        )
    shutil.rmtree(place / NAME, ignore_errors=True)
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILD],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a compiler can be ended together with who called it
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise HarnessError(
            f"compiling DeepSpeed's shared-memory op did not end within {DEADLINE:.0f} s"
        ) from None
    if process.returncode or not is_built():
        raise HarnessError(f"compiling DeepSpeed's shared-memory op failed:\n{said[-2000:]}")


def _put_ninja_on_path() -> None:
    """Torch calls ``ninja`` by name; pip puts it beside the interpreter, which need not be on the path."""
    beside = str(Path(sys.executable).parent)
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
