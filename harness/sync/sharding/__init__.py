"""How the parameters of a model are laid out over ranks, one file per engine behind one small protocol."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.nn import Module, Parameter

from harness.sync.errors import SyncRefused
from harness.sync.tree import modules, parameters


class Sharding(Protocol):
    """Reads the full value of parameters that live in parts."""

    name: str
    """Word for this layout in messages: ``replicated``, ``zero3``, ``fsdp2``."""

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter; no collective."""
        ...

    def gather(self, parameters: Sequence[Parameter]) -> list[Tensor]:
        """Full values, each in bytes of its own on the parameter's device.

        Collective: every rank that shares the parameters calls it with the same ones in the same order. The
        model is only read, so nothing needs restoring, whatever happens in between.
        """
        ...


def detect(model: Module) -> Sharding:
    """The layout of a model, by its parameters.

    Raises:
        SyncRefused: the layout has no back end here (FSDP1).
    """
    from harness.sync.sharding.replicated import Replicated
    from harness.sync.sharding.zero3 import Zero3

    for module in modules(model):
        if type(module).__name__ == "FullyShardedDataParallel":
            raise SyncRefused(
                "the model is sharded by FSDP1 (FullyShardedDataParallel), whose flat parameters lose the "
                "layers' own: shard it with torch.distributed.fsdp.fully_shard (FSDP2) instead"
            )
    if any(hasattr(parameter, "ds_id") for parameter in parameters(model)):
        return Zero3()
    return Replicated()
