"""A rank is a pytest session: what pytest does in one process, it does on every rank."""

import sys
from xml.etree import ElementTree as ET

import coverage
import pytest

pytestmark = pytest.mark.timeout(300)

SUITE = """
    import logging, os, warnings
    from pathlib import Path
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks(2)
    LOG = Path(os.environ["RECORD"]).parent

    def note(rank, word):
        with open(LOG / f"rank{rank.rank}.log", "a") as file:
            print(word, file=file)

    @pytest.fixture(scope="session")
    def of_session(rank):
        note(rank, "session up")
        yield
        dist.barrier()
        note(rank, "session down")

    @pytest.fixture(scope="module")
    def of_module(rank, of_session):
        note(rank, "module up")
        yield "module"
        note(rank, "module down")

    @pytest.fixture
    def of_function(rank, of_module):
        note(rank, "function up")
        yield "function"
        note(rank, "function down")

    def test_first(rank, of_function):
        note(rank, "first")

    def test_second(rank, of_function, of_module):
        note(rank, "second")
        assert of_module == "module"

    class TestClass:
        @classmethod
        def setup_class(cls):
            cls.made = 1

        def setup_method(self):
            self.value = 2

        @pytest.mark.parametrize("factor", [2, 3])
        def test_method(self, rank, factor):
            assert self.made * self.value * factor == 2 * factor

    @pytest.mark.ranks(1, 2, 3)
    @pytest.mark.parametrize("shape", [(1,), (2, 3)], ids=str)
    def test_sizes(rank, shape, record_property):
        ones = torch.ones(shape)
        dist.all_reduce(ones)
        assert (ones == rank.world_size).all()
        record_property("size", rank.world_size)

    def test_caplog(rank, caplog):
        with caplog.at_level(logging.INFO):
            logging.getLogger("mine").info("from rank %d", rank.rank)
        assert caplog.messages == [f"from rank {rank.rank}"]

    def test_monkeypatch(rank, monkeypatch):
        monkeypatch.setenv("MINE", str(rank.rank))
        monkeypatch.chdir("/")
        assert os.environ["MINE"] == str(rank.rank)

    def test_monkeypatch_is_undone(rank):
        assert "MINE" not in os.environ
        assert Path.cwd() == LOG

    def test_tmp_path(rank, tmp_path):
        (tmp_path / "mine").write_text(str(rank.rank))
        dist.barrier()
        assert (tmp_path / "mine").read_text() == str(rank.rank)
        everybody = [None] * 2
        dist.all_gather_object(everybody, str(tmp_path))
        assert len(set(everybody)) == 2

    def test_capsys(rank, capsys):
        print(rank.rank)
        assert capsys.readouterr().out == f"{rank.rank}\\n"

    def test_environment(rank):
        assert os.environ["RANK"] == str(rank.rank)
        assert os.environ["WORLD_SIZE"] == "2"
        assert dist.get_world_size() == 2
        rank.barrier()

    @pytest.mark.asyncio
    async def test_asyncio(rank):
        import asyncio
        await asyncio.sleep(0)
        dist.barrier()

    @pytest.mark.anyio
    async def test_anyio(rank):
        import anyio
        await anyio.sleep(0)

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    def test_warns(rank):
        warnings.warn(f"careful on rank {rank.rank}", UserWarning)

    @pytest.mark.filterwarnings("error")
    def test_warning_as_error(rank):
        with pytest.raises(UserWarning):
            warnings.warn("now an error", UserWarning)

    def test_fails_with_a_log(rank):
        logging.getLogger("mine").warning("about to fail")
        assert [rank.rank] == [7]

    def test_not_selected(rank):
        raise AssertionError("deselected tests do not run")
"""
PLAIN = """
    import pytest

    def test_without_ranks():
        pass

    def test_wants_the_fixture_without_the_marker(rank):
        pass
"""


@pytest.fixture(scope="module")
def inner(run_session):
    args = ("-v", "-k", "not selected", "--junitxml=out.xml", "--durations=0", "-vv", "-rA")
    return run_session(SUITE, *args, test_plain=PLAIN)


def rank_log(inner, rank):
    return (inner.folder / f"rank{rank}.log").read_text().split("\n")[:-1]


@pytest.mark.parametrize(
    "test",
    [
        "test_first",
        "test_second",
        "test_method[2]",
        "test_method[3]",
        "test_sizes[ranks=1-(1,)]",
        "test_sizes[ranks=3-(2, 3)]",
        "test_caplog",
        "test_monkeypatch",
        "test_monkeypatch_is_undone",
        "test_tmp_path",
        "test_capsys",
        "test_environment",
        "test_asyncio",
        "test_anyio",
        "test_warning_as_error",
        "test_without_ranks",
    ],
)
def test_passes_on_every_rank(inner, test):
    assert inner.outcome(test) == "passed"


def test_fixtures_of_every_scope_live_and_end_on_every_rank_as_in_plain_pytest(inner):
    expected = ["session up", "module up", "function up", "first", "function down"]
    expected += ["function up", "second", "function down"]
    for rank in (0, 1):
        assert rank_log(inner, rank)[: len(expected)] == expected
        assert rank_log(inner, rank)[len(expected) :] == ["module down", "session down"]


def test_one_test_per_world_size_runs_on_that_many_ranks(inner):
    for size in (1, 2, 3):
        assert len(inner.of(f"test_sizes[ranks={size}-(1,)]", "call")["ranks"]) == size


