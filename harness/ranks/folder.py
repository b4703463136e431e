"""The folder of a session's pools: nobody else reads it, and a session that was killed does not keep it for ever.

A session holds a kernel lock on a file in its folder for as long as it lives. Whoever makes the next folder removes
those whose lock is free. Sessions do this in turn.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "harness-pools-"
_OWNER = "owner"


class SessionFolder:
    """A new folder below the system's folder for temporary files. ``close`` removes it."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        with _turn(parent):  # a folder that is made but not locked yet looks abandoned
            _remove_abandoned(parent)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._owner = os.open(self.path / _OWNER, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._owner)


@contextmanager
def _turn(parent: Path) -> Generator[None, None, None]:
    """One session of this user at a time."""
    lock = os.open(parent / f".{_PREFIX}{os.getuid()}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another session has just removed it
            if folder.stat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        owner = os.open(folder / _OWNER, os.O_RDWR)
    except FileNotFoundError:
        return not any(folder.iterdir())
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(owner)
