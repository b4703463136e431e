"""Faults of the trainer's side: at a named phase of a transfer a rank raises, is killed, or stands still."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.subjects.vllm_probe import act

if TYPE_CHECKING:
    from collections.abc import Iterator

PHASES = {"init": "connect", "start": "start", "finish": "finish", "resume": "resume"}
"""Phases that are a call of the engine's control plane; ``chunk`` is a yield of the source."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Attributes:
        rank: the trainer rank that fails.
        phase: ``init``, ``start``, ``chunk``, ``finish`` or ``resume``.
        action: ``raise``, ``kill`` or ``stop``.
        at: for ``chunk``, how many tensors are yielded before.
    """

    rank: int
    phase: str
    action: str
    at: int = 20

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Fault | None:
        """What ``text()`` wrote; None for nothing."""
        return cls(**json.loads(text)) if text else None


def faulty_control(control: Any, fault: Fault) -> Any:
    """The control plane whose method of the phase fails before it asks the engine."""
    method = PHASES.get(fault.phase)
    if method is not None:
        original = getattr(control, method)
        setattr(control, method, lambda *args: act(fault.action, lambda: original(*args)))
    return control


def faulty_source(source: Any, fault: Fault) -> Any:
    """The source whose pass fails after ``fault.at`` tensors."""
    return _Faulty(source, fault) if fault.phase == "chunk" else source


class _Faulty:
    def __init__(self, source: Any, fault: Fault) -> None:
        self._source, self._fault = source, fault

    def metadata(self) -> Any:
        return self._source.metadata()

    def begin(self, seconds: float) -> Iterator[Any]:
        return _FaultyPass(self._source.begin(seconds), self._fault)

    def __iter__(self) -> Iterator[Any]:
        return self.begin(60.0)


class _FaultyPass:
    def __init__(self, passing: Any, fault: Fault) -> None:
        self._passing, self._fault, self._count = passing, fault, 0
        self.fail = getattr(passing, "fail", lambda *_: None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._count += 1
        if self._count == self._fault.at:
            return act(self._fault.action, self._passing.__next__)
        return next(self._passing)


class Misnamed:
    """A source whose first tensor has a name that no engine knows."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def metadata(self) -> Any:
        """With the first entry renamed."""
        first, *others = self._source.metadata()
        return [replace(first, name="not.a.parameter"), *others]

    def __iter__(self) -> Iterator[Any]:
        passing = iter(self._source)
        _, tensor = next(passing)
        yield "not.a.parameter", tensor
        yield from passing
