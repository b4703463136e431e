"""Weight sync, side by side in one run: the released TRL, the reference sources, and bare gathers as the limit.

Seconds mean something only as ratios to TRL's in the same run; bytes do not depend on the machine. Each
benchmark's ``extra_info`` has both: ``peak_bytes``, ``retained_bytes`` and ``wire_bytes`` (per rank, lists), and
``of_trl`` (its best pass over TRL's best pass).
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from trainer_rank import TrainerRank

from harness.ipc import WorkerPool

RANKS, LAYERS, ROUNDS, BASE_ROUNDS = 2, 16, 5, 100
MODULE_WISE, SENDER, FULL = "module-wise", "to-the-sender", "full-gather"
SOURCES = ["trl", FULL, MODULE_WISE, SENDER, "bare-all-gather", "bare-gather"]
PEAK = 1.25  # times the largest tensor, on a rank that receives
SENDS_ONLY = 0.25  # times the largest tensor, on a rank that only sends
TIME = {MODULE_WISE: 0.5, SENDER: 0.25}  # times TRL's

pytestmark = [
    pytest.mark.skipif(
        find_spec("trl") is None, reason="trl is not installed: pip install 'lockstep-harness[trl]'"
    ),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The trainer of 16 layers on two ranks."""
    yield from _trainer(tmp_path_factory, LAYERS)


@pytest.fixture(scope="module")
def deeper(tmp_path_factory):
    """The same at twice the depth."""
    yield from _trainer(tmp_path_factory, 2 * LAYERS)


def _trainer(tmp_path_factory, layers):
    from harness.conformance.deepspeed_op import ensure_built

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    ensure_built()
    folder = str(tmp_path_factory.mktemp(f"sync-{layers}"))
    with WorkerPool(
        lambda index: TrainerRank(index, RANKS, folder, layers), RANKS, timeout=600, start_timeout=300
    ) as pool:
        yield pool


@pytest.fixture(scope="module")
def trl_seconds(ranks):
    """Best of TRL's passes, after one to warm up."""
    ranks.call("one_pass", "trl")
    return min(max(ranks.call("one_pass", "trl")) for _ in range(ROUNDS))


@pytest.mark.parametrize("source", SOURCES)
def test_one_pass(benchmark, ranks, trl_seconds, source):
    benchmark.group = "sync: one pass of 384 MiB over two ranks"
    ranks.call("one_pass", source)
    benchmark.pedantic(lambda: ranks.call("one_pass", source), rounds=ROUNDS, warmup_rounds=0)
    figures = ranks.call("measured_pass", source)
    sizes = ranks.call("sizes")[0]
    peaks = [figure["peak_bytes"] for figure in figures]
    benchmark.extra_info.update(
        sizes,
        peak_bytes=peaks,
        retained_bytes=[figure["retained_bytes"] for figure in figures],
        wire_bytes=[figure["wire_bytes"] for figure in figures],
        tensors=[figure["tensors"] for figure in figures],
        peak_of_largest=[round(peak / sizes["largest_bytes"], 3) for peak in peaks],
        of_trl=round(benchmark.stats.stats.min / trl_seconds, 3),
        of_trl_must=TIME.get(source),
    )
    if source in (MODULE_WISE, SENDER):
        bounds = [PEAK, PEAK if source == MODULE_WISE else SENDS_ONLY]
        assert all(peak <= bound * sizes["largest_bytes"] for peak, bound in zip(peaks, bounds, strict=True))


def test_the_peak_does_not_grow_with_depth(benchmark, ranks, deeper):
    benchmark.group = "sync: depth"
    for pool in (ranks, deeper):
        pool.call("measured_pass", MODULE_WISE)  # warm: lazy imports, and the meter itself
    shallow = ranks.call("measured_pass", MODULE_WISE)
    benchmark.pedantic(lambda: deeper.call("one_pass", MODULE_WISE), rounds=2)
    deep = deeper.call("measured_pass", MODULE_WISE)
    largest = ranks.call("sizes")[0]["largest_bytes"]
    grown = [after["peak_bytes"] - before["peak_bytes"] for before, after in zip(shallow, deep, strict=True)]
    benchmark.extra_info.update(grown_bytes=grown, largest_bytes=largest, layers=[LAYERS, 2 * LAYERS])
    assert max(grown) <= 0.05 * largest


def test_the_base_is_identical_after_many_rounds(benchmark, ranks):
    benchmark.group = "sync: base bytes"
    before = ranks.call("digest")
    after = benchmark.pedantic(
        lambda: ranks.call("rounds", MODULE_WISE, BASE_ROUNDS), rounds=1, warmup_rounds=0
    )
    benchmark.extra_info.update(rounds=BASE_ROUNDS, digests=after)
    assert after == before
