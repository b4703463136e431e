"""A pool is reused after a pass and replaced after anything that could colour the next test."""

import pytest

pytestmark = pytest.mark.timeout(300)

SUITE = """
    import os, subprocess, sys
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks(2)

    @pytest.fixture(autouse=True)
    def pid(rank, record_property):
        record_property("pid", os.getpid())

    def test_a1(rank): pass
    def test_a2_reuses_after_a_pass(rank): pass

    def test_b_fails(rank): assert rank.rank == 0
    def test_b_then(rank): pass

    def test_c_skips(rank): pytest.skip("reuse me")
    def test_c_then(rank): pass

    def test_d_sets_the_environment(rank): os.environ["LEFT"] = "behind"
    def test_d_then(rank): assert "LEFT" not in os.environ

    def test_e_changes_directory(rank): os.chdir("/")
    def test_e_then(rank): assert os.getcwd() != "/"

    def test_f_starts_a_process(rank):
        if rank.rank == 1:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    def test_f_then(rank): pass

    def test_g_destroys_the_group(rank): dist.destroy_process_group()
    def test_g_then(rank): dist.barrier()

    def test_h_changes_the_default_dtype(rank): torch.set_default_dtype(torch.float64)
    def test_h_then(rank): assert torch.ones(1).dtype is torch.float32

    def test_i_leaves_a_socket(rank):
        import socket
        global listening
        listening = socket.create_server(("127.0.0.1", 0))
    def test_i_then(rank): pass

    def test_j_leaves_a_daemon(rank):
        if rank.rank == 0:
            code = "import os, subprocess, sys; os.setsid();" \
                   "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
            subprocess.run([sys.executable, "-c", code])
    def test_j_then(rank): pass

    def test_k_leaves_shared_memory(rank):
        if rank.rank == 0:
            import mmap
            global descriptor
            path = f"/dev/shm/left-by-{os.getpid()}"
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
            os.unlink(path)
    def test_k_then(rank): pass

    def test_k_poisons_the_device(rank):
        if rank.rank == 1:
            torch.cuda.is_initialized = lambda: True
            torch.cuda.memory_allocated = lambda: 0
            def synchronize():
                raise RuntimeError("CUDA error: device-side assert triggered")
            torch.cuda.synchronize = synchronize
    def test_k_poisons_then(rank): assert not torch.cuda.is_initialized()

    @pytest.fixture(scope="module")
    def wide(rank):
        os.environ["WIDE"] = "1"
        yield
        del os.environ["WIDE"]

    def test_l_uses_a_wide_fixture(rank, wide): pass
    def test_l_then(rank, wide): assert os.environ["WIDE"] == "1"
"""


@pytest.fixture(scope="module")
def inner(run_session):
    return run_session(SUITE, "-q")


def pids(inner, test):
    return [pid for name, pid in inner.of(test, "setup")["properties"] if name == "pid"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("test_a1", "test_a2_reuses_after_a_pass"),
        ("test_c_skips", "test_c_then"),
        ("test_l_uses_a_wide_fixture", "test_l_then"),
    ],
)
def test_a_pool_is_reused_after_a_pass_or_a_skip_or_what_a_living_fixture_changed(inner, first, then):
    assert pids(inner, first) == pids(inner, then)
    assert len(set(pids(inner, first))) == 2


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("test_b_fails", "test_b_then"),
        ("test_d_sets_the_environment", "test_d_then"),
        ("test_e_changes_directory", "test_e_then"),
        ("test_f_starts_a_process", "test_f_then"),
        ("test_g_destroys_the_group", "test_g_then"),
        ("test_h_changes_the_default_dtype", "test_h_then"),
        ("test_i_leaves_a_socket", "test_i_then"),
        ("test_k_leaves_shared_memory", "test_k_then"),
        ("test_k_poisons_the_device", "test_k_poisons_then"),
    ],
)
def test_a_pool_is_replaced_after(inner, first, then):
    assert not set(pids(inner, first)) & set(pids(inner, then))
    assert inner.outcome(then) == "passed"


