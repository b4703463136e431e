"""vLLM's own worker IPC as a subject: its ``MultiprocExecutor`` and ``collective_rpc``, without a model.

The executor, its message queues and its worker loop are the released code. Only the worker's class is another, as
vLLM allows by ``worker_cls``: one that builds the object of a factory where vLLM's would load a model.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.subjects.vllm import bound_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.ipc.scenarios import IpcScenario

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 192,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
"""What vLLM wants to know before it starts anything; no worker builds it. It refuses numbers of workers that do not
divide the heads: twelve can be shared by 2, 3, 4 or 6."""


class BareWorker:
    """What a worker of vLLM must have, and an object whose methods are called."""

    def __init__(
        self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, **_: Any
    ) -> None:
        self.vllm_config, self.local_rank, self.rank = vllm_config, local_rank, rank
        self._meeting = distributed_init_method
        self._object: Any = None

    def init_device(self) -> None:
        """No device; only the groups by whose ranks vLLM names its processes."""
        from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

        os.environ["VLLM_DIST_IDENT"] = self._meeting.rpartition("/")[2].rpartition(":")[
            2
        ]  # as its CPU worker
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self._meeting, self.local_rank, "gloo"
        )

    def load_model(self, *_: Any, **__: Any) -> None:
        """No model."""

    def shutdown(self) -> None:
        """Nothing to give back."""

    def check_health(self) -> None:
        """Well."""

    def build(self, factory: bytes) -> None:
        """Make this worker's object."""
        import dill

        self._object = dill.loads(factory)(self.rank)

    def invoke(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the object."""
        return getattr(self._object, method)(*args)


class VllmExecutor:
    """A pool of ``tensor_parallel_size`` workers, called through ``collective_rpc``.

    ``fork`` is how vLLM starts workers unless told otherwise; ``spawn`` is what its CPU platform tells it, because of
    OpenMP, which no worker here uses. A start by ``spawn`` imports vLLM in each worker, a dozen seconds each.
    """

    start_method = "spawn"
    start_s = 240.0
    patience = 2.0
    native_transport = True
    """Replies pass through shared memory."""

    def __init__(self) -> None:
        self._executor: Any = None

    @staticmethod
    def supports(scenario: IpcScenario) -> str | None:
        """None for the two ways that vLLM knows."""
        if scenario.start_method in {"spawn", "fork"}:
            return None
        return "vLLM starts its workers by spawn or by fork"

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        """Start the executor with ``size`` workers on this machine."""
        import dill

        os.environ.update(
            VLLM_HOST_IP="127.0.0.1",
            GLOO_SOCKET_IFNAME="lo",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_CPU_OMP_THREADS_BIND=bound_cores(size),
        )
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        with tempfile.TemporaryDirectory() as model:
            Path(model, "config.json").write_text(json.dumps(_MODEL))
            config = EngineArgs(
                model=model,
                skip_tokenizer_init=True,
                enforce_eager=True,
                tensor_parallel_size=size,
                distributed_executor_backend="mp",
            ).create_engine_config()
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = self.start_method
        config.parallel_config.worker_cls = f"{__name__}.BareWorker"
        self._executor = MultiprocExecutor(config)
        self._executor.collective_rpc("build", args=(dill.dumps(factory, recurse=True),))

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        """One result per worker."""
        results: list[Any] = self._executor.collective_rpc("invoke", timeout=timeout, args=(method, args))
        return results

    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.proc.pid for worker in self._executor.workers]

    def close(self) -> None:
        """Shut the executor down."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
