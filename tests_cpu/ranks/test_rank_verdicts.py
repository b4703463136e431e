"""A test passes when every rank says so; anything else fails it, and the report says which rank and why."""

import pytest

pytestmark = pytest.mark.timeout(300)

TELLS_OF_RANK_1 = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        here = getattr(item, "funcargs", None) or {}
        if call.when == "call" and item.name == "test_raises_on_both" and here["rank"].rank == 1:
            here["rank"].store.set("rank 1 has failed", "1")
        return (yield)
"""
SUITE = """
    import os, signal
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks(2)

    def test_passes(rank, record_property):
        record_property("rank", rank.rank)
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2, 2, 2]

    def test_killed(rank):
        print("last words of", rank.rank)
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def test_exits_with_zero(rank):
        if rank.rank == 1:
            os._exit(0)

    def test_exits_with_three(rank):
        if rank.rank == 0:
            os._exit(3)

    def test_segfaults(rank):
        if rank.rank == 1:
            import ctypes
            ctypes.string_at(0)

    def test_skips_on_one_rank(rank):
        if rank.rank == 1:
            pytest.skip("no such luck")

    def test_skips_on_all(rank):
        pytest.skip("nothing to do")

    @pytest.mark.skipif("int(__import__('os').environ.get('RANK', 7)) == 1", reason="by the environment")
    def test_skipif_true_on_one_rank(rank):
        pass

    @pytest.mark.xfail(reason="known")
    def test_xfails_on_all(rank):
        assert rank.rank == 5

    @pytest.mark.xfail(reason="known")
    def test_xfails_on_one_rank(rank):
        assert rank.rank == 0

    @pytest.mark.xfail(reason="known", strict=True)
    def test_xpasses_strictly(rank):
        pass

    @pytest.mark.xfail(reason="known", strict=False)
    def test_xpasses_loosely(rank):
        pass

    def test_raises_on_one_rank_while_the_other_waits(rank):
        mine = {"layers": [1, 2, rank.rank]}
        print("rank", rank.rank, "was here")
        if rank.rank == 1:
            assert mine == {"layers": [1, 2, 3]}
        dist.all_reduce(torch.ones(3, 4))

    def test_raises_on_both(rank):
        if rank.rank == 0:
            rank.store.wait(["rank 1 has failed"])  # set by conftest.py, when that is over
            raise KeyError("second")
        raise ValueError("first")

    @pytest.fixture
    def broken_on_one_rank(rank):
        if rank.rank == 1:
            raise ConnectionError("cannot set up")

    def test_fixture_fails_on_one_rank(rank, broken_on_one_rank):
        dist.barrier()

    def test_reports_two_megabytes(rank):
        text = "x" * 2_000_000
        if rank.rank == 1:
            raise AssertionError(text)

    def test_reads_what_cannot_be_sent(rank, record_property):
        if rank.rank == 1:
            record_property("endless", (n for n in range(3)))

    def test_exits_by_sys_exit(rank):
        if rank.rank == 1:
            raise SystemExit(0)

    def test_the_session_goes_on(rank):
        dist.barrier()
"""
ONLY_ON_SOME = """
    import os
    import pytest

    if os.environ.get("RANK") == "1":
        raise ImportError("this module imports on rank 0 only")

    @pytest.mark.ranks(2)
    def test_of_a_module_that_rank_1_cannot_import(rank):
        pass
"""
DIFFERING = """
    import os
    import pytest

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("n", range(2 if os.environ.get("RANK") == "1" else 1))
    def test_parametrized_by_rank(rank, n):
        pass
