"""Subjects by name."""

import sys

import pytest

from harness.errors import UsageError
from harness.subjects import builtin_names, resolve
from harness.subjects.registry import domains


def test_built_in_subjects_say_what_they_are():
    assert {"reference", "full-gather", "trl"} <= set(builtin_names())
    assert all(resolve(name).summary for name in builtin_names())


def test_naming_a_subject_imports_nothing_of_it():
    before = set(sys.modules)
    resolve("trl")
    resolve("no.such.module:thing")
    assert not {name for name in set(sys.modules) - before if name.startswith(("trl", "no."))}


def test_a_users_callable_is_a_sync_subject_and_a_class_with_start_and_call_a_worker_pool(
    tmp_path, monkeypatch
):
    (tmp_path / "theirs.py").write_text(
        "def source(model, context): ...\n"
        "class Pool:\n    def start(self, factory, size): ...\n    def call(self, method, *args, timeout): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    assert domains(resolve("theirs:source")) == {"sync"}
    assert domains(resolve("theirs:Pool")) == {"ipc"}


def test_a_subjects_own_word_on_scenarios_is_heard(tmp_path, monkeypatch):
    (tmp_path / "picky.py").write_text(
        "def source(model, context): ...\nsource.supports = lambda scenario: f'not {scenario}'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert resolve("picky:source").supports("sync", "zero3") == "not zero3"
    sys.modules.pop("picky", None)


@pytest.mark.parametrize("name", ["", "trl ", "a:b:", ":x", "x:"])
def test_what_is_no_name_is_a_sentence(name):
    if name == "a:b:":
        with pytest.raises(UsageError, match="importing a raised"):
            resolve(name).load("sync")
    else:
        with pytest.raises(UsageError, match="unknown subject"):
            resolve(name)
