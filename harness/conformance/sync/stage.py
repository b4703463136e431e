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
from harness.conformance.sync.coding import code
from harness.conformance.sync.layout import full_shape, write
from harness.conformance.sync.oracle import Target, coded_targets, sizes, targets
from harness.conformance.sync.state import ModelState
from harness.conformance.sync.subject import Round, SyncContext, SyncSubject
from harness.conformance.verdict import NotApplicable

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario


SHARDING = {"zero3p": "zero3"}  # the name that a subject is told, where it is not the scenario's
CAPABILITIES = {
    "push": "push(source, send, seconds) drives a round on all ranks and makes one rank's failure that of all",
    "to_sender": "to_sender(model, context) returns a source that gives tensors to rank 0 alone",
    "buckets": "buckets(source, nbytes) packs a round into buckets with tensors()",
}
"""What a subject may carry as attributes beside ``supports``, and what each is for."""


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

    @property
    def context(self) -> SyncContext:
        """What the subject is told about where it runs."""
        return SyncContext(
            sharding=SHARDING.get(self.scenario.sharding, self.scenario.sharding),
            device=torch.device(self.scenario.device),
            rank=self.stage.rank,
            world_size=self.scenario.world_size,
        )

    def open(self) -> Round:
        """Start one round of the subject on this rank; every rank must do so."""
        return Round(self.subject, self.model, self.context)

    def offered(self, capability: str) -> Any:
        """What the subject offers beside its rounds, by the name of its attribute.

        Raises:
            NotApplicable: nothing of that name.
        """
        found = getattr(self.subject, capability, None)
        if found is None:
            raise NotApplicable(f"the subject offers no {capability}: {CAPABILITIES[capability]}")
        return found

    def train(self, turn: int) -> dict[str, Target]:
        """Give every parameter its code of a round, in place, as training does; what is due to the engine then."""
        for name, parameter in self.model.named_parameters():
            write(parameter, code(name, full_shape(parameter), turn, self.scenario.world_size))
        return coded_targets(self.scenario, turn)

    def rewind(self) -> None:
        """Put the trainer back to what it was before the check."""
        self.stage.pristine.restore()

    def differences(self) -> list[str]:
        """How this rank's model differs from what it was before the check."""
        return self.stage.pristine.differences()

    def on_any_rank(self, own: bool) -> bool:
        """Whether it is so on one rank at least. A collective."""
        return not _all_agree(not own, self.scenario)

    def forward_is_unchanged(self) -> bool:
        """Whether the logits are bit for bit those of before the check. A collective when sharded."""
        return torch.equal(self.stage.trainer.forward(), self.stage.logits)


def _all_agree(own: bool, scenario: SyncScenario) -> bool:
    if scenario.world_size == 1:
        return own
    votes = torch.tensor([int(own)], device=scenario.device)
    torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MIN)
    return bool(votes.item())
