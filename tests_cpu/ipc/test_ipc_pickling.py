"""Pickling: large data is not copied, and what C pickle cannot carry dill does."""

from __future__ import annotations

import pickle

import pytest

from harness.ipc.pickling import OUT_OF_BAND_BYTES, decode, encode


def rebuilt(value):
    parcel = encode(value)
    return decode(b"".join(parcel.chunks), parcel.buffers, by_dill=parcel.by_dill)


def test_plain_data_goes_by_c_pickle_and_closures_by_dill():
    offset = 2
    assert not encode({"a": [1, 2.5, None]}).by_dill
    assert encode(lambda number: number + offset).by_dill
    assert rebuilt(lambda number: number + offset)(40) == 42


def test_large_bytes_are_sent_as_they_are():
    block = bytes(1 << 20)
    assert any(chunk is block for chunk in encode(("method", (block,), {})).chunks)


def test_large_text_is_not_a_view_of_freed_memory():
    text = "é" * (1 << 20)
    parcel = encode(text)
    other = [bytes(1 << 20) for _ in range(8)]
    assert decode(b"".join(parcel.chunks)) == text
    assert len(other) == 8


def test_large_arrays_travel_beside_the_pickle_and_small_ones_within():
    numpy = pytest.importorskip("numpy")
    large, small = numpy.zeros(OUT_OF_BAND_BYTES, dtype=numpy.uint8), numpy.zeros(8)
    assert [buffer.nbytes for buffer in encode([large, small]).buffers] == [OUT_OF_BAND_BYTES]


def test_what_nobody_can_pickle_raises():
    with pytest.raises((TypeError, pickle.PicklingError)):
        encode(number for number in range(3))
