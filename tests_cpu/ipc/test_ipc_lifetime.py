"""Lifetimes: nothing of a pool outlives it, nor its owner, however the owner ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest
from ended import all_gone, gone

from harness.faults import Victim
from harness.ipc import PoolClosed, WorkerFailed, WorkerPool, crew, guard, process


def run(script, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


OWNER = """
    import os, signal, subprocess, sys
    from multiprocessing import shared_memory
    from harness.faults import Victim
    from harness.ipc import WorkerPool

    class Engine(Victim):
        def beget_detached(self):
            return subprocess.Popen(["sleep", "3600"], start_new_session=True).pid
        def share(self):
            self.block = shared_memory.SharedMemory(create=True, size=4096)
            return self.block.name

    if __name__ == "__main__":
        pool = WorkerPool(Engine, 2, start_method=sys.argv[1])
        pids = [pid for pair in pool.call("beget") for pid in pair] + pool.call("beget_detached")
        print(*pids, flush=True)
        print(*pool.call("share"), flush=True)
        {then}
"""
ENDS = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "killed with a stopped worker": "os.kill(pids[0], signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)",
    "killed with a worker that holds its interpreter": (
        "pool.begin('suffer', 'hold-interpreter', (1,)); os.kill(os.getpid(), signal.SIGKILL)"
    ),
    "killed in a large call": "pool.begin('wait', 60); pool.begin('size', bytes(1 << 24)); os.kill(os.getpid(), 9)",
    "os._exit": "os._exit(1)",
    "exits with the pool open": "sys.exit(0)",
    "raises": "raise RuntimeError('the owner fails')",
}


# What the guard does does not depend on how the workers came to be: all ends under one start method, the hardest under
# the others.
OWNERS = [("fork", end) for end in ENDS] + [
    (method, "killed with a stopped worker") for method in ("spawn", "forkserver")
]


@pytest.mark.parametrize(("start_method", "end"), OWNERS)
def test_no_worker_grandchild_or_shared_memory_outlives_its_owner(start_method, end):
    owner = run(OWNER.replace("{then}", ENDS[end]), start_method, stderr=subprocess.DEVNULL)
    pids = [int(word) for word in owner.stdout.readline().split()]
    blocks = owner.stdout.readline().split()
    owner.wait(60)
    owner.stdout.close()
    assert len(pids) == 6
    assert all_gone(pids, 5)
    assert all(unlinked(block, 5) for block in blocks)


def unlinked(block, seconds):
    path = Path("/dev/shm", block)
    until = time.monotonic() + seconds
    while path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return not path.exists()


def test_a_killed_owner_leaves_no_temporary_folder(start_method, tmp_path):
    owner = run(
        OWNER.replace("{then}", ENDS["killed"]), start_method, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    owner.wait(60)
    owner.stdout.close()
    until = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not list(tmp_path.iterdir())


def test_a_guard_that_was_killed_is_replaced(start_method):
    script = OWNER.replace(
        "{then}",
        "[os.kill(int(p), 9) for p in subprocess.run(['pgrep', '-f', '-P', str(os.getpid()), 'guard.py'],"
        " capture_output=True, text=True).stdout.split()];"
        " pool.restart(0); print(*pool.pids(), flush=True); os.kill(os.getpid(), 9)",
    )
    owner = run(script, start_method)
    for _ in range(2):
        owner.stdout.readline()
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.wait(60)
    owner.stdout.close()
    assert len(pids) == 2
    assert all_gone(pids, 5)


def test_close_ends_every_worker_and_grandchild_and_may_be_repeated(start_method):
    pool = WorkerPool(Victim, 2, start_method=start_method)
    pids = [pid for pair in pool.call("beget") for pid in pair]
    pool.close()
    assert all_gone(pids, 5)
    pool.close()
    with pytest.raises(PoolClosed):
        pool.call("answer", 1)


def test_close_lets_a_call_finish_within_the_grace(start_method, tmp_path):
    pool = WorkerPool(Leaver, 1, start_method=start_method)
    call = pool.begin("write_later", str(tmp_path / "written"), 0.3)
    pool.close(grace=20)
    assert (tmp_path / "written").read_text() == "done"
    with pytest.raises(WorkerFailed) as caught:
        call.results(1)
    assert caught.value.root.kind == "closed"


def test_close_does_not_wait_for_ever_for_a_stuck_or_stopped_worker(start_method):
    pool = WorkerPool(Victim, 3, start_method=start_method)
    pool.begin("suffer", "hang", (0,))
    os.kill(pool.pids()[1], signal.SIGSTOP)
    pids = pool.pids()
    begun = time.monotonic()
    pool.close(grace=0.2)
    assert time.monotonic() - begun < 10
    assert all(map(gone, pids))


def test_the_with_block_closes_when_its_body_raises(start_method):
    def body():
        with WorkerPool(Victim, 2, start_method=start_method) as pool:
            pids.extend(pool.pids())
            raise KeyError

    pids = []
    with pytest.raises(KeyError):
        body()
    assert all(map(gone, pids))


def test_a_pool_that_is_dropped_says_so_and_is_closed():
    pool = WorkerPool(Victim, 1, start_method="fork")
    pids = pool.pids()
    with pytest.warns(ResourceWarning, match="was never closed"):
        del pool
    assert all(map(gone, pids))


def test_descriptors_threads_and_children_stay_flat_over_many_pools(start_method):
    def once():
        with WorkerPool(Victim, 2, start_method=start_method) as pool:
            pool.call("answer", 1)

    once()
    me = psutil.Process()
    before = me.num_fds(), me.num_threads(), len(me.children(recursive=True))
    for _ in range(4):
        once()
    assert (me.num_fds(), me.num_threads(), len(me.children(recursive=True))) == before


def test_no_forked_child_holds_a_pipe_of_the_parents(start_method):
    with WorkerPool(Victim, 2, start_method=start_method) as pool:
        pool.call("answer", 0)
        child = os.fork()
        if child == 0:
            time.sleep(30)  # it is killed below
            os._exit(0)
        try:
            begun = time.monotonic()
            mine = {str(Path(f"/proc/self/fd/{worker.pipe.fileno()}").readlink()) for worker in pool.workers}
            for pid in (child, *pool.pids()):
                until = time.monotonic() + 5
                while mine & sockets(pid) and time.monotonic() < until:
                    time.sleep(0.01)
                assert not mine & sockets(pid)
            assert time.monotonic() - begun < 10
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def sockets(pid):
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return found


def test_each_worker_holds_one_socket_and_nobody_elses(start_method):
    with WorkerPool(Victim, 3, start_method=start_method) as pool:
        pool.call("answer", 0)
        held = [{link for link in sockets(pid) if link.startswith("socket:")} for pid in pool.pids()]
        common = set.intersection(*held)
        inherited = {link for link in sockets(os.getpid()) if link.startswith("socket:")}
        own = [links - common - inherited for links in held]
        assert [len(links) for links in own] == [1, 1, 1]
        assert len(set.union(*own)) == 3


def test_shared_memory_of_a_worker_is_unlinked_when_it_is_killed(start_method):
    pool = WorkerPool(Sharer, 1, start_method=start_method)
    (block,) = pool.call("share")
    assert Path("/dev/shm", block).exists()
    pool.workers[0].kill()
    pool.close()
    if start_method == "fork":  # the worker may have used this process' tracker, which still lives
        return
    assert unlinked(block, 5)


class Leaver(Victim):
    def write_later(self, path, seconds):
        time.sleep(seconds)
        Path(path).write_text("done")


class Sharer(Victim):
    def share(self):
        self.block = shared_memory.SharedMemory(create=True, size=4096)
        return self.block.name


PARENT_OF_A_SLEEPER = """
    import subprocess, sys
    child = subprocess.Popen(["sleep", "3600"])
    print(child.pid, flush=True)
    sys.stdin.read()
    child.kill()
