"""The meter for fake tensors counts what would be allocated, at any size, and allocates nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.memory.fake import FakeMeter

TIB = 1 << 40
measure = FakeMeter()


@pytest.fixture(autouse=True)
def _fake():
    with FakeTensorMode():
        yield


def block(tib):
    return torch.empty(tib * TIB, dtype=torch.uint8)


def test_the_peak_is_the_highest_point_and_not_the_sum():
    with measure() as m:
        for _ in range(3):
            held = block(8)
            del held
        kept = block(2)
    assert m.peak_bytes == 8 * TIB
    assert m.retained_bytes == 2 * TIB
    assert kept.nbytes == 2 * TIB


def test_what_was_live_before_is_not_counted():
    before = block(16)
    with measure() as m:
        doubled = before + before
        del doubled
    assert m.peak_bytes == 16 * TIB
    assert m.retained_bytes == 0


def test_what_was_live_before_and_is_dropped_makes_no_room():
    before = [block(16)]
    with measure() as m:
        before[0].add_(1)
        before.clear()
        block(4)
    assert m.peak_bytes == 4 * TIB


def test_views_and_operators_in_place_hold_nothing_of_their_own():
    with measure() as m:
        held = block(1)
        held.view(2, -1)[0].add_(1)
        torch.add(held, held, out=held)
    assert m.peak_bytes == TIB


def test_the_top_site_is_the_line_that_asked():
    with measure() as m:
        held = block(3)
        small = torch.empty(5, dtype=torch.uint8)
    assert [(site.function, site.bytes) for site in m.top(2)] == [
        ("block", 3 * TIB),
        ("test_the_top_site_is_the_line_that_asked", 5),
    ]
    assert held.nbytes + small.nbytes == 3 * TIB + 5
