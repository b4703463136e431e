"""The CPU meter: what it counts, and what it refuses."""

import numpy as np
import pytest

from harness.errors import UsageError
from harness.memory import measure
from harness.memory.measurement import Measurement, MeasurementPending

MIB = 1 << 20
NOISE = 64 << 10  # bytes of Python objects made by the block itself


def block(mib):
    return np.ones(mib * MIB, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _warm():
    with measure():
        block(1)


def test_the_peak_is_the_highest_point_and_not_the_sum():
    with measure() as m:
        for _ in range(3):
            held = block(8)
            del held
        kept = block(2)
    assert abs(m.peak_bytes - 8 * MIB) < NOISE
    assert abs(m.retained_bytes - 2 * MIB) < NOISE
    assert kept.nbytes == 2 * MIB


def test_what_was_live_before_is_not_counted():
    before = block(16)
    with measure() as m:
        block(4)
    assert abs(m.peak_bytes - 4 * MIB) < NOISE
    del before


def test_the_top_site_is_the_line_that_allocated():
    with measure() as m:
        held = block(8)
    (site,) = m.top(1)
    assert site.file.endswith("numeric.py") or site.function == "block"
    assert abs(site.bytes - 8 * MIB) < NOISE
    assert held.nbytes


def test_garbage_in_cycles_is_not_retained():
    with measure() as m:
        cycle = [block(4)]
        cycle.append(cycle)
        del cycle
    assert m.retained_bytes < NOISE


def test_an_exception_passes_through_and_the_figures_are_there():
    def fails():
        block(4)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), measure() as m:
        fails()
    assert abs(m.peak_bytes - 4 * MIB) < NOISE


def test_the_same_block_gives_the_same_figure():
    def once():
        with measure() as m:
            block(3)
        return m.peak_bytes

    figures = {once() for _ in range(5)}
    assert max(figures) - min(figures) < 4096


def test_the_interpreter_s_own_arenas_are_not_counted():
    """They come a MiB at a time; some block of these would be the one that needs the next."""
    objects = NOISE // 4  # 16 bytes each: a quarter of an arena
    held = [object() for _ in range(1 << 20)]  # whatever arenas had free before is full now
    figures = []
    for _ in range(12):
        held += [object() for _ in range(objects // 2)]
        with measure() as m:
            small = [object() for _ in range(objects)]
            del small
        figures.append(m.peak_bytes)
    assert max(figures) < MIB // 2, figures


def test_the_fixture_is_the_meter(memory):
    with memory() as m:
        block(1)
    assert m.peak_bytes >= MIB


def test_blocks_do_not_nest():
    with measure(), pytest.raises(UsageError, match="blocks do not nest"), measure():
        pass
    with measure() as m:  # and the refusal left the meter usable
        block(1)
    assert m.peak_bytes >= MIB


def test_a_figure_of_a_running_block_is_refused():
    with measure() as m, pytest.raises(MeasurementPending, match="still running"):
        _ = m.peak_bytes
    with pytest.raises(MeasurementPending):
        _ = Measurement("memray").retained_bytes


def test_a_device_without_a_meter_is_a_sentence():
    with (
        pytest.raises(UsageError, match="no memory meter for device 'tpu': expected 'cpu' or 'cuda'"),
        measure("tpu"),
    ):
        pass


def test_cuda_without_a_device_is_a_sentence(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch sees no CUDA device"), measure("cuda"):
        pass
