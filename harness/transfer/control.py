"""The engine's control plane as a trainer sees it: over HTTP, or an engine in this very process.

Every method blocks until the engine has done it, within the limit, and raises ``TransferFailed`` otherwise.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Protocol
from urllib.parse import urlsplit

from harness.errors import UsageError
from harness.transfer.errors import TransferFailed


class EngineControl(Protocol):
    """What a trainer may ask of an engine."""

    def workers(self) -> int:
        """Worker processes over all replicas."""
        ...

    def connect(self, order: dict[str, Any]) -> None:
        """Have every worker meet the trainer."""
        ...

    def start(self) -> None:
        """Open an update."""
        ...

    def update(self, order: dict[str, Any]) -> None:
        """Have every worker receive; returns when the trainer has told them its decision."""
        ...

    def finish(self) -> None:
        """Close the update; what was decided is loaded."""
        ...

    def pause(self) -> None:
        """Let what runs end, hold back what comes, forget cached attention."""
        ...

    def resume(self) -> None:
        """Serve again."""
        ...

    def name_version(self, version: str) -> None:
        """Tell the engine what its weights are called."""
        ...


class HttpEngine:
    """A vLLM server. Its routes need ``VLLM_SERVER_DEV_MODE=1``.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        seconds: limit of each request, in which a pause waits for what runs to end.

    Raises:
        UsageError: not such a URL.
    """

    def __init__(self, url: str, seconds: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"expected the address of a server such as http://127.0.0.1:8000, got {url!r}")
        self._host, self._port = parts.hostname, parts.port or 80
        self._seconds = seconds

    def workers(self) -> int:
        return int(self._ask("GET", "/get_world_size?include_dp=true")["world_size"])

    def connect(self, order: dict[str, Any]) -> None:
        self._ask("POST", "/init_weight_transfer_engine", {"init_info": order})

    def start(self) -> None:
        self._ask("POST", "/start_weight_update")

    def update(self, order: dict[str, Any]) -> None:
        self._ask("POST", "/update_weights", {"update_info": order})

    def finish(self) -> None:
        self._ask("POST", "/finish_weight_update")

    def pause(self) -> None:
        self._ask("POST", "/pause?mode=wait")

    def resume(self) -> None:
        self._ask("POST", "/resume")

    def name_version(self, version: str) -> None:
        self._ask("POST", "/update_weight_version", {"new_version": version})

    def _ask(self, verb: str, path: str, body: Any = None) -> Any:
        link = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        what = f"{verb} http://{self._host}:{self._port}{path}"
        try:
            link.request(
                verb,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
            answer = link.getresponse()
            text = answer.read().decode(errors="replace")
        except TimeoutError as error:
            raise TransferFailed(f"{what}: no answer within {self._seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransferFailed(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            link.close()
        if answer.status != http.client.OK:
            hint = (
                " (the server needs VLLM_SERVER_DEV_MODE=1)" if answer.status == http.client.NOT_FOUND else ""
            )
            raise TransferFailed(f"{what} answered {answer.status}{hint}: {text[-600:]}")
        return json.loads(text) if text.strip() else {}


class LocalEngine:
    """A ``vllm.LLM`` that this process holds, with its workers in it or below it.

    An ``LLM`` answers nobody while its owner does something else, so pausing it is nothing.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def workers(self) -> int:
        return int(self._llm.llm_engine.vllm_config.parallel_config.world_size_across_dp)

    def connect(self, order: dict[str, Any]) -> None:
        _asked(self._llm.init_weight_transfer_engine, {"init_info": order})

    def start(self) -> None:
        _asked(self._llm.start_weight_update)

    def update(self, order: dict[str, Any]) -> None:
        _asked(self._llm.update_weights, {"update_info": order})

    def finish(self) -> None:
        _asked(self._llm.finish_weight_update)

    def pause(self) -> None:
        """Nothing runs."""

    def resume(self) -> None:
        _asked(self._llm.reset_prefix_cache)

    def name_version(self, version: str) -> None:
        _asked(self._llm.update_weight_version, version)


def _asked(method: Any, *arguments: Any) -> None:
    try:
        method(*arguments)
    except Exception as error:
        raise TransferFailed(
            f"the engine's {method.__name__} raised {type(error).__name__}: {error}"
        ) from error
