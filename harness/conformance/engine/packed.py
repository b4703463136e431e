"""TRL's own weight iteration through vLLM's own packing, as TRL's server mode combines the two.

``VLLMClient.update_named_params`` hands TRL's generator to vLLM's packed producer, which fills chunks with
``pack_tensors``. Both are the released code; only the transport behind them is another, so that no GPU is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from harness.conformance.sync.scenarios import SyncScenario


class TrlPacked:
    """A weight source: what arrives at the engine when TRL sends.

    Args:
        model: the trainer's.
        scenario: its scenario.
        rank: of this process.
        world_size: ranks that iterate.
        buffer_bytes: size at which vLLM's packer cuts; its own default when None.
    """

    def __init__(
        self, model: Any, scenario: SyncScenario, rank: int, world_size: int, buffer_bytes: int | None = None
    ) -> None:
        self._model, self._scenario, self._rank, self._world_size = model, scenario, rank, world_size
        self._buffer_bytes = buffer_bytes

    def metadata(self) -> list[Any]:
        """Of the base model: TRL's names are those of this scenario's engine."""
        from harness.sync import ModuleGatherSource

        return ModuleGatherSource(self._model).metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        stream = self._stream()
        if self._rank != 0:
            for _ in stream:  # TRL's other ranks exhaust the generator
                pass
            return
        from vllm.distributed.weight_transfer.packed_tensor import (
            DEFAULT_PACKED_BUFFER_SIZE_BYTES,
            pack_tensors,
            unpack_tensor,
        )

        size = self._buffer_bytes or DEFAULT_PACKED_BUFFER_SIZE_BYTES
        while (chunk := pack_tensors(stream, lambda item: item[1], size)) is not None:
            yield from unpack_tensor(
                chunk.packed_tensor, chunk.names, chunk.shapes, chunk.dtypes, chunk.tensor_sizes
            )

    def _stream(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        from harness.conformance.sync.subject import SyncContext
        from harness.subjects.trl import iter_named_params

        context = SyncContext(self._scenario.sharding, torch.device("cpu"), self._rank, self._world_size)
        return iter_named_params(self._model, context)
