"""A vLLM server as a process of ours: on a free port of 127.0.0.1, with its own log, ended with its children.

The server leads a session, and the package's guard process watches over it: when whoever started it is killed, the
guard kills the server and all that belongs to its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from harness.errors import HarnessError
from harness.ipc import guarding
from harness.ipc.guard import families, kill_families
from harness.subjects.vllm_client import Client, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

START_S = 600.0
"""A server of two processes needs 80 s on two quiet cores, and many times that on a machine that others use."""
BLOCKS = 128
"""Blocks of the attention cache, of 16 tokens or more each: twice what all requests at once can need."""
EXTENSION = "harness.subjects.vllm_probe.Probe"


class ServerFailed(HarnessError):
    """A server did not start, or ended; the message has the end of its log."""


@dataclass(frozen=True)
class Layout:
    """How an engine is spread over processes."""

    tensor_parallel: int = 1
    data_parallel: int = 1

    @property
    def workers(self) -> int:
        """Worker processes in all."""
        return self.tensor_parallel * self.data_parallel

    def __str__(self) -> str:
        if self.data_parallel > 1:
            return f"dp{self.data_parallel}"
        return f"tp{self.tensor_parallel}" if self.tensor_parallel > 1 else "single"


@dataclass
class Server:
    """A running server. Made by :func:`start`; ``close`` ends it, with its children, at the latest in seconds."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    layout: Layout
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.url)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def family(self) -> list[int]:
        """Process ids of everything that the server has started and that still lives."""
        return [one.pid for one in families([self.process.pid])]

    def log_tail(self, lines: int = 30) -> str:
        """The end of the server's log."""
        return log_tail(self.log, lines)

    def wait_healthy(self, seconds: float = START_S) -> None:
        """Wait until the server answers.

        Raises:
            ServerFailed: it ended, or did not answer in time; with the end of its log.
        """
        until = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise ServerFailed(
                    f"the server ended while starting, with status {self.process.returncode}."
                    f" The end of {self.log}:\n{self.log_tail()}"
                )
            with contextlib.suppress(Unreachable):
                if self.client.health(seconds=5) == 200:
                    return
            if time.monotonic() > until:
                raise ServerFailed(
                    f"the server was not healthy after {seconds:.0f} s. The end of {self.log}:\n{self.log_tail()}"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.25)  # its end, or a moment until the next question

    def close(self) -> None:
        """End the server: asked first, then killed with everything of its session."""
        children = families([self.process.pid])
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        kill_families([self.process.pid, *(child.pid for child in children)])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        guarding.released(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(model: Path, log: Path, dtype: str, layout: Layout) -> Server:
    """Start a server; it is not healthy yet.

    Args:
        model: folder of a checkpoint.
        log: file that gets all that the server writes.
        dtype: ``bfloat16`` or ``float32``.
        layout: how many workers.
    """
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [
        "--model",
        str(model),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--dtype", dtype, "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "16"]
    # Few blocks of attention cache: a large cache becomes resident as requests first use it, and looks like a leak.
    command += ["--num-gpu-blocks-override", str(BLOCKS)]
    command += ["--weight-transfer-config", '{"backend": "gloo"}', "--worker-extension-cls", EXTENSION]
    if layout.tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(layout.tensor_parallel)]
    if layout.data_parallel > 1:
        command += ["--data-parallel-size", str(layout.data_parallel)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=engine_environment(layout),
            start_new_session=True,
        )
    guarding.watch_over(process.pid)
    return Server(process, port, log, layout)


def engine_environment(layout: Layout) -> dict[str, str]:
    """The environment in which vLLM's CPU build runs small and offline."""
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if layout.workers > 1:
        settings["VLLM_CPU_OMP_THREADS_BIND"] = bound_cores(layout.workers)
    return {**os.environ, **settings}


def bound_cores(workers: int) -> str:
    """A core for each worker, in vLLM's notation: several workers on one NUMA node must be told theirs."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[worker % len(cores)]) for worker in range(workers))


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago; a server that loses the race for it says so and ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def log_tail(log: Path, lines: int = 30) -> str:
    """The end of a log; a note when there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"
