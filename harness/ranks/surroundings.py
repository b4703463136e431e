"""Make a process look like the session it stands for: environment, directory, output, options."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.ranks import audit, preload
from harness.ranks.settings import RankSettings

_OF_EARLIER_SESSIONS = (
    "lf",
    "failedfirst",
    "newfirst",
    "stepwise",
    "stepwise_skip",
    "stepwise_reset",
    "cacheclear",
)
"""Options that choose or order items by what earlier sessions did, or forget that; the parent has chosen already."""


def enter(rank: int, settings: RankSettings) -> None:
    """Set environment, working directory and output of this process. Before anything else."""
    os.environ.clear()
    os.environ.update(preload.SET_BY_IMPORTS)
    os.environ.update(settings.environ)
    os.environ.update(rank_environment(rank, settings))
    os.environ.pop("TORCHELASTIC_RUN_ID", None)  # a pytest that a test starts is no agent
    os.chdir(settings.invocation_dir)
    _redirect_output(rank, settings)


def rank_environment(rank: int, settings: RankSettings) -> dict[str, str]:
    """The variables by which torch, DeepSpeed and accelerate recognise a rank."""
    loopback = [name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}]
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": str(settings.spec.world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(settings.spec.world_size),
        audit.FOLDER_VARIABLE: str(settings.folder),
        "MASTER_ADDR": settings.store_host,
        "MASTER_PORT": str(settings.store_port),
        # env:// then joins the parent's store as a client instead of binding its port a second time.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_FR_BUFFER_SIZE": settings.environ.get("TORCH_FR_BUFFER_SIZE", "64"),
        "OMP_NUM_THREADS": settings.environ.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": settings.environ.get("DS_ACCELERATOR", "cpu"),
    }
    if loopback and settings.store_host == "127.0.0.1":
        given["GLOO_SOCKET_IFNAME"] = settings.environ.get("GLOO_SOCKET_IFNAME", loopback[0])
    return given


def arguments(rank: int, settings: RankSettings) -> list[str]:
    """The parent's command line, with capture by file descriptor unless the user wants to see everything."""
    args = list(settings.args)
    end = args.index("--") if "--" in args else len(args)
    # This package is imported before the session begins, of which pytest would warn.
    args[end:end] = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    if at_terminal(rank, settings):
        args[end:end] = ["--capture=no", "--pdb"]
    elif not settings.live:
        args[end:end] = ["--capture=fd"]
    return args


def at_terminal(rank: int, settings: RankSettings) -> bool:
    """Whether this rank is the one that ``--rank-pdb`` names."""
    return settings.debug is not None and settings.debug.rank == rank


def adapt(config: pytest.Config, rank: int, settings: RankSettings) -> None:
    """Turn off in the configured options what only the parent may do."""
    options: dict[str, Any] = {
        "dist": "no",
        "distload": False,
        "numprocesses": None,
        "maxprocesses": None,
        "tx": [],
        "looponfail": False,
        "usepdb": at_terminal(rank, settings),
        "xmlpath": None,
        "basetemp": str(settings.basetemp / f"rank{rank}"),
        **dict.fromkeys(_OF_EARLIER_SESSIONS, False),
    }
    for name, value in options.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    log_file = config.getoption("log_file", None) or config.getini("log_file")
    if log_file:
        config.option.log_file = f"{log_file}.rank{rank}"
    config.workerinput = {**settings.workerinput, "harness_rank": rank}  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]


def silence(config: pytest.Config, rank: int, settings: RankSettings) -> None:
    """After configuration: let the reporter write to nowhere."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not at_terminal(rank, settings):
        config.pluginmanager.unregister(reporter)
        from _pytest.terminal import TerminalReporter

        # Plugins ask for the reporter by name, so one stays.
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
        config.pluginmanager.register(TerminalReporter(config, nowhere), "terminalreporter")


def capture_descriptors(config: pytest.Config) -> tuple[int, ...]:
    """Descriptors of the files into which pytest captures, for the parent to open."""
    manager = config.pluginmanager.get_plugin("capturemanager")
    capturing = getattr(manager, "_global_capturing", None)
    files: list[Any] = [
        getattr(getattr(capturing, stream, None), "tmpfile", None) for stream in ("out", "err")
    ]
    return tuple(file.fileno() for file in files if hasattr(file, "fileno"))


def _redirect_output(rank: int, settings: RankSettings) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if settings.debug is not None and settings.debug.rank == rank:
        for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            _put(os.open(f"/proc/{settings.debug.pid}/fd/{number}", mode), number)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
        return
    target = os.open(settings.output_file(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    _put(target, 2)


def _put(descriptor: int, number: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)


def narrow(config: pytest.Config, settings: RankSettings) -> None:
    """Drop arguments that name files without tests on ranks: not collected here, they would be missed."""
    if not settings.files or config.option.pyargs:
        return
    kept = []
    for argument in config.args:
        path = Path(settings.invocation_dir, argument.partition("::")[0]).absolute()
        if path.is_dir() or path in settings.files or path.resolve() in settings.files:
            kept.append(argument)
    config.args[:] = kept or config.args
