"""The stage on which a sync check plays: the scenario's trainer on this rank, kept from one check to the next.

Building a ZeRO-3 engine costs seconds, a check costs tenths. So the trainer is built once per scenario and, after
every check, compared with what it was and put back; where that fails on any rank, all ranks build it anew.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.build import Trainer, trainer
from harness.conformance.sync.oracle import Target, sizes, targets
from harness.conformance.sync.state import ModelState
from harness.conformance.sync.subject import Round, SyncContext, SyncSubject

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario


@dataclass
class Stage:
    """This rank's trainer for one scenario, with what it was when it was built."""

    scenario: SyncScenario
    rank: int
    trainer: Trainer
    pristine: ModelState
    logits: torch.Tensor

    @classmethod
    def build(cls, scenario: SyncScenario, rank: int) -> Stage:
        """Build and warm up: one forward, so that lazily made buffers exist. A collective when sharded."""
        built = trainer(scenario)
        logits = built.forward()
        return cls(scenario, rank, built, ModelState.capture(built.model), logits)

    def is_ready(self) -> bool:
        """Put the model back as it was built; False on every rank when one of them cannot. A collective."""
        return _all_agree(self.pristine.restore(), self.scenario)

    def close(self) -> None:
        """Give the engine and its memory back."""
        self.trainer.close()
        gc.collect()


@dataclass
class SyncCell:
    """What a sync check gets: the subject, the stage, and a place for evidence."""

    stage: Stage
    subject: SyncSubject
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        """The ``PeftModel`` on this rank."""
        return self.stage.trainer.model

    @property
    def scenario(self) -> SyncScenario:
        return self.stage.scenario

    @property
    def targets(self) -> dict[str, Target]:
        """What the engine should receive, by name, in the model's order."""
        return targets(self.scenario)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor that the engine should receive."""
        return sizes(self.scenario)

    def open(self) -> Round:
        """Start one round of the subject on this rank; every rank must do so."""
        context = SyncContext(
            sharding=self.scenario.sharding,
            device=torch.device(self.scenario.device),
            rank=self.stage.rank,
            world_size=self.scenario.world_size,
        )
        return Round(self.subject, self.model, context)

    def differences(self) -> list[str]:
        """How this rank's model differs from what it was before the check."""
        return self.stage.pristine.differences()

    def forward_is_unchanged(self) -> bool:
        """Whether the logits are bit for bit those of before the check. A collective when sharded."""
        return torch.equal(self.stage.trainer.forward(), self.stage.logits)


def _all_agree(own: bool, scenario: SyncScenario) -> bool:
    if scenario.world_size == 1:
        return own
    votes = torch.tensor([int(own)], device=scenario.device)
    torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MIN)
    return bool(votes.item())
