"""Backends and devices: gloo, NCCL, rank 0 of any world size in one process; else a skip with the reason."""

import pytest

from harness.errors import UsageError
from harness.ranks.marker import specs_of

SUITE = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.ranks(64, backend="fake")
    def test_rank_0_of_64(rank, record_property):
        assert (rank.rank, rank.world_size, dist.get_world_size()) == (0, 64, 64)
        shard = torch.ones(10)
        whole = torch.empty(640)
        dist.all_gather_into_tensor(whole, shard)
        record_property("bytes", whole.nbytes)

    @pytest.mark.ranks(2, backend=["gloo", "fake"])
    def test_over_two_backends(rank):
        assert rank.backend == dist.get_backend()
        assert rank.world_size == 2

    @pytest.mark.ranks(2, backend="nccl")
    def test_over_nccl(rank):
        dist.barrier()

    @pytest.mark.ranks(2, device="cuda")
    def test_on_cuda(rank):
        assert rank.device.type == "cuda"

    @pytest.mark.ranks(2, device="auto")
    def test_on_whatever_there_is(rank):
        ones = torch.ones(2, device=rank.device)
        dist.all_reduce(ones)
        assert ones.sum() == 4
"""


@pytest.fixture(scope="module")
def inner(run_session):
    return run_session(SUITE, "-q", "-rs", env={"CUDA_VISIBLE_DEVICES": ""})


def test_fake_is_rank_0_of_any_world_size_in_one_process(inner):
    assert inner.outcome("test_rank_0_of_64") == "passed"
    assert len(inner.of("test_rank_0_of_64", "call")["ranks"]) == 1
    assert inner.of("test_rank_0_of_64", "call")["properties"] == [["bytes", 2560]]


def test_one_test_runs_over_several_backends(inner):
    assert inner.outcome("test_over_two_backends[ranks=2-gloo]") == "passed"
    assert inner.outcome("test_over_two_backends[ranks=2-fake]") == "passed"
    assert len(inner.of("test_over_two_backends[ranks=2-gloo]", "call")["ranks"]) == 2


def test_a_device_that_is_not_there_is_a_skip_with_the_reason(inner):
    assert inner.outcome("test_over_nccl") == "skipped"
    assert inner.outcome("test_on_cuda") == "skipped"
    assert "this machine has no CUDA device that torch can use" in inner.stdout


def test_auto_takes_what_there_is(inner):
    assert inner.outcome("test_on_whatever_there_is") == "passed"


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        ("ranks(0)", "ranks(0): a world size is at least 1"),
        ("ranks('2')", "ranks('2'): a world size is a whole number, as in ranks(2)"),
        ("ranks(True)", "ranks(True): a world size is a whole number, as in ranks(2)"),
        ("ranks()", "ranks() needs a world size, as in ranks(2) or ranks(2, 4)"),
        ("ranks", "ranks() needs a world size, as in ranks(2) or ranks(2, 4)"),
        ("ranks(2, backend='mpi')", "unknown backend, expected one of gloo, nccl, fake"),
        ("ranks(2, device='tpu')", "unknown device, expected one of cpu, cuda, auto"),
        ("ranks(2, backend='nccl', device='cpu')", "NCCL moves tensors of CUDA devices only"),
        ("ranks(2, size=3)", "ranks() has no argument 'size'; it takes world sizes, backend and device"),
    ],
)
def test_a_bad_marker_is_one_sentence(marker, sentence):
    mark = eval(f"pytest.mark.{marker}").mark
    with pytest.raises(UsageError) as caught:
        specs_of(mark, "test_it.py::test_it")
    assert str(caught.value).startswith("test_it.py::test_it: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_markers_are_errors_of_collection_without_a_traceback(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.ranks(0)\ndef test_it(rank): pass")
    result = pytester.runpytest("-p", "no:asyncio", "-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: ranks(0): a world size is at least 1*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_bad_marker_of_a_parameter_is_a_usage_error(pytester):
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.ranks(0))])
        def test_it(rank, n): pass
        """
    )
    result = pytester.runpytest("-p", "no:asyncio", "-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*a world size is at least 1*"])
