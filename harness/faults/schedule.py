"""Which fault strikes whom, when: drawn from a seed, so that a run that failed can be run again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.faults.fault import Effect, Fault, with_effect

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Strike:
    """One fault at one step.

    Attributes:
        step: counts from 0.
        victim: index of the worker or rank that it strikes.
        fault: what happens to it.
    """

    step: int
    victim: int
    fault: Fault


@dataclass(frozen=True)
class Schedule:
    """The faults of one run.

    Attributes:
        seed: what they were drawn from.
        steps: how many steps the run has.
        strikes: in order of steps; at most one a step.
    """

    seed: int
    steps: int
    strikes: tuple[Strike, ...]

    def at(self, step: int) -> Strike | None:
        """The fault of one step, or None."""
        return next((strike for strike in self.strikes if strike.step == step), None)

    def __str__(self) -> str:
        listed = ", ".join(f"{s.fault.name} on {s.victim} at {s.step}" for s in self.strikes)
        return f"seed {self.seed}: {listed or 'no fault'}"


def draw(
    seed: int,
    *,
    steps: int,
    victims: int,
    rate: float = 0.3,
    faults: Sequence[Fault] | None = None,
) -> Schedule:
    """Draw a schedule. The same arguments give the same schedule, on every machine.

    Args:
        seed: any integer.
        steps: number of steps.
        victims: number of workers or ranks.
        rate: probability of a fault at a step, 0 to 1.
        faults: what to draw from; by default all after which the process or its absence is at once apparent.

    Raises:
        UsageError: a number is out of its range.
    """
    if steps < 0 or victims < 1 or not 0 <= rate <= 1:
        raise UsageError(
            f"a schedule needs steps >= 0, victims >= 1 and a rate from 0 to 1, not {steps}, {victims}, {rate}"
        )
    chosen = list(with_effect(Effect.FAILS, Effect.DIES) if faults is None else faults)
    source = random.Random(seed)  # noqa: S311 - reproducible is what it must be
    strikes = [
        Strike(step, source.randrange(victims), source.choice(chosen))
        for step in range(steps)
        if source.random() < rate
    ]
    return Schedule(seed, steps, tuple(strikes))