"""


@pytest.fixture
def stranger():
    """A process that leads a session, and its child's number."""
    leader = run(PARENT_OF_A_SLEEPER, stdin=subprocess.PIPE, start_new_session=True)
    yield leader, int(leader.stdout.readline())
    leader.stdin.close()
    leader.wait(10)
    leader.stdout.close()


def test_a_dead_workers_number_may_be_a_strangers_by_now(start_method, stranger):
    leader, child = stranger
    pool = WorkerPool(Victim, 2, start_method=start_method)
    worker = pool.workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(10)
    worker.pid = leader.pid  # as the system may number the next process once this one has been reaped
    pool.close()
    assert not gone(child)
    assert not gone(leader.pid)


def let_a_guard_act(orders):
    """Start a guard, give it orders, and let its owner end."""
    owner = subprocess.Popen(["sleep", "3600"])
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", guard.__file__, str(reading), str(owner.pid)]
    watching = subprocess.Popen(command, pass_fds=[reading])
    os.close(reading)
    os.write(writing, orders.encode())
    owner.kill()
    owner.wait(10)
    os.close(writing)
    watching.wait(10)


@pytest.mark.parametrize(("birth", "spared"), [("{born}", False), ("1", True), ("", True)])
def test_a_guard_tells_a_worker_from_a_later_process_of_its_number(stranger, birth, spared):
    leader, child = stranger
    birth = birth.format(born=guard.born(leader.pid))
    let_a_guard_act(f"+{leader.pid} {birth}\n")
    assert [gone(leader.pid), gone(child)] == [not spared] * 2


def test_a_guard_heeds_orders_that_came_between_its_looks_at_the_pipe_and_at_the_owner(monkeypatch, tmp_path):
    reading, writing = os.pipe()

    class Poll:
        def register(self, descriptor, events):
            pass

        def poll(self):
            os.write(writing, f"-7\nd{tmp_path}\n".encode())
            os.close(writing)
            return [(-1, select.POLLIN)]

    killed = []
    monkeypatch.setattr(guard.select, "poll", Poll)
    monkeypatch.setattr(guard, "kill_families", killed.extend)
    os.write(writing, b"+7 1\n")
    guard._watch(reading, os.getpid())
    os.close(reading)
    assert killed == []
    assert not tmp_path.exists()


@pytest.mark.parametrize("error", [BlockingIOError(11, "no more processes"), EOFError()], ids=repr)
@pytest.mark.parametrize("refused", [0, 1])
def test_a_worker_that_the_system_refuses_is_a_failure_to_start(monkeypatch, error, refused):
    def launch(recipe, index):
        if index == refused:
            raise error
        return process.WorkerProcess(recipe, index)

    monkeypatch.setattr(crew, "WorkerProcess", launch)
    with pytest.raises(WorkerFailed, match=f"worker {refused}.*{type(error).__name__}"):
        WorkerPool(Victim, 2, start_method="fork")
