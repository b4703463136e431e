"""What a test on ranks costs here and in the usual harnesses, side by side in one run.

Every peer runs the same test, an all_reduce over gloo. Those that spawn processes for every test get three tests,
the warm ones twenty; what is compared is the median of a test, once everything is warm. ``extra_info`` holds it in
milliseconds, with the ratio to ours, and the first test's seconds, which carry the start.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SPAWNING = ("torch.multiprocessing.spawn", "DistributedTest", "MultiProcessTestCase")
WARM = ("MultiProcContinuousTest under pytest", "MultiProcContinuousTest")
CONFTEST = """
    import json, os, time

    began, seconds = {}, []

    def pytest_runtest_logstart(nodeid):
        began[nodeid] = time.perf_counter()

    def pytest_runtest_logfinish(nodeid):
        seconds.append(time.perf_counter() - began[nodeid])

    def pytest_unconfigure(config):
        if not hasattr(config, "workerinput"):
            print("SECONDS" + json.dumps(seconds))
"""
SUITE = """
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks({ranks})

    @pytest.mark.parametrize("n", range({tests}))
    def test_one(rank, n):
        {body}
"""
ALL_REDUCE = "total = torch.ones(3); dist.all_reduce(total); assert total.tolist() == [{ranks}] * 3"


def ours(
    folder: Path, tests: int, ranks: int, body: str, preload: str = "torch torch.distributed"
) -> list[float]:
    """Seconds of every test of a session of ours, as its own process sees them."""
    (folder / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (folder / "test_it.py").write_text(textwrap.dedent(SUITE).format(ranks=ranks, tests=tests, body=body))
    (folder / "pytest.ini").write_text(f"[pytest]\nranks_preload = {preload}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    return run(command, folder, prefix="SECONDS")


def peer(name: str, tests: int, ranks: int) -> list[float]:
    """Seconds of every test of a peer."""
    script = Path(__file__).with_name("rank_peers.py")
    return run([sys.executable, str(script), name], Path.cwd(), PEER_TESTS=str(tests), PEER_RANKS=str(ranks))


def run(command: list[str], folder: Path, prefix: str = "[", **variables: str) -> list[float]:
    """Run a command to its end; the last line that begins with the prefix is its result."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    line = [line for line in done.stdout.splitlines() if line.startswith(prefix)][-1]
    seconds: list[float] = json.loads(line.removeprefix("SECONDS"))
    return seconds


def settled(seconds: list[float]) -> float:
    """The median once everything is warm."""
    return statistics.median(seconds[1:] or seconds)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The median of our own test, in seconds."""
    return settled(ours(tmp_path_factory.mktemp("reference"), 100, 2, ALL_REDUCE.format(ranks=2)))


def record(benchmark: Any, seconds: list[float], **more: Any) -> None:
    benchmark.extra_info.update(
        {
            "median_ms": round(settled(seconds) * 1000, 3),
            "first_s": round(seconds[0], 3),
            "tests": len(seconds),
            **more,
        }
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_empty_test_on_a_warm_pool(benchmark, tmp_path, ranks):
    seconds = benchmark.pedantic(ours, args=(tmp_path, 100, ranks, "pass"), rounds=1)
    record(benchmark, seconds)


def test_first_pool_with_torch_only(benchmark, tmp_path):
    seconds = benchmark.pedantic(ours, args=(tmp_path, 1, 2, "pass"), rounds=1)
    record(benchmark, seconds)


@pytest.mark.timeout(300)
def test_first_pool_with_deepspeed_peft_and_transformers(benchmark, tmp_path):
    pytest.importorskip(
        "deepspeed", reason="DeepSpeed is not installed: pip install 'lockstep-harness[zero3]'"
    )
    preload = "torch torch.distributed deepspeed peft transformers"
    seconds = benchmark.pedantic(ours, args=(tmp_path, 1, 2, "import deepspeed", preload), rounds=1)
    record(benchmark, seconds)


def test_the_same_test_here(benchmark, tmp_path):
    seconds = benchmark.pedantic(ours, args=(tmp_path, 20, 2, ALL_REDUCE.format(ranks=2)), rounds=1)
    record(benchmark, seconds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SPAWNING)
def test_the_same_test_in_a_harness_that_spawns(benchmark, name, reference):
    seconds = benchmark.pedantic(peer, args=(name, 3, 2), rounds=1)
    ratio = settled(seconds) / reference
    record(benchmark, seconds, times_ours=round(ratio, 1))
    assert ratio >= 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WARM)
def test_the_same_test_in_a_harness_that_keeps_its_processes(benchmark, name, reference):
    seconds = benchmark.pedantic(peer, args=(name, 20, 2), rounds=1)
    ratio = settled(seconds) / reference
    record(benchmark, seconds, times_ours=round(ratio, 2))
    if name.endswith("under pytest"):  # as ours runs; under unittest a test has no phases, fixtures, captures
        assert ratio >= 1


@pytest.mark.timeout(300)
def test_a_thousand_tests_on_one_pool(benchmark, tmp_path):
    state = "f'{os.getpid()} {me.memory_info().rss} {me.num_fds()}\\n'"
    body = f"import os, psutil; me = psutil.Process(); open(f'state{{rank.rank}}', 'a').write({state})"
    seconds = benchmark.pedantic(ours, args=(tmp_path, 1000, 2, body), rounds=1)
    growth = []
    for rank in (0, 1):
        states = [
            [int(word) for word in line.split()]
            for line in (tmp_path / f"state{rank}").read_text().splitlines()
        ]
        early, late = states[100], states[-1]
        assert early[0] == late[0], "the pool was replaced"
        assert late[2] <= early[2], "file descriptors grew"
        growth.append((late[1] - early[1]) / (len(states) - 100))
    record(
        benchmark,
        seconds,
        bytes_a_test=round(max(growth)),
        last_hundred_ms=round(statistics.median(seconds[-100:]) * 1000, 3),
    )
    assert max(growth) < 10_000
