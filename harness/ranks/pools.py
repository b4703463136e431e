"""The pools of one session: one per kind of ranks, reused after a pass, replaced after anything else."""

import os
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.ranks import causes, preload
from harness.ranks.marker import RankSpec
from harness.ranks.pool import RankPool, Round
from harness.ranks.settings import RankSettings
from harness.ranks.starting import starting_conditions

_ATTEMPTS = 2
"""A pool that could not start twice in a row, with no success between, is not tried again."""


class PoolNotStarted(HarnessError):
    """The ranks could not be started; the message says which rank, and what it said."""


class RankPools:
    """Owns every pool of a session, and the folder of their files."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pools: dict[RankSpec, RankPool] = {}
        self._refusals: dict[RankSpec, tuple[int, str]] = {}
        self._started = 0
        self._folder: Path | None = None
        self.start_timeout = float(config.getini("ranks_start_timeout"))

    def warm_up(self) -> None:
        """Start the fork server, so that its heavy imports run while the parent still has other things to do."""
        from multiprocess import forkserver, get_context

        with self._conditions():
            get_context("forkserver").set_forkserver_preload([preload.__name__])
            forkserver.ensure_running()

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

    def retire(self, spec: RankSpec) -> None:
        """Close the pool of a specification at once; the next test on it gets a new one."""
        pool = self._pools.pop(spec, None)
        if pool is not None:
            pool.close(orderly=False, grace=0.2)

    def close(self, *, orderly: bool) -> None:
        """End every pool and remove the folder. Bounded by about ten seconds a pool, one when not orderly."""
        while self._pools:
            _, pool = self._pools.popitem()
            pool.close(orderly=orderly, grace=1.0 if orderly else 0.2)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, spec: RankSpec) -> RankPool:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="harness-ranks-"))
        self._started += 1
        self.warm_up()
        store = _new_store()
        settings = self._settings(spec, store, self._folder / str(self._started))
        settings.folder.mkdir()
        settings.basetemp.mkdir(parents=True, exist_ok=True)
        with self._conditions():
            pool = RankPool(settings, store, start_timeout=self.start_timeout)
        try:
            deadline = time.monotonic() + self.start_timeout
            self._expect(pool, "prepare", pool.ask("prepare", deadline=deadline, grace=1.0))
            collected = pool.ask("collect", deadline=deadline, grace=5.0, failing=lambda _: False)
            self._expect(pool, "collect", collected)
        except BaseException:
            pool.close(orderly=False, grace=0.2)
            raise
        pool.collected = collected.values
        pool.remember_capture()
        return pool

    def _settings(self, spec: RankSpec, store: Any, folder: Path) -> RankSettings:
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
            environ=dict(os.environ),
            store_host="127.0.0.1",
            store_port=store.port,
            prefix=f"pool{self._started}",
            live=config.getoption("capture") == "no",
            workerinput=dict(getattr(config, "workerinput", {})),
        )

    def _expect(self, pool: RankPool, step: str, answers: Round) -> None:
        world_size = pool.spec.world_size
        if answers.failures:
            rank, failure = min(answers.failures.items(), key=lambda found: found[1].order)
            if failure.kind == "died":
                raise PoolNotStarted(
                    causes.death(rank, world_size, failure, step) + f"\n{pool.output_of(rank)}"
                )
            raise PoolNotStarted(
                f"rank {rank} of {world_size} could not {step}: {causes.unreachable(rank, failure)}"
            )
        for rank, evidence in answers.ended.items():
            why = f"It had {self.start_timeout:g} s (ini ranks_start_timeout).\n{evidence.stack}\n{evidence.output}"
            raise PoolNotStarted(
                causes.stuck(rank, world_size, step, str(evidence.place), evidence.collective, why)
            )

    def _conditions(self) -> AbstractContextManager[None]:
        modules = ",".join(self._config.getini("ranks_preload"))
        return starting_conditions(
            {
                preload.VARIABLE: modules,
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                "DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR", "cpu"),
            }
        )


def _new_store() -> Any:
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
