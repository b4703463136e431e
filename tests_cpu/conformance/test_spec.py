"""The published requirements are those that are run."""

from pathlib import Path

from harness.conformance.check import load_checks
from harness.conformance.spec import markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "spec.md"


def test_the_document_is_what_the_code_declares():
    assert DOCUMENT.read_text() == markdown(), "run: harness list checks --markdown > docs/spec.md"


def test_every_check_is_in_it_with_its_sentence():
    text = markdown()
    for check in load_checks().values():
        assert f"### `{check.id}`\n\n{check.sentence}" in text
