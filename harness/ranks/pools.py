"""The pools of one session: one per kind of ranks, reused after a pass, replaced after anything else."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.ranks import leases, preload
from harness.ranks.audit import Audit
from harness.ranks.folder import SessionFolder
from harness.ranks.group import port_of, serve
from harness.ranks.launch import Launcher
from harness.ranks.launch.choice import launcher_for
from harness.ranks.launch.local import LocalLauncher
from harness.ranks.leases import DeviceLeases
from harness.ranks.marker import RankSpec
from harness.ranks.pool import PoolNotStarted, RankPool
from harness.ranks.settings import RankSettings, Terminal

_ATTEMPTS = 2
"""A kind of pool that could not start twice in a row, with no success between, is not tried again."""
_GRACE_S = 1.0
"""For idle processes to exit, which coverage and others use to save their data."""
_HURRIED_S = 0.2
"""For processes that were interrupted in the middle of something."""


class RankPools:
    """Owns every pool of a session, and the folder of their files."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.audit = Audit()
        self.late: list[str] = []
        """Sentences about GPUs whose memory did not become free."""
        self._pools: dict[RankSpec, RankPool] = {}
        self._refusals: dict[RankSpec, tuple[int, str]] = {}
        self._started = 0
        self._folder: SessionFolder | None = None
        self._launcher: Launcher | None = None
        self._leases: DeviceLeases | None = None
        self.start_timeout = float(config.getini("ranks_start_timeout"))
        self.files: frozenset[Path] = frozenset()
        """Files that hold tests on ranks; ranks collect no others."""
        self.known: frozenset[str] = frozenset()
        """Tests on ranks that this session collected, deselected ones included."""

    @property
    def launcher(self) -> Launcher:
        """Where the ranks live; made when first needed."""
        if self._launcher is None:
            self._launcher = launcher_for(self._config.getoption("ranks_launcher"))
        return self._launcher

    def warm_up(self) -> None:
        """There will be tests on ranks: begin what takes long."""
        self.launcher.warm_up(self._settings(RankSpec(1), 0, Path()))

    def get(self, spec: RankSpec) -> RankPool:
        """The healthy pool for a specification, started if need be.

        Raises:
            PoolNotStarted: with what the first rank to fail said.
        """
        if spec not in self._pools:
            attempts, reason = self._refusals.get(spec, (0, ""))
            if attempts >= _ATTEMPTS:
                raise PoolNotStarted(
                    f"{reason}\n(not tried again: {attempts} pools in a row could not start)"
                )
            try:
                self._pools[spec] = self._start(spec)
            except HarnessError as refused:
                self._refusals[spec] = (attempts + 1, str(refused))
                raise PoolNotStarted(str(refused)) from refused
            self._refusals.pop(spec, None)
        return self._pools[spec]

    def check(self, pool: RankPool, node_id: str) -> None:
        """See that a rank did not collect tests that this session does not know, in the module of an item.

        Raises:
            PoolNotStarted: naming them. Tests of modules that this session did not collect at all are told
                with every item.
        """
        known = self.known
        if self._config.getoption("lf", default=False):
            # It has dropped what had passed without a word, and no rank has.
            known |= frozenset.intersection(*(found.node_ids for found in pool.collected.values()))
        modules = {known.partition("::")[0] for known in self.known} - {node_id.partition("::")[0]}
        told = [
            text for found, text in pool.surplus(known).items() if found.partition("::")[0] not in modules
        ]
        if told:
            raise PoolNotStarted("the ranks' collections differ\n" + "\n".join(sorted(told)))

    def retire(self, spec: RankSpec, *, orderly: bool = False, grace: float = _GRACE_S) -> None:
        """Close the pool of a specification; the next test on it gets a new one."""
        pool = self._pools.pop(spec, None)
        if pool is not None:
            pool.close(orderly=orderly, grace=grace)

    @contextmanager
    def set_aside(self, spec: RankSpec) -> Generator[None, None, None]:
        """Work on a new pool while the block runs; the one there was continues after it."""
        kept = self._pools.pop(spec, None)
        try:
            yield
        finally:
            self.retire(spec, orderly=True)
            if kept is not None:
                self._pools[spec] = kept

    def used(self, spec: RankSpec) -> bool:
        """Whether the next item of this specification runs where another one ran before."""
        return spec in self._pools and self._pools[spec].items_run > 0

    def close(self, *, orderly: bool) -> None:
        """End every pool and remove the folder. Bounded by about ten seconds a pool, one when not orderly."""
        while self._pools:
            _, pool = self._pools.popitem()
            pool.close(orderly=orderly, grace=_GRACE_S if orderly else _HURRIED_S)
        if self._leases is not None:
            self.late += self._leases.release()
        if self._folder is not None:
            self.audit.sweep(self._folder.path)
            self._folder.close()
            self._folder = None
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    def _start(self, spec: RankSpec) -> RankPool:
        capacity = self.launcher.capacity
        if capacity is not None and spec.processes > capacity:
            raise PoolNotStarted(f"the test wants {spec.processes} ranks, and {self.launcher.name}")
        if self._folder is None:
            self._folder = SessionFolder()
        self._started += 1
        devices = self._devices_for(spec)
        store = serve(self.launcher.host)
        settings = self._settings(spec, port_of(store), self._folder.path / str(self._started), devices)
        settings.folder.mkdir()
        settings.basetemp.mkdir(parents=True, exist_ok=True)
        ranks = self.launcher.launch(settings, store, start_timeout=self.start_timeout)
        pool = RankPool(settings, ranks, store)
        try:
            pool.start(self.start_timeout)
        except BaseException:
            pool.close(orderly=False, grace=_HURRIED_S)
            raise
        return pool

    def make_room(self) -> None:
        """Between two items: give the GPUs back, with the pools on them, if another process waits for one."""
        if self._leases is None or not self._leases.held or not self._leases.wanted_by_others():
            return
        for spec in [spec for spec in self._pools if spec.device != "cpu"]:
            self.retire(spec, orderly=True)
        self.late += self._leases.release()

    def _devices_for(self, spec: RankSpec) -> list[str]:
        """Lease GPUs for a pool: one a rank, or all there are. Empty leaves the choice to the ranks."""
        if spec.device == "cpu" or not isinstance(self.launcher, LocalLauncher):
            return []
        if self._leases is None:
            self._leases = DeviceLeases(list(leases.gpus()), lambda uuid: leases.gpus().get(uuid, 0))
        if not self._leases.known:
            return []
        return self._leases.acquire(min(spec.processes, len(self._leases.known)), self.start_timeout)

    def _settings(self, spec: RankSpec, port: int, folder: Path, devices: Sequence[str] = ()) -> RankSettings:
        config = self._config
        parameters = config.invocation_params
        basetemp: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001
        return RankSettings(
            spec=spec,
            args=tuple(str(argument) for argument in parameters.args),
            plugins=tuple(plugin for plugin in parameters.plugins or () if isinstance(plugin, str)),
            invocation_dir=parameters.dir,
            basetemp=basetemp / f"ranks{self._started}",
            folder=folder,
            environ={**os.environ, **({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {})},
            store_host=self.launcher.host,
            store_port=port,
            prefix=f"pool{self._started}",
            preload=tuple(config.getini("ranks_preload")),
            plugin_modules=tuple(preload.plugin_modules(config)),
            files=self.files,
            debug=Terminal(config.option.rank_pdb, os.getpid())
            if config.option.rank_pdb is not None
            else None,
            live=config.getoption("capture") == "no",
            workerinput=dict(getattr(config, "workerinput", {})),
        )
