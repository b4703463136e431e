"""Event loops: a server's health route answers while its workers are busy."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.ipc import WorkerFailed


def test_the_loop_stays_free_while_a_worker_is_busy(pool):
    async def serve():
        busy = asyncio.create_task(pool.acall("wait", 0.5, "token"))
        await asyncio.sleep(0)
        begun = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0.01)
        health = time.monotonic() - begun
        return health, await busy

    health, results = asyncio.run(serve())
    assert health < 0.4
    assert results == [(0, "token"), (1, "token"), (2, "token")]


def test_many_calls_at_once_each_get_their_own_answer(pool):
    async def ask():
        return await asyncio.gather(*(pool.acall("answer", number) for number in range(200)))

    assert asyncio.run(ask()) == [[(index, number) for index in range(3)] for number in range(200)]


def test_failures_and_deadlines_are_those_of_call(pool):
    async def fail():
        with pytest.raises(WorkerFailed, match="raised ValueError"):
            await pool.acall("suffer", "raise", (1,))
        with pytest.raises(WorkerFailed, match=r"no reply within 0\.1 s"):
            await pool.acall("wait", 0.4, timeout=0.1)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            await pool.acall("suffer", "kill", (1,))

    asyncio.run(fail())


def test_a_cancelled_call_drops_its_replies(pool):
    late = pool.late_replies

    async def cancel():
        task = asyncio.create_task(pool.acall("wait", 0.2, "cancelled"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await pool.acall("answer", "next")

    assert asyncio.run(cancel()) == [(0, "next"), (1, "next"), (2, "next")]
    assert pool.late_replies == late + 3


def test_threads_and_an_event_loop_share_a_pool(pool):
    async def both():
        threads = [asyncio.to_thread(pool.call, "answer", number) for number in range(20)]
        tasks = [pool.acall("answer", number) for number in range(20, 40)]
        return await asyncio.gather(*threads, *tasks)

    assert asyncio.run(both()) == [[(index, number) for index in range(3)] for number in range(40)]
