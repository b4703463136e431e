"""Waits that end in the moment at which they are looked at; a failure that is told when the next trainer is there."""

import pytest
import torch

from harness.transfer.channel import Channel, host_store
from harness.transfer.errors import TransferFailed
from harness.transfer.orders import Update
from harness.transfer.receiver import Receiver


class CompletesAsWaitingGivesUp:
    """An operation whose first wait times out, and which has completed by the time that anybody asks."""

    def __init__(self, work, then=None):
        self._work, self._then, self._waits = work, then, 0

    def wait(self, timeout):
        self._work.wait(timeout)
        self._waits += 1
        if self._waits == 1:
            raise RuntimeError("Operation timed out!")
        if self._then is not None:
            raise self._then

    def is_completed(self):
        return True


class Group:
    def __init__(self, group, then=None):
        self._group, self._then = group, then

    def broadcast(self, *args):
        return CompletesAsWaitingGivesUp(self._group.broadcast(*args), self._then)


def channel(then=None):
    made = Channel(host_store("127.0.0.1", 5.0), "late", 0, 1, address="127.0.0.1", seconds=5.0)
    made._group = Group(made._group, then)
    return made


def test_an_operation_that_completes_as_a_look_at_it_times_out_has_not_failed():
    with channel() as late:
        late.broadcast(torch.ones(3))


def test_one_that_fails_in_that_moment_has_and_says_how():
    with (
        channel(RuntimeError("Connection closed by peer")) as late,
        pytest.raises(TransferFailed, match="Connection closed by peer"),
    ):
        late.broadcast(torch.ones(3))


class Closable:
    reason = "open"

    def close(self, reason=None):
        self.reason = reason


def test_a_failure_of_an_old_transfer_leaves_the_channel_of_the_next_one_open(monkeypatch):
    receiver, old, new = Receiver(None, 1), Closable(), Closable()
    receiver._channel = old

    def fails(channel, order):
        receiver._channel = new  # the next trainer connects before this failure has been told
        raise TransferFailed("no room")

    monkeypatch.setattr(receiver, "_receive", fails)
    assert receiver.receive(Update("", "1")) == "no room"
    assert (old.reason, new.reason) == ("no room", "open")
