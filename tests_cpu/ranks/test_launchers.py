"""Beyond one machine: the same verdicts and the same reports, whoever launched the ranks."""

import os
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

SUITE = """
    import os, signal
    import psutil, pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks(2)

    def test_all_reduce(rank, record_property):
        record_property("parent", os.getppid())
        record_property("pid", os.getpid())
        record_property("node", [one.pid for one in psutil.Process().parents() if one.name() == "raylet"])
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2, 2, 2]

    def test_one_raises_while_the_other_waits(rank):
        if rank.rank == 1:
            assert {"mine": rank.rank} == {"mine": 0}
        dist.all_reduce(torch.ones(3, 4))

    def test_killed(rank):
        print("last words of", rank.rank)
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def test_the_session_goes_on(rank, tmp_path):
        dist.barrier()

    @pytest.mark.ranks(1)
    def test_on_one_rank(rank):
        assert rank.world_size == 1

    @pytest.mark.ranks(64)
    def test_more_than_there_are(rank):
        pass

    @pytest.mark.ranks(1)
    def test_without_peers(rank):
        pass
"""
PLAIN = """
    def test_plain():
        pass
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2")
TORCHRUN += ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "-m", "pytest")


def agrees_with_a_local_session(inner):
    assert inner.outcome("test_all_reduce") == "passed"
    mixed = inner.of("test_one_raises_while_the_other_waits")
    assert [one["status"] for one in mixed["ranks"]] == ["stuck", "raised"]
    assert "{'mine': 1} != {'mine': 0}" in mixed["text"]
    assert (
        "Missing from collective #2 all_reduce on default_pg: rank 1 (whose last was #1 all_reduce)."
        in mixed["text"]
    )
    killed = inner.of("test_killed")
    assert [one["status"] for one in killed["ranks"]] == ["collateral", "died"]
    assert "rank 1 of 2 was killed by SIGKILL (signal 9) during call" in killed["text"]
    assert "last words of 1" in killed["text"]
    assert inner.outcome("test_the_session_goes_on") == "passed"
    assert inner.outcome("test_on_one_rank") == "passed"
    assert "the test wants 64 ranks, and " in inner.of("test_more_than_there_are")["text"]
    assert len({one["id"] for one in inner.reports}) == 8
    assert inner.orphans == []


def test_torchrun_attaches_each_process_as_a_rank_and_reports_once(start_session):
    inner = start_session(SUITE, "-q", command=TORCHRUN, test_plain=PLAIN).finish(settle=20)
    agrees_with_a_local_session(inner)
    assert inner.stdout.count("short test summary info") == 1
    parents = {value for name, value in inner.of("test_all_reduce", "call")["properties"] if name == "parent"}
    assert len(parents) == 2
    assert inner.status == 1


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # stay on the loopback interface
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'lockstep-harness[ray]'")
    from ray.cluster_utils import Cluster

    options = {"include_dashboard": False, "node_ip_address": "127.0.0.1", "num_cpus": 2}
    nodes = Cluster(initialize_head=True, head_node_args=options)
    nodes.add_node(node_ip_address="127.0.0.1", num_cpus=2)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_ray_actors_on_two_nodes_are_ranks(start_session, cluster):
    environ = {"RAY_ADDRESS": cluster.address, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    started = start_session(SUITE, "-q", "--ranks-launcher=ray", env=environ, test_plain=PLAIN)
    inner = started.finish(settle=20)
    agrees_with_a_local_session(inner)
    nodes = [value for name, value in inner.of("test_all_reduce", "call")["properties"] if name == "node"]
    assert len(nodes[0]) == len(nodes[1]) == 1
    assert nodes[0] != nodes[1]
    assert inner.status == 1
