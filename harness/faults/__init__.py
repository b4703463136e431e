"""The ways a worker, a rank or a consumer can go wrong: named, reusable, and drawn by a seeded schedule.

>>> from harness import faults
>>> faults.named("kill").sentence
'SIGKILL, as the out-of-memory killer sends it.'
>>> print(faults.draw(seed=7, steps=4, victims=2, faults=[faults.named("kill")]))
seed 7: kill on 0 at 1, kill on 0 at 3

A fault acts in the process that calls ``fault.act()``. ``Victim`` is an object for workers that suffers on request.
"""

from harness.faults import answering, ending, raising  # noqa: F401 - each declares its faults
from harness.faults.fault import Effect, Fault, named, with_effect
from harness.faults.schedule import Schedule, Strike, draw
from harness.faults.victim import FailingStart, Victim

__all__ = [
    "Effect",
    "FailingStart",
    "Fault",
    "Schedule",
    "Strike",
    "Victim",
    "draw",
    "named",
    "with_effect",
]
