"""A data-parallel inference server that fails well: vLLM workers behind one HTTP front, on the worker pool.

::

    python examples/dp_server.py --model MODEL --workers 2 --port 8000

    POST /generate            {"prompts": [...], "max_tokens": 16, "temperature": 1.0, ...}
    POST /chat                {"messages": [[{"role": "user", "content": "..."}], ...], ...}
    POST /prompt_logprobs     {"prompts": [...]}
    POST /reset_prefix_cache
    GET  /health              200 when every worker is up, else 503; always says how each one is

A prompt is text, or a list of token ids. Each request is spread over all workers. When a worker fails it, the request
is answered with an error that carries every worker's word, root cause first, and the replies of the others are
collected, so that none of them can be taken for the answer to a later request. A worker that has died is replaced.
``/health`` asks no worker anything, and so answers while all of them are busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from harness.ipc import WorkerFailed, WorkerPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

Prompt = str | list[int]
ENGINE = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker")
"""Imported once, before the workers are forked: a replacement is up in seconds, where vLLM's import takes a dozen."""


class VllmWorker:
    """One replica: a ``vllm.LLM`` in a process of its own.

    Args:
        index: of this worker; it gets a core of its own on CPU.
        model: folder or name of the model.
        options: for ``vllm.LLM``.
    """

    def __init__(self, index: int, model: str, options: dict[str, Any]) -> None:
        cores = sorted(os.sched_getaffinity(0))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(cores[index % len(cores)]))
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # this process is the worker already
        from vllm import LLM

        self._llm = LLM(model, **options)

    def generate(self, prompts: list[Prompt], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        """Complete each prompt."""
        return [_answer(output) for output in self._run(prompts, sampling)] if prompts else []

    def chat(self, messages: list[list[dict[str, str]]], sampling: dict[str, Any]) -> list[dict[str, Any]]:
        """Answer each conversation, through the model's chat template."""
        from vllm import SamplingParams

        if not messages:
            return []
        outputs = self._llm.chat(messages, SamplingParams(**sampling), use_tqdm=False)
        return [_answer(output) for output in outputs]

    def prompt_logprobs(self, prompts: list[Prompt]) -> list[list[float]]:
        """Log-probability of every token of each prompt but the first."""
        if not prompts:
            return []
        outputs = self._run(prompts, {"max_tokens": 1, "prompt_logprobs": 0})
        return [
            [
                row[token].logprob
                for token, row in zip(o.prompt_token_ids[1:], o.prompt_logprobs[1:], strict=True)
            ]
            for o in outputs
        ]

    def reset_prefix_cache(self) -> bool:
        """Forget cached attention, as after new weights."""
        return bool(self._llm.reset_prefix_cache())

    def _run(self, prompts: list[Prompt], sampling: dict[str, Any]) -> Any:
        from vllm import SamplingParams

        requests = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        return self._llm.generate(requests, SamplingParams(**sampling), use_tqdm=False)


def _answer(output: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "completions": [{"text": each.text, "token_ids": list(each.token_ids)} for each in output.outputs],
    }


class Sampling(BaseModel):
    """How to sample; what is not named here is passed to ``vllm.SamplingParams`` as it is."""

    model_config = ConfigDict(extra="allow")
    max_tokens: int = 16
    temperature: float = 1.0


class Generate(Sampling):
    """Body of ``/generate``."""

    prompts: list[Prompt] = Field(min_length=1)


class Chat(Sampling):
    """Body of ``/chat``."""

    messages: list[list[dict[str, str]]] = Field(min_length=1)


class Score(BaseModel):
    """Body of ``/prompt_logprobs``."""

    prompts: list[Prompt] = Field(min_length=1)


class Front:
    """What stands between HTTP and the pool.

    Args:
        pool: of workers with the methods of ``VllmWorker``.
        timeout: seconds within which every worker must answer.
    """

    def __init__(self, pool: WorkerPool, timeout: float) -> None:
        self.pool, self._timeout = pool, timeout
        self._replacing: dict[int, asyncio.Task[None]] = {}
        self._replaced = [0] * pool.size

    async def spread(self, method: str, items: Sequence[Any], *arguments: Any) -> list[Any]:
        """Call ``method`` on every worker with its share of ``items``; the results in the order of the items."""
        size = self.pool.size
        shares = [list(items[worker::size]) for worker in range(size)]
        chunks = [(share, *arguments) for share in shares]
        results = await self._guarded(partial(self.pool.scatter, method, chunks, timeout=self._timeout))
        return [results[index % size][index // size] for index in range(len(items))]

    async def everywhere(self, method: str) -> list[Any]:
        """Call ``method`` on every worker."""
        return await self._guarded(partial(self.pool.call, method, timeout=self._timeout))

    async def _guarded(self, call: Callable[[], list[Any]]) -> list[Any]:
        try:
            return await asyncio.to_thread(call)
        finally:
            self.replace_dead()

    def replace_dead(self) -> None:
        """Start a new worker in the place of each one that has died. Call it on the event loop."""
        for index, process in enumerate(self.pool.workers):
            if process.exitcode is not None and index not in self._replacing:
                self._replacing[index] = asyncio.ensure_future(self._replace(index))

    async def _replace(self, index: int) -> None:
        try:
            await asyncio.to_thread(self.pool.restart, index)
            self._replaced[index] += 1
        except WorkerFailed:
            await asyncio.sleep(1)  # its place stays empty for a moment, and the next look tries again
        finally:
            del self._replacing[index]

    def health(self) -> list[dict[str, Any]]:
        """How each worker is; no worker is asked."""
        return [
            {
                "worker": index,
                "pid": process.pid,
                "state": "starting" if index in self._replacing else _state(process.exitcode),
                "replaced": self._replaced[index],
            }
            for index, process in enumerate(self.pool.workers)
        ]


def _state(exit_code: int | None) -> str:
    return "up" if exit_code is None else f"dead (exit status {exit_code})"


def make_app(front: Front, look_s: float = 0.5) -> FastAPI:
    """The HTTP application.

    Args:
        front: what answers.
        look_s: seconds between two looks for dead workers, when nobody asks anything.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.ensure_future(_look(front, look_s))
        yield
        looking.cancel()

    app = FastAPI(title="data-parallel server", lifespan=lifespan)

    @app.exception_handler(WorkerFailed)
    async def failed(_: Request, error: WorkerFailed) -> JSONResponse:
        """Every worker's word; 400 when all that failed was the request, 503 when a worker is gone or silent."""
        kinds = {failure.kind for failure in error.failures}
        status = 503 if kinds - {"raised", "unpicklable"} else 400 if _is_users(error) else 500
        failures = [
            {"worker": f.worker, "kind": f.kind, "type": f.type_name, "message": f.message}
            for f in error.failures
        ]
        return JSONResponse({"error": error.root.headline(), "failures": failures}, status)

    @app.get("/health")
    async def health() -> JSONResponse:
        workers = front.health()
        return JSONResponse({"workers": workers}, 200 if all(w["state"] == "up" for w in workers) else 503)

    @app.post("/generate")
    async def generate(body: Generate) -> dict[str, Any]:
        sampling = body.model_dump(exclude={"prompts"})
        return {"results": await front.spread("generate", body.prompts, sampling)}

    @app.post("/chat")
    async def chat(body: Chat) -> dict[str, Any]:
        sampling = body.model_dump(exclude={"messages"})
        return {"results": await front.spread("chat", body.messages, sampling)}

    @app.post("/prompt_logprobs")
    async def prompt_logprobs(body: Score) -> dict[str, Any]:
        return {"results": await front.spread("prompt_logprobs", body.prompts)}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, Any]:
        return {"results": await front.everywhere("reset_prefix_cache")}

    return app


async def _look(front: Front, seconds: float) -> None:
    while True:
        front.replace_dead()
        await asyncio.sleep(seconds)


def _is_users(error: WorkerFailed) -> bool:
    """Whether vLLM refused what was asked, as it does an over-long prompt."""
    names = {failure.type_name.rpartition(".")[2] for failure in error.failures}
    return names <= {"ValueError", "TypeError", "VLLMValidationError"}


def main() -> None:
    """Start the workers, then serve until SIGTERM or Ctrl-C; the workers end with this process however it ends."""
    import uvicorn

    parser = argparse.ArgumentParser(description="A data-parallel inference server on vLLM.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds within which a worker must answer"
    )
    given = parser.parse_args()
    options = {
        "dtype": given.dtype,
        "max_model_len": given.max_model_len,
        "enforce_eager": given.enforce_eager,
    }
    factory = partial(VllmWorker, model=given.model, options=options)
    with WorkerPool(
        factory,
        given.workers,
        name="replica",
        start_method="forkserver",
        preload=ENGINE,
        start_timeout=600,
        timeout=given.timeout,
    ) as pool:
        uvicorn.run(
            make_app(Front(pool, given.timeout)), host=given.host, port=given.port, log_level="warning"
        )


if __name__ == "__main__":
    main()
