"""Items on ranks among items that run in the session's own process: fixtures of both are taken down in time."""


def test_fixtures_of_plain_items_are_torn_down_before_another_folder_begins(pytester):
    for folder in ("first", "second"):
        pytester.mkpydir(folder)
    (pytester.path / "first" / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='package')\n"
        "def kept():\n    print('\\nUP')\n    yield\n    print('\\nDOWN')\n"
    )
    (pytester.path / "first" / "test_a.py").write_text("def test_plain(kept): pass\n")
    (pytester.path / "first" / "test_b.py").write_text(
        "import pytest\n@pytest.mark.ranks(1)\ndef test_on_a_rank(rank): pass\n"
    )
    (pytester.path / "second" / "test_c.py").write_text("def test_elsewhere(): print('\\nELSEWHERE')\n")
    result = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["UP", "*DOWN", "*ELSEWHERE"])


def test_a_teardown_that_fails_is_an_error_and_the_session_goes_on(pytester):
    for folder in ("first", "second"):
        pytester.mkpydir(folder)
    (pytester.path / "first" / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='package')\n"
        "def kept():\n    yield\n    raise RuntimeError('could not let go')\n"
    )
    (pytester.path / "first" / "test_a.py").write_text("def test_plain(kept): pass\n")
    (pytester.path / "first" / "test_b.py").write_text(
        "import pytest\n@pytest.mark.ranks(1)\ndef test_on_a_rank(rank): pass\n"
    )
    (pytester.path / "second" / "test_c.py").write_text("def test_elsewhere(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*could not let go*"])
