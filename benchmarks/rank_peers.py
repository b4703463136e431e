"""The usual harnesses for tests on ranks, each running the same test: an all_reduce on gloo.

torch's classes run under unittest, as torch's own documentation has it; the one that keeps its processes also under
pytest, as ours does, where pytest's own work for a test is part of the figure on both sides. A script:
``rank_peers.py NAME`` prints the seconds of every test as a line of JSON. ``PEER_TESTS`` and ``PEER_RANKS`` in the
environment say how many tests on how many ranks; the processes that a peer spawns read them too.
"""

import contextlib
import io
import itertools
import json
import os
import socket
import sys
import time
import unittest

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TESTS = int(os.environ["PEER_TESTS"])
RANKS = int(os.environ["PEER_RANKS"])


def body() -> None:
    """What every harness runs on every rank."""
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [RANKS] * 3


def free_port() -> int:
    """How these harnesses find a port: somebody else may take it meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def whole_life(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    body()
    dist.destroy_process_group()


def torch_spawn() -> list[float]:
    """``torch.multiprocessing.spawn`` in every test."""
    seconds = []
    for _ in range(TESTS):
        began = time.perf_counter()
        mp.spawn(whole_life, args=(free_port(),), nprocs=RANKS)
        seconds.append(time.perf_counter() - began)
    return seconds


def deepspeed_shape() -> list[float]:
    """The shape of DeepSpeed's ``DistributedTest``: for every test a pool of spawned processes with a new group."""
    seconds = []
    for _ in range(TESTS):
        began = time.perf_counter()
        port = free_port()
        with mp.get_context("spawn").Pool(RANKS) as pool:
            pool.starmap_async(whole_life, [(rank, port) for rank in range(RANKS)], chunksize=1).get(600)
        seconds.append(time.perf_counter() - began)
    return seconds


def unittest_case(case: type[unittest.TestCase]) -> list[float]:
    """Run a case's tests in order; the first carries what the class starts once."""
    ends = [time.perf_counter()]

    class Result(unittest.TextTestResult):
        def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest calls it so
            super().addSuccess(test)
            ends.append(time.perf_counter())

    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    with contextlib.redirect_stderr(io.StringIO()):
        outcome = unittest.TextTestRunner(resultclass=Result).run(tests)
    if not outcome.wasSuccessful():
        raise RuntimeError(str(outcome.errors + outcome.failures))
    return [after - before for before, after in itertools.pairwise(ends)]


class Clock:
    """Seconds of every test, from the line that announces it to the one that ends it: the clock that ours has."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._began = time.perf_counter()

    def pytest_runtest_logfinish(self) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def under_pytest(name: str) -> list[float]:
    """Run a case of this file with the plugins that ours has beside it."""
    clock = Clock()
    options = ["-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "-p", "no:harness", "-c", os.devnull]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        status = pytest.main([*options, f"{__file__}::{name}"], plugins=[clock])
    if status != pytest.ExitCode.OK or len(clock.seconds) != TESTS:
        raise RuntimeError(told.getvalue())
    return clock.seconds


if any("MultiProc" in argument for argument in sys.argv):
    from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

    class Spawning(MultiProcessTestCase):
        """torch's ``MultiProcessTestCase``."""

        world_size = RANKS

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    class Warm(MultiProcContinuousTest):
        """torch's ``MultiProcContinuousTest``: processes and group once for the class."""

        world_size = RANKS

        @classmethod
        def backend_str(cls) -> str:
            return "gloo"

    def spawning_test(self: Spawning) -> None:
        store = dist.FileStore(self.file_name, RANKS)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=RANKS)
        body()
        dist.destroy_process_group()

    def warm_test(self: Warm) -> None:
        body()

    for number in range(TESTS):
        setattr(Spawning, f"test_{number:03}", spawning_test)
        setattr(Warm, f"test_{number:03}", warm_test)


if __name__ == "__main__":
    peers = {
        "torch.multiprocessing.spawn": torch_spawn,
        "DistributedTest": deepspeed_shape,
        "MultiProcessTestCase": lambda: unittest_case(Spawning),
        "MultiProcContinuousTest": lambda: unittest_case(Warm),
        "MultiProcContinuousTest under pytest": lambda: under_pytest("Warm"),
    }
    print(json.dumps(peers[sys.argv[1]]()))
