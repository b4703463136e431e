"""Under xdist every worker has pools of its own: no ports, no clash, and a crash takes its ranks along."""

import pytest

pytestmark = pytest.mark.timeout(300)

SUITE = """
    import os
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("n", range(12))
    def test_many(rank, n, record_property):
        record_property("session", os.environ["PYTEST_XDIST_WORKER"])
        record_property("pid", os.getpid())
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2, 2, 2]

    @pytest.mark.ranks(2)
    def test_fails_on_one_rank(rank):
        assert rank.rank == 0

    @pytest.mark.ranks(2)
    def test_leaves_a_socket(rank):
        import socket
        global listening
        listening = socket.create_server(("127.0.0.1", 0))
"""
CRASH = """
    import os
    import pytest

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("n", range(4))
    def test_before(rank, n):
        rank.barrier()

    def test_crashes_the_worker():
        os._exit(1)

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("n", range(4))
    def test_later(rank, n):
        rank.barrier()
"""


def test_two_workers_run_ranks_side_by_side_and_reports_arrive_whole(run_session):
    inner = run_session(SUITE, "-n", "2", "-q")
    assert [inner.outcome(f"test_many[{n}]") for n in range(12)] == ["passed"] * 12
    properties = [pair for n in range(12) for pair in inner.of(f"test_many[{n}]", "call")["properties"]]
    assert {value for name, value in properties if name == "session"} == {"gw0", "gw1"}
    assert len({value for name, value in properties if name == "pid"}) >= 4
    failed = inner.of("test_fails_on_one_rank")
    assert [one["status"] for one in failed["ranks"]] == ["passed", "raised"]
    assert "rank 1 failed, of 2 ranks" in failed["text"]
    assert "test_it.py::test_leaves_a_socket: rank 0: socket left listening on 127.0.0.1:" in inner.stdout
    assert inner.orphans == []


def test_a_crashed_worker_is_replaced_and_leaves_no_ranks(start_session):
    inner = start_session(CRASH, "-n", "2", "-q", "--dist=load").finish(settle=20)
    crashed = inner.of("test_crashes_the_worker")
    assert "worker 'gw" in crashed["text"]
    assert "crashed while running" in crashed["text"]
    for n in range(4):
        assert inner.outcome(f"test_before[{n}]") == "passed"
        assert inner.outcome(f"test_later[{n}]") == "passed"
    assert inner.orphans == []


def test_three_sessions_at_once_do_not_meet(start_session):
    source = SUITE.replace('os.environ["PYTEST_XDIST_WORKER"]', '"alone"')
    started = [start_session(source, "-q", "-k", "many") for _ in range(3)]
    for inner in [one.finish() for one in started]:
        assert inner.status == 0, inner.stdout
        assert inner.orphans == []