"""


@pytest.fixture(scope="module")
def inner(run_session):
    files = {"test_some": ONLY_ON_SOME, "test_zdiffering": DIFFERING}
    return run_session(SUITE, "-q", "--showlocals", conftest=TELLS_OF_RANK_1, **files)


def test_passes_when_every_rank_says_so(inner):
    assert inner.outcome("test_passes") == "passed"
    assert inner.statuses("test_passes") == ["passed", "passed"]
    assert inner.of("test_passes", "call")["properties"] == [["rank", 0], ["rank", 1]]


def test_a_killed_rank_fails_the_test_with_its_signal_and_its_output(inner):
    report = inner.of("test_killed")
    assert report["outcome"] == "failed"
    assert inner.statuses("test_killed") == ["collateral", "died"]
    assert report["ranks"][1]["exit_status"] == -9
    assert report["text"].startswith("rank 1 of 2 was killed by SIGKILL (signal 9) during call")
    assert "last words of 1" in report["text"]
    assert "rank 0  collateral" in report["text"]


@pytest.mark.parametrize(
    ("test", "rank", "status"), [("test_exits_with_zero", 1, 0), ("test_exits_with_three", 0, 3)]
)
def test_an_exit_without_a_report_is_a_failure_whatever_its_status(inner, test, rank, status):
    report = inner.of(test)
    assert report["outcome"] == "failed"
    assert report["ranks"][rank]["status"] == "died"
    assert report["ranks"][rank]["exit_status"] == status
    assert f"rank {rank} of 2 exited with status {status} during call" in report["text"]


def test_a_crash_in_native_code_shows_the_stack_that_faulthandler_wrote(inner):
    report = inner.of("test_segfaults")
    assert report["ranks"][1]["exit_status"] == -11
    assert "Fatal Python error: Segmentation fault" in report["text"]
    assert "in test_segfaults" in report["text"]


def test_a_partial_skip_is_a_failure_that_names_both_sides(inner):
    report = inner.of("test_skips_on_one_rank")
    assert report["outcome"] == "failed"
    assert "rank 0 passed, rank 1 skipped (no such luck)" in report["text"]


def test_a_skip_on_all_ranks_is_a_skip_with_its_reason(inner):
    assert inner.outcome("test_skips_on_all") == "skipped"
    assert "nothing to do" in inner.of("test_skips_on_all")["text"]


def test_a_condition_that_holds_on_one_rank_only_is_not_decided_by_the_parent(inner):
    assert inner.outcome("test_skipif_true_on_one_rank") == "error"
    assert "rank 1 skipped (by the environment)" in inner.of("test_skipif_true_on_one_rank")["text"]


def test_expected_failures_are_expected_on_all_ranks_or_fail(inner):
    assert inner.outcome("test_xfails_on_all") == "xfailed"
    assert inner.outcome("test_xfails_on_one_rank") == "failed"
    assert "rank 0 xpassed (known), rank 1 xfailed (known)" in inner.of("test_xfails_on_one_rank")["text"]
    assert inner.outcome("test_xpasses_strictly") == "failed"
    assert "[XPASS(strict)] known" in inner.of("test_xpasses_strictly")["text"]
    assert inner.outcome("test_xpasses_loosely") == "xpassed"


def test_the_body_is_the_failing_ranks_own_report_and_the_waiting_rank_is_a_section(inner):
    report = inner.of("test_raises_on_one_rank_while_the_other_waits")
    text = report["text"]
    assert [one["status"] for one in report["ranks"]] == ["stuck", "raised"]
    body, _, rest = text.partition("rank 1 failed first, of 2 ranks")
    assert "At index 2 diff: 1 != 3" in body or "{'layers': [1, 2, 1]} != {'layers': [1, 2, 3]}" in body
    assert "mine       = {'layers': [1, 2, 1]}" in body
    assert "rank 0  stuck       at " in rest
    assert "in all_reduce" in rest
    assert "collective #1 all_reduce(float[3, 4]) on default_pg, not finished" in rest
    assert "Missing from collective #1 all_reduce on default_pg: rank 1 (which began none)." in rest
    assert ["Captured stdout call (rank 1)", "rank 1 was here\n"] in report["sections"]
    assert "rank 0 was here" in rest
    assert report["duration"] < 3


def test_the_first_rank_to_fail_is_the_root_cause(inner):
    text = inner.of("test_raises_on_both")["text"]
    assert (
        text.index("ValueError: first")
        < text.index("rank 1 failed first, of 2 ranks")
        < text.rindex("KeyError")
    )


def test_a_fixture_that_fails_on_one_rank_is_an_error_not_a_hang(inner):
    report = inner.of("test_fixture_fails_on_one_rank")
    assert inner.outcome("test_fixture_fails_on_one_rank") == "error"
    assert "ConnectionError: cannot set up" in report["text"]
    assert [one["status"] for one in report["ranks"]] == ["passed", "raised"]


def test_a_report_of_two_megabytes_arrives_whole(inner):
    assert "x" * 2_000_000 in inner.of("test_reports_two_megabytes")["text"]


def test_a_reply_that_cannot_be_sent_names_its_rank_and_why(inner):
    report = inner.of("test_reads_what_cannot_be_sent")
    assert report["outcome"] == "failed"
    assert "rank 1" in report["text"]
    assert "cannot pickle 'generator' object" in report["text"]


def test_sys_exit_in_a_test_is_a_failure(inner):
    assert inner.outcome("test_exits_by_sys_exit") == "failed"
    assert "SystemExit" in inner.of("test_exits_by_sys_exit")["text"]


def test_a_module_that_one_rank_cannot_import_is_a_sentence(inner):
    text = inner.of("test_of_a_module_that_rank_1_cannot_import")["text"]
    assert "rank 1 cannot run test_some.py::test_of_a_module_that_rank_1_cannot_import" in text
    assert "this module imports on rank 0 only" in text


def test_a_collection_that_differs_says_which_rank_collected_what(inner):
    text = inner.of("test_parametrized_by_rank[0]")["text"]
    assert "the ranks' collections differ" in text
    assert "rank 1 collected test_zdiffering.py::test_parametrized_by_rank[1]" in text


def test_the_session_goes_on_after_every_one_of_them(inner):
    assert inner.outcome("test_the_session_goes_on") == "passed"
    assert inner.status == 1
    assert inner.orphans == []
