"""What the optimizer holds beside the model: master weights and moments, read and put back in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.sync.build import Trainer


@dataclass(frozen=True)
class OptimizerState:
    """Every tensor of a trainer's optimizer on this rank, with a copy of its bytes."""

    optimizer: Any
    tensors: dict[str, torch.Tensor]
    contents: dict[str, torch.Tensor]

    @classmethod
    def capture(cls, trainer: Trainer) -> OptimizerState:
        """Read the optimizer now; no collective."""
        tensors = dict(_tensors(trainer.optimizer))
        contents = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return cls(trainer.optimizer, tensors, contents)

    def differences(self) -> list[str]:
        """Every difference between the optimizer now and then, as short sentences."""
        now = dict(_tensors(self.optimizer))
        found = [f"the optimizer's {name} is gone" for name in self.tensors.keys() - now.keys()]
        found += [f"the optimizer's {name} is new" for name in now.keys() - self.tensors.keys()]
        for name in self.tensors.keys() & now.keys():
            if now[name].data_ptr() != self.tensors[name].data_ptr():
                found.append(f"the optimizer's {name} moved to other memory")
            elif not torch.equal(now[name], self.contents[name]):
                found.append(f"the optimizer's {name} changed")
        return sorted(found)

    def restore(self) -> None:
        """Put every tensor back, in place."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(self.contents[name])


def _tensors(optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Master weights under ZeRO-3, then the moments of each parameter that was stepped, as they lie on this rank."""
    for index, master in enumerate(getattr(optimizer, "fp32_partitioned_groups_flat", [])):
        yield f"master weights {index}", master.data
    inner = getattr(optimizer, "optimizer", optimizer)  # DeepSpeed wraps torch's
    for index, moments in enumerate(inner.state.values()):
        for name, value in moments.items():
            if isinstance(value, torch.Tensor):
                yield (
                    f"{name} of parameter {index}",
                    value.to_local() if hasattr(value, "to_local") else value,
                )
