"""One unit on its way: started when there is room for it, finished when the consumer wants it."""

from torch import Tensor

from harness.sync.budget import Budget
from harness.sync.delivery import Delivery, Merge
from harness.sync.exchange import Transfer
from harness.sync.merging import merge
from harness.sync.pack import Pack
from harness.sync.plan import Unit
from harness.sync.rows import RowMerger, cuts
from harness.sync.sharding import Sharding
from harness.sync.verdict import Verdict


class Fetch:
    """Starts the exchange of a unit on construction.

    Args:
        unit: what to fetch.
        pack: the complete pack of the unit's chapter.
        sharding: layout of the model.
        delivery: who is given the large tensors.
        budget: what may be held.
        scratch: bytes that a merge may allocate at once.
        verdict: told when a merge fails; the exchange goes on.
    """

    def __init__(
        self,
        unit: Unit,
        pack: Pack,
        *,
        sharding: Sharding,
        delivery: Delivery,
        budget: Budget,
        scratch: int,
        verdict: Verdict,
    ) -> None:
        self._unit, self._pack, self._sharding, self._verdict = unit, pack, sharding, verdict
        self._scratch = scratch
        self._wholes: dict[int, Tensor | None] = {}
        self._transfer = Transfer()
        self._received = delivery.receives(sharding.run(unit.bare[0].parameter))
        for live in unit.needed:
            if id(live) in pack:
                continue
            merging = self._merging() if live is unit.weight else None
            run = sharding.run(live)
            pieces = cuts(sharding.shape(live), run.mine.dtype.itemsize, budget.chunk)
            whole, transfer = delivery.start(run, merging, pieces)
            self._wholes[id(live)] = whole
            self._transfer += transfer

    def settle(self, seconds: float) -> None:
        """Let what is on its way arrive, for nobody."""
        self._transfer.wait(seconds)

    def finish(self, seconds: float | None) -> list[tuple[str, Tensor]]:
        """Names and values of the unit's base parameters, once they have arrived; none where not received."""
        self._transfer.wait(seconds)
        if self._verdict.failed or not self._received:
            return []
        values: dict[int, Tensor] = {}
        for live in self._unit.needed:
            flat = self._wholes.pop(id(live), None)
            values[id(live)] = (flat if flat is not None else self._pack.value(id(live))).view(
                self._sharding.shape(live)
            )
        if self._unit.layer is None or self._unit.weight is not None:
            return [(found.name, values[id(found.parameter)]) for found in self._unit.bare]
        return self._merge_whole(values)

    def _merge_whole(self, values: dict[int, Tensor]) -> list[tuple[str, Tensor]]:
        assert self._unit.layer is not None
        try:
            merged = merge(self._unit.layer, values)
        except Exception as error:  # noqa: BLE001  whatever PEFT raises, the peers must hear of it
            self._verdict.fail(error, f"merging {self._unit.bare[0].name}")
            return []
        return [(found.name, merged[path]) for path, found in zip(merged, self._unit.bare, strict=True)]

    def _merging(self) -> Merge:
        merger: RowMerger | None = None

        def merge_piece(piece: Tensor, start: int, stop: int) -> None:
            nonlocal merger
            try:
                if merger is None:
                    merger = self._row_merger()
                merger.merge_run(piece, start, stop, self._scratch)
            except Exception as error:  # noqa: BLE001  whatever PEFT raises, the peers must hear of it
                self._verdict.fail(error, f"merging {self._unit.bare[0].name}")
                piece.fill_(float("nan"))  # peers have this until they hear: never a plausible weight

        return merge_piece

    def _row_merger(self) -> RowMerger:
        layer, weight = self._unit.layer, self._unit.weight
        assert layer is not None
        assert weight is not None
        factors = {
            id(live): self._pack.value(id(live)).view(self._sharding.shape(live))
            for live in self._unit.needed
            if live is not weight and id(live) in self._pack
        }
        return RowMerger(layer, factors, self._sharding.shape(weight))
