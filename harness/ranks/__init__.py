"""Run one pytest item on N ranks in lockstep; it passes when every rank says over the wire that it passed.

::

    the session's own process                                      one process per rank
    ┌──────────────────────────────────────┐                      ┌───────────────────────────────────┐
    │ plugin     hooks, options, fixtures  │     setup            │ session   a pytest session of its │
    │   │                                  │     call             │   │       own, same arguments     │
    │ lockstep   one item, phase by phase ─┼──►  teardown ───────►│ protocol  one phase at a time     │
    │   │ ▲                                │                      │   │                               │
    │   │ └ verdict   all reports → one    │◄── pytest report ────┤ rank      what the test sees      │
    │ pools      one per kind of ranks,    │                      │                                   │
    │            reused after a pass       │◄── stacks, last ─────┤ evidence  faulthandler, flight    │
    │   └ pool   harness.ipc.WorkerPool    │    collective        │           recorder, on demand     │
    └──────────────────────────────────────┘                      └───────────────────────────────────┘

The parent walks through setup, call and teardown with all ranks together: a call begins only where every
rank's setup passed, so a fixture that fails on one rank is a failure, never a hang.
"""

from harness.ranks.outcome import RankOutcome
from harness.ranks.rank import Rank

__all__ = ["Rank", "RankOutcome"]
