"""The fix: gather, merge and hand over one unit at a time.

At any moment a rank holds its shard of the model, the tensor that was handed over, and what the budget allows
ahead of it. That is for layers that merge in rows (plain LoRA on a matrix): what PEFT has to merge whole, DoRA
or a convolution, takes up to about five times that layer's weight meanwhile, at any depth. The model is only
read: abandoning a pass, or an exception in the consumer, leaves nothing to restore.
"""

from torch.nn import Module

from harness.sync.budget import Budget
from harness.sync.delivery import Delivery, ToEveryRank, ToOneRank
from harness.sync.naming import each_once, survey
from harness.sync.plan import chapters, metadata, units
from harness.sync.refusal import examine
from harness.sync.round import Round
from harness.sync.sharding import detect
from harness.sync.source import ParamMeta


class ModuleGatherSource:
    """Weight source that materialises one tuner layer, or one parameter, at a time, on every rank.

    Args:
        model: a plain module or a ``PeftModel``, whose parameters may be sharded (``engine.module``).
            Adapters may be added, switched or trained between passes.

    Raises:
        SyncRefused: on construction and at the start of each pass, for a model that cannot be synced right;
            before any collective.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._sharding = detect(model)
        examine(model, self._sharding)

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of every tensor of a pass, in its order; no collective."""
        return metadata(each_once(survey(self._model)), self._sharding)

    def __iter__(self) -> Round:
        """Start a fresh pass; collective. The tensors belong to the consumer."""
        return self.begin()

    def begin(self, seconds: float | None = None) -> Round:
        """Start a fresh pass with a limit for each wait on a peer; None leaves it to the process group."""
        bare = each_once(examine(self._model, self._sharding))
        budget = Budget(max(meta.nbytes for meta in metadata(bare, self._sharding)))
        planned = chapters(units(bare, self._sharding), self._sharding, budget)
        return Round(planned, self._sharding, self._delivery(), budget, seconds)

    def _delivery(self) -> Delivery:
        return ToEveryRank()


class SenderGatherSource(ModuleGatherSource):
    """Weight source for a trainer of which one rank feeds the engine.

    The other ranks iterate too, and are given nothing: their loop body never runs, and beside their shard
    they hold no more than a piece of one.

    Args:
        model: as for ``ModuleGatherSource``.
        sender: the rank that is given the tensors, in the group that parameters are sharded over.
    """

    def __init__(self, model: Module, sender: int = 0) -> None:
        super().__init__(model)
        self.sender = sender

    def _delivery(self) -> Delivery:
        return ToOneRank(self.sender)
