"""One suite over the three start methods: every test that asks for ``pool`` runs under each of them."""

from __future__ import annotations

import pytest

from harness.faults import Victim
from harness.ipc import START_METHODS, WorkerPool

SIZE = 3


@pytest.fixture(scope="session")
def shared_pools():
    """One pool for each start method, made when first asked for: starting one costs more than most tests."""
    pools = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture(params=START_METHODS)
def start_method(request):
    return request.param


@pytest.fixture
def pool(shared_pools, start_method):
    """A pool of three victims, whole, whatever the test before did to it."""
    if start_method not in shared_pools:
        shared_pools[start_method] = WorkerPool(Victim, SIZE, start_method=start_method, timeout=30)
    shared = shared_pools[start_method]
    yield shared
    for index, worker in enumerate(shared.workers):
        if not worker.alive:
            shared.restart(index)
    assert shared.call("answer", "whole") == [(index, "whole") for index in range(SIZE)]
