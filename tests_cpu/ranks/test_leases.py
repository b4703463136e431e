"""GPU leases, with stand-in devices: exclusive, without deadlock, given back when the memory is free."""

import multiprocessing
import os
import time

import pytest

from harness.ranks.leases import DeviceLeases, NoDevice, gpus

GPUS = ["GPU-b", "GPU-a", "GPU-c"]


@pytest.fixture
def leases(tmp_path):
    made = []

    def make(devices=GPUS, used=lambda device: 0, holder="this session"):
        made.append(DeviceLeases(devices, used, folder=tmp_path, holder=holder))
        return made[-1]

    yield make
    for one in made:
        one.release(0)


def hold(folder, devices, count, ready, end):
    mine = DeviceLeases(devices, lambda device: 0, folder=folder, holder=f"session of {os.getpid()}")
    mine.acquire(count, 30)
    ready.set()
    end.wait(30)


def take_and_give(folder, devices, count, rounds):
    mine = DeviceLeases(devices, lambda device: 0, folder=folder)
    for _ in range(rounds):
        mine.acquire(count, 60)
        mine.release()


@pytest.fixture
def other(tmp_path):
    """Another process that holds devices; killed at the end, if it was not before."""
    started = []
    context = multiprocessing.get_context("spawn")

    def start(devices, count):
        ready, end = context.Event(), context.Event()
        process = context.Process(target=hold, args=(tmp_path, devices, count, ready, end))
        process.start()
        started.append(process)
        assert ready.wait(60)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def test_devices_are_taken_in_the_order_of_their_identifiers(leases):
    assert leases().acquire(2, 1) == ["GPU-a", "GPU-b"]


def test_what_is_held_counts_and_is_kept(leases):
    mine = leases()
    assert mine.acquire(1, 1) == mine.acquire(1, 1)
    assert mine.acquire(3, 1) == ["GPU-a", "GPU-b", "GPU-c"]


def test_a_held_device_is_refused_with_the_name_of_its_holder(leases, other):
    process = other(GPUS[:1], 1)
    with pytest.raises(NoDevice, match=rf"GPU-b is held by session of {process.pid} \(pid {process.pid}\)"):
        leases(GPUS[:1]).acquire(1, 0.3)


def test_a_killed_holder_gives_its_devices_back(leases, other):
    process = other(GPUS, 3)
    process.kill()
    process.join()
    assert len(leases().acquire(3, 10)) == 3


def test_more_than_there_are_is_refused_at_once(leases):
    with pytest.raises(NoDevice, match="4 GPUs are wanted, and this session may use 3"):
        leases().acquire(4, 100)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {"GPU-a": 1 << 20, "GPU-b": 0}),
        ("1", {"GPU-b": 0}),
        ("GPU-b,0", {"GPU-b": 0, "GPU-a": 1 << 20}),
        ("", {}),
    ],
)
def test_only_the_callers_own_devices_are_used(tmp_path, monkeypatch, visible, expected):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho '0, GPU-a, 1'\necho '1, GPU-b, 0'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == expected


def test_a_failed_attempt_holds_nothing(leases, other):
    other(GPUS[:1], 1)
    with pytest.raises(NoDevice):
        leases().acquire(3, 0.3)
    assert len(leases(holder="another").acquire(2, 1)) == 2


def test_a_waiting_process_is_seen(leases, other, tmp_path):
    mine = leases()
    mine.acquire(3, 1)
    assert not mine.wanted_by_others()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=take_and_give, args=(tmp_path, GPUS, 1, 1))
    process.start()
    until = time.monotonic() + 60
    while not mine.wanted_by_others() and time.monotonic() < until:
        continue
    assert mine.wanted_by_others()
    mine.release()
    process.join(60)
    assert process.exitcode == 0


def test_a_device_goes_back_when_its_memory_is_free_again(leases):
    readings = iter([0, 5 << 30, 5 << 30, 1 << 20, 1 << 20])
    mine = leases(GPUS[:1], lambda device: next(readings))
    mine.acquire(1, 1)
    assert mine.release(10) == []
    assert next(readings) == 1 << 20


def test_memory_that_stays_in_use_is_told_and_the_device_goes_back(leases):
    used = iter([0])
    mine = leases(GPUS[:1], lambda device: next(used, 5 << 30), holder="session X")
    mine.acquire(1, 1)
    assert (
        "GPU-b still has 5368709120 bytes in use that were free when session X took it"
        in mine.release(0.3)[0]
    )
    assert len(leases(GPUS[:1]).acquire(1, 1)) == 1


def test_processes_that_want_several_devices_never_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=take_and_give, args=(tmp_path, GPUS[::step], 2, 10)) for step in (1, -1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
