"""The command line: what it lists, and how it ends when it is used wrongly."""

import subprocess
import sys

import pytest

from harness import __version__
from harness.cli import main


def harness(*arguments, timeout=60):
    command = [sys.executable, "-c", "from harness.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def test_version():
    assert harness("--version").stdout == f"harness {__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom harness.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'peft', 'transformers', 'vllm', 'ray', 'pytest', 'rich.console'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "HEAVY []" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("list", "checks"), "sync/stable-bytes"),
        (("list", "subjects"), "package.module:callable"),
        (("list", "scenarios"), "llama-lora-zero3x2-bf16"),
        (("list", "scenarios", "--full"), "tiedllama-dora-zero3x2-fp32"),
        (("doctor",), "C++ compiler"),
    ],
)
def test_what_it_lists(arguments, expected):
    done = harness(*arguments)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("check", "nope"), "unknown subject 'nope'"),
        (("check", "reference", "--only", "sync/nope"), "unknown check 'sync/nope'"),
        (("check", "reference", "--scenario", "nope"), "unknown scenario 'nope'"),
        (("check", "reference", "--device", "nope"), "unknown device 'nope'"),
        (("check", "reference", "--world", "two"), "expected world sizes such as 1,2"),
        (("check", "reference", "--world", "0"), "a world size is at least 1"),
        (("check", "reference", "--deadline", "0"), "expected more than 0"),
        (("check", "reference", "--json", "/no/such/folder/x.json"), "there is no folder /no/such/folder"),
        (("check", "reference", "--expect", "/no/such/file.toml"), "cannot read the baseline"),
        (("check", "no_such_module:f"), "importing no_such_module raised ModuleNotFoundError"),
        (("law", "/no/such/config.json"), "there is no file /no/such/config.json"),
        (("law", "--world", "0"), "a world size is at least 1"),
        (("law", "--dtype", "int4"), "unknown dtype 'int4'"),
        (("zoo", "--family", "birds"), "unknown family 'birds'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(arguments, sentence, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["harness", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


def test_no_subject_at_all_is_usage():
    done = harness("check")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
