"""Envelopes: whatever the pipe does to the bytes, messages come out as they went in, or not at all."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.ipc.envelope import GarbledPipe, Incoming, Kind, Outgoing
from harness.ipc.pickling import OUT_OF_BAND_BYTES, encode


@pytest.fixture
def pipe():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def wire(*values):
    """The bytes of messages with ids 1, 2, …"""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        sent = b""
        for number, value in enumerate(values, 1):
            outgoing = Outgoing(Kind.CALL, number, encode(value))
            while not outgoing.send(near):
                sent += far.recv(1 << 20)
        while True:
            try:
                sent += far.recv(1 << 20)
            except BlockingIOError:
                return sent


values = st.lists(
    st.one_of(
        st.integers(),
        st.text(max_size=20),
        st.integers(0, 150_000).map(bytes),
        st.integers(0, 100_000).map(bytearray),
    ),
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(values, min_size=1, max_size=4), st.lists(st.integers(1, 100_000), min_size=1, max_size=8))
def test_messages_survive_any_cutting_of_the_stream(sent, cuts):
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        incoming = Incoming()
        data, at, turn, got = wire(*sent), 0, 0, []
        while at < len(data):
            step = min(cuts[turn % len(cuts)], 60_000)
            near.sendall(data[at : at + step])
            at, turn = at + step, turn + 1
            while (message := incoming.receive(far)) is not None:
                got.append((message.call_id, message.decode()))
    assert got == list(enumerate(sent, 1))
    assert incoming.progress is None


def test_progress_counts_the_bytes_of_a_message_that_is_not_whole(pipe):
    data = wire(bytes(10_000))
    incoming = Incoming()
    pipe[0].send(data[:5000])
    assert incoming.receive(pipe[1]) is None
    here, announced = incoming.progress
    assert (len(data) - announced, announced - here) == (24, len(data) - 5000)


def test_a_closed_end_is_end_of_file(pipe):
    pipe[0].close()
    with pytest.raises(EOFError):
        Incoming().receive(pipe[1])


@pytest.mark.parametrize(
    "noise", [b"hello, this is not an envelope", b"hI" + bytes(40), b"hI\x02" + b"\xff" * 40]
)
def test_noise_is_recognised(pipe, noise):
    pipe[0].send(noise)
    with pytest.raises(GarbledPipe):
        Incoming().receive(pipe[1])


def test_more_buffers_than_one_system_call_takes(pipe):
    near, far = pipe
    blocks = [bytearray(OUT_OF_BAND_BYTES)] * 20
    views = [memoryview(bytes([number % 256]) * 1000) for number in range(1500)]
    parcel = encode(blocks)
    outgoing = Outgoing(Kind.RESULT, 7, parcel._replace(chunks=[*map(bytes, views), *parcel.chunks]))
    received = 0
    while not outgoing.send(near):
        received += len(far.recv(1 << 20))
    while True:
        try:
            received += len(far.recv(1 << 20))
        except BlockingIOError:
            break
    assert received == 24 + 1500 * 1000 + sum(map(len, parcel.chunks))


def test_what_is_owned_no_longer_depends_on_the_callers_memory(pipe):
    numpy = pytest.importorskip("numpy")
    near, far = pipe
    block = numpy.ones(1 << 20, dtype=numpy.uint8)
    outgoing = Outgoing(Kind.CALL, 1, encode(block))
    assert not outgoing.send(near)
    outgoing.own()
    block[:] = 0
    incoming = Incoming()
    while not outgoing.send(near):
        incoming.receive(far)
    message = incoming.receive(far)
    assert message.decode().min() == 1
