"""How the parameters of a model are laid out over ranks, one file per engine behind one small protocol."""

from typing import Protocol

from torch.nn import Module, Parameter

from harness.sync.errors import SyncRefused
from harness.sync.sharding.run import Run
from harness.sync.tree import modules, parameters


class Sharding(Protocol):
    """Says what this rank holds of each parameter; exchanges nothing, changes nothing."""

    name: str
    """Word for this layout in messages: ``replicated``, ``zero3``, ``fsdp2``."""

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter."""
        ...

    def run(self, parameter: Parameter) -> Run:
        """What this rank holds of a parameter, read now: an optimizer step may move it."""
        ...

    def objection(self, parameter: Parameter) -> str | None:
        """Why a parameter cannot be read right, as the end of a sentence; None when it can."""
        ...


def detect(model: Module) -> Sharding:
    """The layout of a model, by its parameters.

    Raises:
        SyncRefused: this is no module, or its layout has no back end here (FSDP1).
    """
    if not isinstance(model, Module):
        raise SyncRefused(f"expected a torch.nn.Module to read weights from, got {type(model).__name__}")
    from harness.sync.sharding.fsdp2 import Fsdp2
    from harness.sync.sharding.replicated import Replicated
    from harness.sync.sharding.zero3 import Zero3

    for module in modules(model):
        if type(module).__name__ == "FullyShardedDataParallel":
            raise SyncRefused(
                "the model is sharded by FSDP1 (FullyShardedDataParallel), whose flat parameters lose the "
                "layers' own: shard it with torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )
    found = parameters(model)
    if any(hasattr(parameter, "ds_id") for parameter in found):
        return Zero3()
    if any(Fsdp2.is_distributed(parameter) for parameter in found):
        return Fsdp2()
    return Replicated()
