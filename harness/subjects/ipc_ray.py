"""Ray actors as a subject: one actor for each worker, on a cluster of one node that is this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CPUS = 4
"""Processors that the cluster claims to have: one for each actor, however many the machine has."""


class Engine:
    """The actor: holds the object, and forwards calls to it."""

    def __init__(self, factory: Callable[[int], Any], index: int) -> None:
        self.engine = factory(index)

    def use(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self.engine, method)(*args)

    def process_id(self) -> int:
        import os

        return os.getpid()


class Ray:
    """``ray.remote`` actors. The cluster is started once in a process and ends with it, as people keep it."""

    start_s = 60.0
    patience = 2.0
    alone = True
    native_transport = True

    @staticmethod
    def supports(scenario: Any) -> str | None:
        return None if scenario.id == "spawn" else "Ray starts workers by its own method only"

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        import ray

        if not ray.is_initialized():
            ray.init(
                num_cpus=CPUS,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                _node_ip_address="127.0.0.1",
            )
        remote = ray.remote(Engine)
        self._actors = [remote.remote(factory, index) for index in range(size)]
        try:
            self._pids = ray.get([actor.process_id.remote() for actor in self._actors], timeout=60)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        import ray

        results: list[Any] = ray.get(
            [actor.use.remote(method, args) for actor in self._actors], timeout=timeout
        )
        return results

    def post(self, method: str, *args: Any) -> None:
        for actor in self._actors:
            actor.use.remote(method, args)

    def pids(self) -> list[int]:
        return list(self._pids)

    def close(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
