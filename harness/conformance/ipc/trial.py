"""The act's side of a check: starts the subject's pools, asks them, and says in one sentence what it got instead."""

from __future__ import annotations

import contextlib
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.conformance.ipc.subject import prepare, require
from harness.conformance.verdict import Kind, NotApplicable, Violation
from harness.faults import Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIZE = 3
CALL_S = 20.0
"""Deadline of a call that should be answered at once: long, because machines are busy."""
TOLD_S = 2.0
"""Deadline of a call that has to fail. What is reported only when it has passed was not reported."""
MARGIN_S = 3.0
"""How much later than its deadline a call may raise."""


@dataclass(frozen=True)
class Told:
    """What the caller of a failed call was told.

    Attributes:
        text: the exception and its causes, as Python prints them.
        seconds: how long the call took.
        in_time: whether it failed before its own deadline had passed.
        error: the exception.
    """

    text: str
    seconds: float
    in_time: bool
    error: BaseException


class Trial:
    """One subject in one scenario.

    Args:
        subject_class: makes the subject.
        scenario: the start method.
        note: writes down what must survive this process.
    """

    def __init__(self, subject_class: Any, scenario: str, note: Callable[..., None]) -> None:
        self.scenario = scenario
        self.patience = float(getattr(subject_class, "patience", 1.0))
        self._subject_class = subject_class
        self._note = note

    def require_python_transport(self) -> None:
        """Refuse to cut in half what does not pass through Python's pipes."""
        if getattr(self._subject_class, "native_transport", False):
            raise NotApplicable("the subject's replies do not pass through Python's pipes or sockets")

    def step(self, text: str) -> None:
        """Note what comes next; the last step is what a hang is blamed on."""
        self._note(step=text)

    def evidence(self, **facts: Any) -> None:
        """Note facts; later ones replace earlier ones of the same name."""
        self._note(evidence=facts)

    def doomed(self, blocks: Sequence[str]) -> None:
        """Note that this process is about to be killed on purpose, and which shared memory must not outlive it."""
        self._note(doomed=list(blocks))

    def bench(self, size: int = SIZE, needs: Sequence[str] = ()) -> Bench:
        """A pool that is not started yet, and that whoever asked for it closes.

        Args:
            size: number of workers.
            needs: capabilities without which the check does not apply.
        """
        subject = prepare(self._subject_class, self.scenario)
        for capability in needs:
            require(subject, capability)
        return Bench(self, subject, size)

    @contextlib.contextmanager
    def pool(
        self, size: int = SIZE, factory: Callable[[int], Any] = Victim, needs: Sequence[str] = ()
    ) -> Iterator[Bench]:
        """A pool that is started, and closed afterwards; else as :meth:`bench`.

        A violation is noted before the close, which may hang because of what came before it.
        """
        bench = self.bench(size, needs)
        bench.start(factory)
        try:
            yield bench
        except BaseException as error:
            if isinstance(error, Violation):
                self._note(first={"kind": str(error.kind), "message": error.message})
            with contextlib.suppress(Violation):
                bench.close()
            raise
        bench.close()

    def saw(self, subject: Any) -> None:
        """Note when a mutant's faulty code has run."""
        if getattr(subject, "triggered", False):
            self._note(triggered=True)


class Bench:
    """A subject at work, and what was asked of it so far."""

    def __init__(self, trial: Trial, subject: Any, size: int) -> None:
        self.subject = subject
        self.size = size
        self.start_error = ""
        """What start raised, as Python prints it."""
        self._trial = trial
        self._asked: list[Any] = []

    def start(self, factory: Callable[[int], Any]) -> None:
        """Start it; that must work."""
        self._trial.step(f"start {self.size} workers")
        try:
            self.subject.start(factory, self.size)
        except Exception as error:
            self.start_error = "".join(traceback.format_exception(error))
            raise Violation(Kind.RAISED, f"start raised {_brief(error)}") from error
        finally:
            self._trial.saw(self.subject)

    def close(self) -> None:
        """Close it; that must come to an end, and not raise."""
        self._trial.saw(self.subject)
        self._trial.step("close")
        try:
            self.subject.close()
        except Exception as error:
            raise Violation(Kind.RAISED, f"close raised {_brief(error)}") from error

    def call(self, method: str, *args: Any, timeout: float = CALL_S) -> list[Any]:
        """A call that has to succeed."""
        self._trial.step(f"call {method}")
        begun = time.monotonic()
        try:
            values: list[Any] = self.subject.call(method, *args, timeout=timeout * self._trial.patience)
        except Exception as error:
            seconds = time.monotonic() - begun
            raise Violation(
                Kind.RAISED, f"a call that no worker failed raised after {seconds:.1f} s: {_brief(error)}"
            ) from error
        return values

    def answers(self, token: Any, method: str = "answer", *args: Any, timeout: float = CALL_S) -> None:
        """Every worker must give its own answer to this question, in worker order."""
        values = self.call(method, *args, token, timeout=timeout)
        self._judge(values, token)

    def still_answers(self, after: str) -> None:
        """Three more calls must return their own answers."""
        for turn in ("first", "second", "third"):
            token = f"{turn} after {after}"
            try:
                self.answers(token, timeout=TOLD_S)
            except Violation as violation:
                message = f"after {after}, the {turn} call: {violation.message}"
                raise Violation(violation.kind, message) from violation

    def fails(self, method: str, *args: Any, timeout: float = TOLD_S) -> Told:
        """A call that has to raise; what it raised."""
        self._trial.step(f"call {method} {args[:1]}, which must fail")
        timeout *= self._trial.patience
        self._asked.append(args[-1] if args else method)
        begun = time.monotonic()
        try:
            values = self.subject.call(method, *args, timeout=timeout)
        except BaseException as error:  # noqa: BLE001 - what it raises is what is judged
            seconds = time.monotonic() - begun
            text = "".join(traceback.format_exception(error))
            return Told(text, round(seconds, 3), seconds < timeout, error)
        raise Violation(Kind.SILENT, f"{_named(args)}: the call had to fail and returned {_clip(values)}")

    def told_of(self, method: str, *args: Any) -> Told:
        """A call that has to raise before its deadline, with an ordinary exception."""
        told = self.fails(method, *args)
        if not told.in_time:
            raise Violation(
                Kind.SILENT,
                f"{_named(args)}: the failure was not reported; the call ran into its deadline of {told.seconds:.1f} s"
                f" ({_brief(told.error)})",
            )
        if not isinstance(told.error, Exception):
            raise Violation(
                Kind.WRONG,
                f"{_named(args)}: {type(told.error).__name__} was raised in the caller itself, which ends it",
            )
        return told

    def pids(self) -> list[int]:
        """The workers' process ids."""
        return list(self.subject.pids())

    def _judge(self, values: list[Any], token: Any) -> None:
        expected = [(index, token) for index in range(self.size)]
        earlier, self._asked = self._asked, [*self._asked, token]
        if values == expected:
            return
        stale = [value for value in values if isinstance(value, tuple) and value[-1] in earlier]
        if stale:
            raise Violation(Kind.STALE, f"asked {token!r}, got answers to earlier calls: {_clip(values)}")
        raise Violation(Kind.WRONG, f"asked {token!r}, expected {_clip(expected)}, got {_clip(values)}")


def _named(args: tuple[Any, ...]) -> str:
    return str(args[0]) if args and isinstance(args[0], str) else "a faulty call"


def _brief(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - it may be a hostile one that the subject let through
        text = "(its message cannot be read)"
    first = text.strip().splitlines()[0] if text.strip() else ""
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:159]}…"