def test_what_was_left_behind_is_told_with_its_test_and_gone(inner):
    audit = inner.stdout.partition("left behind by tests on ranks")[2]
    assert "test_it.py::test_f_starts_a_process: rank 1: process" in audit
    assert "test_it.py::test_i_leaves_a_socket: rank 0: socket left listening on 127.0.0.1:" in audit
    assert "test_it.py::test_k_leaves_shared_memory: rank 0: shared memory /dev/shm/left-by-" in audit
    assert "test_it.py::test_j_leaves_a_daemon: process" in audit
    assert "outlived its rank, and was killed" in audit
    assert "_then:" not in audit
    assert inner.orphans == []
    assert inner.status == 1


COLOURED = """
    import pytest

    pytestmark = pytest.mark.ranks(2)
    seen = []

    @pytest.fixture(autouse=True)
    def pid(rank, record_property):
        record_property("pid", __import__("os").getpid())

    def test_one(rank):
        seen.append(1)

    def test_passes_only_after_another(rank):
        assert seen

    def test_is_independent(rank):
        pass

    def test_leaks(rank):
        import subprocess, sys
        if rank.rank == 1:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
"""


def test_fresh_runs_every_test_on_new_processes_and_audit_fail_makes_a_leak_a_failure(run_session):
    inner = run_session(COLOURED, "-q", "--ranks-fresh", "--ranks-audit=fail")
    assert inner.outcome("test_one") == "passed"
    assert inner.outcome("test_passes_only_after_another") == "failed"
    assert not set(pids(inner, "test_one")) & set(pids(inner, "test_is_independent"))
    assert inner.outcome("test_leaks") == "error"
    assert "the test left behind\nrank 1: process" in inner.of("test_leaks", "teardown")["text"]
    assert inner.orphans == []


def test_compare_fails_a_test_whose_verdict_depends_on_reuse(run_session):
    inner = run_session(COLOURED, "-q", "--ranks-compare")
    assert inner.outcome("test_one") == "passed"
    assert inner.outcome("test_is_independent") == "passed"
    report = inner.of("test_passes_only_after_another")
    assert report["outcome"] == "failed"
    assert "on a reused pool passed, on new processes failed in call" in report["text"]
    assert "assert []" in report["text"]


MANY = """
    import gc, os
    import psutil, pytest, torch
    import torch.distributed as dist

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("n", range(400))
    def test_many(rank, n, record_property):
        dist.all_reduce(torch.ones(1000))
        if n in (100, 399):
            gc.collect()
            me = psutil.Process()
            record_property("state", [os.getpid(), me.memory_info().rss, me.num_fds(), me.num_threads()])
"""


def test_memory_descriptors_and_threads_stay_flat_over_many_tests_on_one_pool(run_session):
    inner = run_session(MANY, "-q")
    assert inner.status == 0
    early = [state for _, state in inner.of("test_many[100]", "call")["properties"]]
    late = [state for _, state in inner.of("test_many[399]", "call")["properties"]]
    for before, after in zip(early, late, strict=True):
        assert before[0] == after[0]
        assert after[1] - before[1] < 300 * 10_000, "more than 10 kB of memory for every test"
        assert after[2] <= before[2]
        assert after[3] <= before[3]


def test_a_test_that_is_marked_skip_starts_no_process(run_session):
    inner = run_session(
        """
        import pytest

        @pytest.mark.skip(reason="not today")
        @pytest.mark.ranks(2)
        def test_marked(rank):
            pass
        """,
        "-q",
        "-o",
        "ranks_preload=no_such_module_would_be_missed",
        conftest="""
    def pytest_unconfigure(config):
        import multiprocess.forkserver
        print("SERVER", multiprocess.forkserver._forkserver._forkserver_pid)
        """,
    )
    report = inner.of("test_marked")
    assert report["outcome"] == "skipped"
    assert "not today" in report["text"]
    assert "SERVER None" in inner.stdout
