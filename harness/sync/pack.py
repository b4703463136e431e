"""Many small parameters in one exchange: norms, biases and adapters cost a round trip each otherwise.

::

    region of rank 0            region of rank 1
    [run of a][run of b] …      [run of a][run of b] …      one buffer, completed in one exchange

Regions hold bytes, so parameters of any dtype travel together.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from harness.sync.exchange import Transfer, share
from harness.sync.sharding.run import Run

_ALIGNMENT = 16  # bytes: what any dtype may be viewed at


class Pack:
    """Full values of small parameters, exchanged together.

    Args:
        runs: what this rank holds, by any key; the same keys in the same order on every rank of a group.
    """

    def __init__(self, runs: Mapping[int, Run]) -> None:
        self._runs = dict(runs)
        by_group: dict[tuple[int, torch.device], list[int]] = defaultdict(list)
        for key, run in self._runs.items():
            if not run.alone:
                by_group[id(run.group), run.device].append(key)
        self._boxes = [_Box({key: self._runs[key] for key in keys}) for keys in by_group.values()]
        self._box_of = {key: box for box in self._boxes for key in box.runs}

    def wait(self, seconds: float | None = None) -> None:
        """Return when every value has arrived; ``seconds`` as for ``Transfer.wait``."""
        for box in self._boxes:
            box.transfer.wait(seconds)

    def settle(self, seconds: float) -> None:
        """Let what is on its way arrive, for nobody."""
        self.wait(seconds)

    def __contains__(self, key: int) -> bool:
        """Whether the pack carries a parameter."""
        return key in self._runs

    def value(self, key: int) -> Tensor:
        """The whole parameter, flat, in bytes of its own."""
        box = self._box_of.get(key)
        return self._runs[key].mine.clone() if box is None else box.value(key)


class _Box:
    """The part of a pack that one process group exchanges."""

    def __init__(self, runs: dict[int, Run]) -> None:
        self.runs = runs
        first = next(iter(runs.values()))
        self._offsets: dict[int, int] = {}
        end = 0
        for key, run in runs.items():
            self._offsets[key] = end
            end += -(-run.each * run.mine.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        ranks = len(first.bounds) - 1
        self._regions = torch.zeros((ranks, end), dtype=torch.uint8, device=first.device)
        for key, run in runs.items():
            self._pieces(key)[first.rank, : run.mine.numel()].copy_(run.mine)
        self.transfer: Transfer = share(self._regions.view(-1), first, end)

    def value(self, key: int) -> Tensor:
        run, pieces = self.runs[key], self._pieces(key)
        whole = torch.empty(run.numel, dtype=run.mine.dtype, device=run.device)
        full = run.numel // run.each if run.each else 0  # ranks whose runs the end does not cut short
        whole[: full * run.each].view(full, run.each).copy_(pieces[:full])
        if full * run.each < run.numel:
            whole[full * run.each :].copy_(pieces[full, : run.numel - full * run.each])
        return whole

    def _pieces(self, key: int) -> Tensor:
        """Every rank's run of a parameter, one row per rank; shape ``(ranks, each)``."""
        run, start = self.runs[key], self._offsets[key]
        return self._regions[:, start : start + run.each * run.mine.dtype.itemsize].view(run.mine.dtype)
