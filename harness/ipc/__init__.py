"""Reference worker IPC: a pool of worker processes in which every failure is a fact that reaches its caller.

``envelope`` is what crosses the pipe, ``worker`` the loop in the child, ``pool`` the parent's side.
"""

from harness.ipc.call import Call, Reply
from harness.ipc.errors import ForeignProcess, PoolClosed, WorkerFailed
from harness.ipc.failure import Cause, Failure
from harness.ipc.pool import START_METHODS, WorkerPool
from harness.ipc.process import StartMethod, WorkerProcess

__all__ = [
    "START_METHODS",
    "Call",
    "Cause",
    "Failure",
    "ForeignProcess",
    "PoolClosed",
    "Reply",
    "StartMethod",
    "WorkerFailed",
    "WorkerPool",
    "WorkerProcess",
]