def test_k_deselects(inner):
    assert "deselected" in inner.stdout
    assert not any("not_selected" in one["id"] for one in inner.reports)


def test_junit_xml_holds_one_case_per_item_with_the_ranks_properties(inner):
    cases = {case.get("name"): case for case in ET.parse(inner.folder / "out.xml").iter("testcase")}
    assert cases["test_sizes[ranks=2-(1,)]"].find("properties") is not None
    failure = cases["test_fails_with_a_log"].find("failure")
    assert "[rank " in failure.get("message")
    assert "of 2 ranks" in failure.text


def test_durations_and_warnings_reach_the_terminal(inner):
    assert "slowest durations" in inner.stdout
    assert "careful on rank 0" in inner.stdout
    assert "careful on rank 1" in inner.stdout


def test_a_failure_shows_rewritten_assertions_and_the_log_of_each_rank(inner):
    report = inner.of("test_fails_with_a_log")
    assert "At index 0 diff: 0 != 7" in report["text"]
    titles = [title for title, _ in report["sections"]]
    assert "Captured log call (rank 0)" in titles
    assert "Captured log call (rank 1)" in titles


def test_the_fixture_without_the_marker_is_one_clear_sentence(inner):
    text = inner.of("test_wants_the_fixture_without_the_marker")["text"]
    assert "mark the test with @pytest.mark.ranks(n)" in text


STEPS = """
    import os
    import pytest
    from pathlib import Path

    pytestmark = pytest.mark.ranks(2)

    @pytest.fixture(scope="module")
    def shared(rank):
        yield
        Path(os.environ["RECORD"]).parent.joinpath(f"down{rank.rank}").touch()

    def test_good(shared):
        pass

    def test_bad(rank, shared):
        assert rank.rank == 0 or Path("mended").exists()

    def test_after(shared):
        pass
"""


def test_x_stops_after_the_first_failure_and_lf_runs_what_failed(run_session):
    stopped = run_session(STEPS, "-x")
    assert stopped.outcome("test_bad") == "failed"
    assert not any("test_after" in one["id"] for one in stopped.reports)
    assert (stopped.folder / "down0").exists()
    (stopped.folder / "mended").touch()
    again = run_session(STEPS, "--lf", folder=stopped.folder)
    assert {one["id"] for one in again.reports} == {"test_it.py::test_bad"}
    assert again.outcome("test_bad") == "passed"
    assert again.status == 0


ONE_RANK_CANNOT_READ_THE_CACHE = """
    import os
    from _pytest.cacheprovider import Cache

    if os.environ.get("RANK") == "1":
        Cache.get = lambda cache, key, default: default
"""


def test_what_lf_runs_is_the_session_s_to_say_and_not_its_ranks(run_session):
    failed = run_session(STEPS, "--cache-clear")
    (failed.folder / "mended").touch()
    again = run_session(STEPS, "--lf", folder=failed.folder, conftest=ONE_RANK_CANNOT_READ_THE_CACHE)
    assert {one["id"] for one in again.reports} == {"test_it.py::test_bad"}
    assert again.outcome("test_bad") == "passed"


def test_lf_hides_no_test_that_one_rank_alone_has(run_session):
    failed = run_session(STEPS)
    more = (
        STEPS
        + """
    if os.environ.get("RANK") == "1":
        def test_more(shared):
            pass
"""
    )
    again = run_session(more, "--lf", folder=failed.folder)
    assert again.outcome("test_bad") == "error"
    text = again.of("test_bad")["text"]
    assert "rank 1 collected test_it.py::test_more" in text
    assert "test_good" not in text


BUGGY = """
    import pytest

    @pytest.mark.ranks(2)
    def test_buggy(rank):
        secret = 40 + rank.rank
        assert secret == 40
"""


def test_rank_pdb_opens_a_debugger_on_that_rank(start_session):
    started = start_session(BUGGY, "--rank-pdb", "1")
    started.process.stdin.write("p 'the secret is', secret\nq\n")
    started.process.stdin.flush()
    inner = started.finish()
    assert "(Pdb)" in inner.stdout
    assert "('the secret is', 41)" in inner.stdout
    assert inner.orphans == []


COVERED = """
    def on_rank(number):
        if number == 0:
            return "zero"
        return "another"

    def before_the_end():
        return "counted"

    def after_the_end():
        return "never"
"""
COVERING = """
    import os, signal
    import pytest
    import torch.distributed as dist
    import covered

    pytestmark = pytest.mark.ranks(2)

    def test_covers(rank):
        covered.on_rank(rank.rank)

    @pytest.mark.timeout(2)
    def test_is_ended(rank):
        if rank.rank == 0:
            covered.before_the_end()
            dist.barrier()
            covered.after_the_end()
"""


def test_coverage_of_ranks_is_measured_even_of_one_that_was_ended(run_session):
    settings = "[run]\nparallel = true\npatch = subprocess, fork, _exit\nsource = .\n"
    command = (sys.executable, "-m", "coverage", "run", "--rcfile=.coveragerc", "-m", "pytest")
    inner = run_session(COVERING, "-q", command=command, extra={".coveragerc": settings}, covered=COVERED)
    assert inner.outcome("test_covers") == "passed"
    measured = coverage.Coverage(data_file=str(inner.folder / ".coverage"), config_file=False)
    measured.combine([str(inner.folder)])
    lines = set(measured.get_data().lines(str(inner.folder / "covered.py")))
    assert {4, 5} <= lines
    assert 8 in lines
    assert 11 not in lines
