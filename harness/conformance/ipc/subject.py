"""What a worker pool must offer to be judged, and what it may offer besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from harness.conformance.verdict import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.ipc.scenarios import IpcScenario


class IpcSubject(Protocol):
    """A worker pool, made without arguments.

    Optional attributes, each the declaration of a capability:

    - ``start_method``: set before ``start`` to ``spawn``, ``forkserver`` or ``fork``; without it the subject is judged
      in the scenario ``spawn`` only;
    - ``pids() -> list[int]``: process ids of the workers, in worker order;
    - ``post(method, *args)``: a call that nobody waits for;
    - ``start_s: float``: seconds that starting takes, on top of a check's own deadline;
    - ``patience: float``: by how much the deadlines of calls are multiplied;
    - ``alone: bool``: true for a subject that fills the machine, of which no two are started side by side;
    - ``native_transport: bool``: true when replies do not pass through Python's own pipes or sockets, so that no
      fault can cut one in half;
    - ``supports(scenario) -> str | None`` (static): why a scenario cannot be run.
    """

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        """Start ``size`` workers, each with the object that ``factory(index)`` builds in it."""

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        """Call a method on every worker; one result per worker, in worker order.

        Raises:
            Exception: any worker failed, or did not answer within ``timeout`` seconds.
        """

    def close(self) -> None:
        """End the workers; may be called twice."""


def prepare(subject_class: Any, scenario: IpcScenario | str) -> Any:
    """An instance for one scenario, not started.

    Raises:
        NotApplicable: the subject has no choice of start methods, and this is not the first of them.
    """
    method = scenario if isinstance(scenario, str) else scenario.start_method
    if hasattr(subject_class, "start_method"):
        subject = subject_class()
        subject.start_method = method
        return subject
    if method != "spawn":
        raise NotApplicable("the subject declares no choice of start methods (attribute start_method)")
    return subject_class()


def require(subject: Any, capability: str) -> None:
    """Refuse to judge what the subject does not declare.

    Raises:
        NotApplicable: it has no such attribute.
    """
    if not hasattr(subject, capability):
        raise NotApplicable(f"the subject declares no {capability}")
