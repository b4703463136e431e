"""Subjects by name: the built-in ones, and a user's own as ``package.module:callable``."""

from __future__ import annotations

import difflib
import importlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.errors import MissingLibrary, UsageError


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        name: as given on the command line.
        summary: one line for ``harness list subjects``.
        targets: where its code is, by domain, as ``package.module:attribute``.
        needs: the library it is about, and the extra that brings it; empty for none.
        extra: see ``needs``.
    """

    name: str
    summary: str
    targets: dict[str, str]
    needs: str = ""
    extra: str = ""

    def load(self, domain: str) -> Any:
        """Import the subject's callable (or class) for ``domain``.

        Raises:
            UsageError: it does not import, does not exist or is not callable.
            MissingLibrary: the library it is about is not installed.
        """
        if self.needs and find_spec(self.needs) is None:
            raise MissingLibrary(self.needs, self.extra, f"subject {self.name!r}")
        return _load(self.targets[domain])

    def supports(self, domain: str, scenario: object) -> str | None:
        """The subject's own word on why it cannot run ``scenario``; None when it can."""
        declared = getattr(self.load(domain), "supports", None)
        return None if declared is None else declared(scenario)


_BUILTIN = (
    Subject(
        "reference",
        "this package's own: sync module by module, worker pool with drained, id-matched replies",
        {
            "sync": "harness.subjects.reference:module_gather",
            "ipc": "harness.subjects.ipc_reference:Reference",
        },
    ),
    Subject(
        "full-gather",
        "the reference full gather: right, and holds the whole model",
        {"sync": "harness.subjects.reference:full_gather"},
    ),
    Subject(
        "trl",
        "TRL's own VLLMGeneration._iter_named_params, as installed",
        {"sync": "harness.subjects.trl:iter_named_params"},
        needs="trl",
        extra="trl",
    ),
    Subject(
        "stdlib-pool",
        "multiprocessing.Pool, a pool of one worker for each",
        {"ipc": "harness.subjects.ipc_stdlib:StdlibPool"},
    ),
    Subject(
        "executor",
        "concurrent.futures.ProcessPoolExecutor, one of one worker for each",
        {"ipc": "harness.subjects.ipc_stdlib:Executor"},
    ),
    Subject(
        "loky",
        "loky's ProcessPoolExecutor, one of one worker for each",
        {"ipc": "harness.subjects.ipc_loky:Loky"},
        needs="loky",
        extra="peers",
    ),
    Subject(
        "ray",
        "Ray actors on a cluster of one node",
        {"ipc": "harness.subjects.ipc_ray:Ray"},
        needs="ray",
        extra="ray",
    ),
    Subject(
        "vllm",
        "vLLM's server on CPU, fed by this package's weight-transfer engine",
        {"engine": "harness.subjects.vllm:start"},
        needs="vllm",
        extra="engine",
    ),
    Subject(
        "vllm-executor",
        "vLLM's MultiprocExecutor and its collective_rpc, without a model",
        {"ipc": "harness.subjects.vllm_executor:VllmExecutor"},
        needs="vllm",
        extra="engine",
    ),
)


def builtin_names() -> list[str]:
    """Names of the built-in subjects."""
    return [subject.name for subject in _BUILTIN]


def builtin() -> tuple[Subject, ...]:
    """The built-in subjects."""
    return _BUILTIN


def resolve(name: str) -> Subject:
    """The subject called ``name``. Nothing of it is imported yet.

    Raises:
        UsageError: neither a built-in name nor of the form ``package.module:callable``.
    """
    for subject in _BUILTIN:
        if subject.name == name:
            return subject
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return Subject(name, "", {"sync": name, "ipc": name})
    near = difflib.get_close_matches(name, builtin_names(), n=1)
    raise UsageError(
        f"unknown subject {name!r}: expected one of {', '.join(builtin_names())}, or your own as"
        " package.module:callable" + (f". Did you mean {near[0]!r}?" if near else "")
    )


def _load(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"subject {target!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"subject {target!r}: {module_name} has no attribute {attribute!r}") from None
    if not callable(found):
        raise UsageError(
            f"subject {target!r}: expected a callable (model, context) -> iterable of (name, tensor),"
            f" got {type(found).__name__}"
        )
    return found


def domains(subject: Subject) -> frozenset[str]:
    """The domains in which ``subject`` can be judged; a user's module is imported in another process to find out.

    Raises:
        UsageError: a user's subject does not import, ends its process, hangs, or is not callable.
        MissingLibrary: the library that a built-in subject is about is not installed.
    """
    if subject.name in builtin_names():
        if subject.needs and find_spec(subject.needs) is None:
            raise MissingLibrary(subject.needs, subject.extra, f"subject {subject.name!r}")
        return frozenset(subject.targets)
    from harness.subjects.probe import probe

    return frozenset({probe(subject.name)})
