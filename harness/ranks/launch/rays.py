"""``--ranks-launcher ray``: the agent of every rank is an actor, spread over a Ray cluster.

The session connects to the cluster that ``RAY_ADDRESS`` names, or starts one of its own. Every node must have
the tests at the same path, as a shared file system gives them. A rank's process is a child of its actor, so a
stuck rank can be questioned, and ends with its actor.
"""

import os
from typing import TYPE_CHECKING, Any

from harness.errors import MissingLibrary
from harness.ranks.launch import Ranks
from harness.ranks.launch.agent import Agent
from harness.ranks.launch.agents import AgentHandle, AgentRanks
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch.distributed import Store  # type: ignore[attr-defined]

_PLACE_S = 60.0
_STAY_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_AT_ONCE = 4
"""Requests that an actor serves at once: one waits for its rank, the others question and end it."""


class RayLauncher:
    """Owns the actors and the placement group of a session, and the cluster if it had to start one."""

    def __init__(self) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if address is None or address.startswith(("127.0.0.1:", "localhost:")):
            # Ray takes the loopback address for the machine's own unless it is told, before its import.
            os.environ.setdefault(_STAY_ON_LOOPBACK, "0")
        try:
            import ray
        except ImportError:
            raise MissingLibrary("ray", "ray", "--ranks-launcher ray") from None
        self._ray: Any = ray
        self._own_cluster = not ray.is_initialized()
        if self._own_cluster:
            local = {} if address else {"include_dashboard": False}
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
        self.host: str = ray.util.get_node_ip_address()
        self.capacity: int | None = int(ray.cluster_resources().get("CPU", 1))
        self.name = f"the Ray cluster has {self.capacity} CPUs"
        self._agents: dict[int, AgentHandle] = {}
        self._groups: list[Any] = []

    def warm_up(self, settings: RankSettings) -> None:
        """Nothing to do before the first pool."""

    def launch(self, settings: RankSettings, store: "Store", *, start_timeout: float) -> Ranks:  # noqa: ARG002
        """Start a pool; actors that earlier pools used are used again."""
        missing = range(len(self._agents), settings.spec.processes)
        if missing:
            self._place(list(missing))
        chosen = {rank: self._agents[rank] for rank in range(settings.spec.processes)}
        return AgentRanks(settings, chosen, start_timeout=start_timeout)

    def close(self) -> None:
        """End the actors and leave the cluster, or end it if it is ours."""
        for agent in self._agents.values():
            agent.call("close", 1.0).result(_PLACE_S)
        for group in self._groups:
            self._ray.util.remove_placement_group(group)
        self._agents.clear()
        if self._own_cluster:
            self._ray.shutdown()

    def _place(self, ranks: list[int]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = self._ray.util.placement_group([{"CPU": 1}] * len(ranks), strategy="SPREAD")
        self._ray.get(group.ready(), timeout=_PLACE_S)
        self._groups.append(group)
        remote = self._ray.remote(num_cpus=1, max_concurrency=_AT_ONCE)(Agent)
        for index, rank in enumerate(ranks):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            self._agents[rank] = _Actor(remote.options(scheduling_strategy=strategy).remote())


class _Actor:
    """An agent that is an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def call(self, method: str, *args: Any) -> "Future[Any]":
        answer: Future[Any] = getattr(self._actor, method).remote(*args).future()
        return answer
