"""What the checks add to a worker of vLLM (``--worker-extension-cls``): questions, and faults on demand.

Everything is called through the engine's own ``collective_rpc``, so arguments and results are what that carries.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Probe:
    """Mixed into vLLM's worker class; must not have attributes that a worker has."""

    weight_transfer_engine: Any
    rank: int
    vllm_config: Any

    def probe_identity(self) -> dict[str, Any]:
        """Who this worker is: process id, index over all replicas, version of its weights."""
        receiver = self.weight_transfer_engine.receiver
        return {"pid": os.getpid(), "index": self.probe_index(), "version": receiver.version}

    def probe_index(self) -> int:
        """Index of this worker over all replicas."""
        parallel = self.vllm_config.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + self.rank)

    def probe_echo(self, text: str) -> str:
        """What was asked, and who answers."""
        return f"{text}@{self.probe_index()}"

    def probe_raise(self, index: str, text: str) -> str:
        """Raise on one worker; the others answer."""
        if int(index) == self.probe_index():
            raise RuntimeError(f"{text} failed on worker {index}")
        return self.probe_echo(text)

    def probe_unpicklable(self, index: str) -> Any:
        """Return on one worker what no pickle takes."""
        return threading.Lock() if int(index) == self.probe_index() else self.probe_echo("unpicklable")

    def probe_sleep(self, index: str, seconds: str, text: str) -> str:
        """Answer late on one worker."""
        if int(index) == self.probe_index():
            time.sleep(float(seconds))
        return self.probe_echo(text)

    def probe_payload(self, size: str) -> str:
        """Return that many bytes of text."""
        return "x" * int(size)

    def probe_length(self, payload: str) -> str:
        """How much arrived."""
        return str(len(payload))

    def probe_arm(self, fault: str) -> None:
        """Make one worker fail in its next transfer: JSON with ``worker``, ``phase`` and ``action``."""
        plan = json.loads(fault)
        if plan["worker"] != self.probe_index():
            return
        receiver = self.weight_transfer_engine.receiver
        method = {"init": "connect", "start": "start", "chunk": "_place", "finish": "finish"}[plan["phase"]]
        original = getattr(receiver, method)

        def once(*arguments: Any, **keywords: Any) -> Any:
            delattr(receiver, method)
            return act(plan["action"], lambda: original(*arguments, **keywords))

        setattr(receiver, method, once)

    def probe_apply(self, target: str) -> None:
        """Have ``package.module:function`` do something to this worker's receiver; so the zoo's bugs get in here."""
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(self.weight_transfer_engine.receiver)


def act(action: str, go_on: Callable[[], Any]) -> Any:
    """Fail as asked: raise, be killed, or stand still until somebody sends SIGCONT."""
    if action == "raise":
        raise RuntimeError("a fault on purpose")
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action])
    return go_on()
