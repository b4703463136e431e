"""Which process may use which GPU: one kernel lock per device, shared by all sessions and xdist workers.

A lock belongs to an open file, so it ends with its holder, however that ends. Several devices are locked in
the order of their identifiers, so two sessions that want several can never wait for each other. A device goes
back when its driver shows the memory free again, because the driver frees late and the next test would run
out of it. A session keeps its lease, and its warm pools, from test to test until somebody else waits for the
device.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import HarnessError

_FREED_S = 30.0
"""How long the driver may take to free the memory of a process that has ended."""
_LOOK_S = 0.1
_DRIVER_S = 20.0
_SLACK_BYTES = 64 << 20
"""Contexts of other programs come and go."""


class NoDevice(HarnessError):
    """No device became free in time; the message names who holds each."""


class DeviceLeases:
    """The leases of one session. Everything that it holds ends with ``release`` or with this process."""

    def __init__(
        self,
        devices: Sequence[str],
        used_bytes: Callable[[str], int],
        *,
        folder: Path | None = None,
        holder: str = "",
    ) -> None:
        """Prepare; nothing is locked.

        Args:
            devices: Identifiers (UUIDs) of the devices that this process may use at all.
            used_bytes: Memory in use on a device, by all processes, in bytes.
            folder: Where the lock files are; the same for all who share the devices.
            holder: What to call this session in other sessions' messages.
        """
        self._devices = sorted(devices)
        self._used_bytes = used_bytes
        self._folder = folder or Path(tempfile.gettempdir()) / f"harness-ranks-leases-{os.getuid()}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._holder = holder or f"process {os.getpid()}"
        self._held: dict[str, tuple[FileLock, int]] = {}

    @property
    def known(self) -> list[str]:
        """The devices that this session may use at all."""
        return list(self._devices)

    @property
    def held(self) -> list[str]:
        """The devices that this session holds, in the order of their identifiers."""
        return sorted(self._held)

    def acquire(self, count: int, timeout: float) -> list[str]:
        """Hold at least ``count`` devices; those already held count.

        Args:
            count: How many, at least 1.
            timeout: Seconds to wait for all of them.

        Raises:
            NoDevice: there are not so many, or they did not become free; says who holds them.
        """
        if count > len(self._devices):
            raise NoDevice(f"{count} GPUs are wanted, and this session may use {len(self._devices)}")
        until = time.monotonic() + timeout
        asking = self._folder / f"asking-{os.getpid()}"
        try:
            while not self._take(count):
                asking.write_text(self._holder)
                if time.monotonic() >= until:
                    raise NoDevice(f"no GPU became free within {timeout:g} s: {self._who()}")
                time.sleep(_LOOK_S)  # locks of several files cannot be waited for together
        finally:
            asking.unlink(missing_ok=True)
        return self.held[:count]

    def wanted_by_others(self) -> bool:
        """Whether another living process waits for a device."""
        return any(_alive(int(path.name.rpartition("-")[2])) for path in self._folder.glob("asking-*"))

    def release(self, timeout: float = _FREED_S) -> list[str]:
        """Give every device back once its memory is as free as it was. End the processes on it first.

        Returns:
            A sentence for each device whose memory did not become free in time; it is given back all the
            same.
        """
        late = []
        until = time.monotonic() + timeout
        for device, (lock, before) in sorted(self._held.items()):
            while (used := self._used_bytes(device)) > before + _SLACK_BYTES and time.monotonic() < until:
                time.sleep(_LOOK_S)  # the driver gives no event
            if used > before + _SLACK_BYTES:
                late.append(
                    f"GPU {device} still has {used - before} bytes in use that were free when {self._holder} "
                    f"took it, {timeout:g} s after its ranks had ended"
                )
            self._name(device).unlink(missing_ok=True)
            lock.release()
        self._held.clear()
        return late

    def _take(self, count: int) -> bool:
        """Lock what is missing, in order; give back what was taken if it is not enough."""
        taken: list[str] = []
        for device in self._devices:
            if len(self._held) >= count:
                break
            if device in self._held:
                continue
            lock = FileLock(self._folder / f"{_plain(device)}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            self._held[device] = (lock, self._used_bytes(device))
            self._name(device).write_text(json.dumps({"holder": self._holder, "pid": os.getpid()}))
            taken.append(device)
        if len(self._held) >= count:
            return True
        for device in taken:
            lock, _ = self._held.pop(device)
            self._name(device).unlink(missing_ok=True)
            lock.release()
        return False

    def _who(self) -> str:
        told = []
        for device in self._devices:
            try:
                holder = json.loads(self._name(device).read_text())
            except (OSError, ValueError):  # it was given back this moment
                continue
            told.append(f"{device} is held by {holder['holder']} (pid {holder['pid']})")
        return "; ".join(told) or "nobody holds them any more, try again"

    def _name(self, device: str) -> Path:
        return self._folder / f"{_plain(device)}.holder"


def gpus() -> dict[str, int]:
    """The GPUs that this process may use and the bytes in use on each, from the driver, without touching one.

    Those in the caller's ``CUDA_VISIBLE_DEVICES`` by number (of ``nvidia-smi``) or identifier; all where it
    is not set; none without a driver.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits"]
    listing = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_DRIVER_S)
    rows = [[field.strip() for field in line.split(",")] for line in listing.stdout.splitlines()]
    found = {index: (uuid, int(mebibytes) << 20) for index, uuid, mebibytes in rows if mebibytes.isdigit()}
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return dict(found.values())
    used = dict(found.values())
    chosen = [found[name][0] if name in found else name for name in map(str.strip, listed.split(",")) if name]
    return {uuid: used.get(uuid, 0) for uuid in chosen}


def _plain(uuid: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in uuid)


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
