"""Worker IPC against its peers, in the same run: only ratios are judged, because machines and neighbours differ.

Each comparison takes turns: one round of ours, one of theirs, and so on, so that whatever else the machine does falls
on both. The figure of a side is the median over its rounds.
"""

from __future__ import annotations

import os
import signal
import statistics
import time

import pytest
from ipc_peers import PEERS, Echo, Reference

from harness.faults import Victim
from harness.ipc import WorkerFailed, WorkerPool

MIB = 1024 * 1024
SMALL = 1
SMALL_TRIPS, SMALL_ROUNDS = 200, 25
LARGE_TRIPS, LARGE_ROUNDS = 2, 9
BOUNDS = {"bare multiprocess pipe": 1.5, "multiprocessing.Pool": 1.0, "ProcessPoolExecutor": 1.0}


def seconds_of(side, value, trips):
    begun = time.perf_counter()
    for _ in range(trips):
        side.round_trip(value)
    return (time.perf_counter() - begun) / trips


def compare(benchmark, peer, value, trips, rounds):
    """Median seconds of a round trip of ours, and of theirs."""
    ours, theirs = Reference(), PEERS[peer]()
    try:
        for side in (ours, theirs):
            assert side.round_trip(value) == value
            seconds_of(side, value, trips)
        mine, others = [], []

        def turn():
            others.append(seconds_of(theirs, value, trips))

        def measured():
            mine.append(seconds_of(ours, value, trips))

        benchmark.pedantic(measured, setup=turn, rounds=rounds)
    finally:
        ours.close()
        theirs.close()
    figures = statistics.median(mine), statistics.median(others)
    benchmark.extra_info.update(
        peer=peer,
        microseconds=round(figures[0] * 1e6, 1),
        peer_microseconds=round(figures[1] * 1e6, 1),
        ratio=round(figures[0] / figures[1], 3),
    )
    print(f"\n{peer}: ours {figures[0] * 1e6:.1f} µs, theirs {figures[1] * 1e6:.1f} µs")
    return figures


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.benchmark(group="small call, one worker")
def test_small_call(benchmark, peer):
    ours, theirs = compare(benchmark, peer, SMALL, SMALL_TRIPS, SMALL_ROUNDS)
    if peer in BOUNDS:
        assert ours <= BOUNDS[peer] * theirs


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.benchmark(group="16 MiB of bytes there and back, one worker")
def test_large_call(benchmark, peer):
    ours, theirs = compare(benchmark, peer, os.urandom(16 * MIB), LARGE_TRIPS, LARGE_ROUNDS)
    if peer == "bare multiprocess pipe":
        assert ours <= 1.1 * theirs


@pytest.mark.benchmark(group="broadcast to 4 workers")
def test_broadcast_overlaps(benchmark):
    with WorkerPool(Echo, 4, start_method="forkserver") as pool:
        benchmark.pedantic(pool.call, ("spin", 0.1), rounds=5)
    median = statistics.median(benchmark.stats.stats.data)
    benchmark.extra_info["ratio_to_one"] = round(median / 0.1, 3)
    assert median < 2 * 0.1


@pytest.mark.benchmark(group="from a fault to its report")
def test_a_failure_is_raised_soon_after_the_last_healthy_reply(benchmark):
    delays = []

    def fail():
        call = pool.begin("suffer", "raise", (0,))
        while len(call.replies) < 4:
            call.wait(30)
        last = time.monotonic()
        with pytest.raises(WorkerFailed):
            call.results(30)
        delays.append(time.monotonic() - last)

    with WorkerPool(Victim, 4, start_method="forkserver") as pool:
        benchmark.pedantic(fail, rounds=20)
    benchmark.extra_info["milliseconds"] = round(max(delays) * 1e3, 3)
    assert max(delays) < 0.1


@pytest.mark.benchmark(group="from a fault to its report")
def test_a_killed_worker_is_reported_soon(benchmark):
    delays = []

    def kill():
        call = pool.begin("wait", 0)
        call.results(30)
        call = pool.begin("suffer", "hang", (0,))
        killed = time.monotonic()
        os.kill(pool.pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            call.results(30)
        delays.append(time.monotonic() - killed)

    with WorkerPool(Victim, 4, start_method="forkserver") as pool:
        benchmark.pedantic(kill, setup=lambda: delays and pool.restart(0), rounds=10)
    benchmark.extra_info["milliseconds"] = round(max(delays) * 1e3, 3)
    assert max(delays) < 0.2
