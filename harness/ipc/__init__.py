"""Reference worker IPC: a pool of worker processes in which every failure is a fact that reaches its caller.

``envelope`` is what crosses the pipe, ``worker`` the loop in the child, ``pool`` the parent's side.
"""

from harness.ipc.call import Call, Reply
from harness.ipc.door import START_METHODS
from harness.ipc.errors import ForeignProcess, PoolClosed, UnreportedPost, WorkerFailed
from harness.ipc.failure import Cause, Failure, FailureKind
from harness.ipc.pool import WorkerPool
from harness.ipc.process import StartMethod, WorkerProcess

__all__ = [
    "START_METHODS",
    "Call",
    "Cause",
    "Failure",
    "FailureKind",
    "ForeignProcess",
    "PoolClosed",
    "Reply",
    "StartMethod",
    "UnreportedPost",
    "WorkerFailed",
    "WorkerPool",
    "WorkerProcess",
]
