"""The bridge to vLLM's weight-transfer contract, which moves between releases: all that knows of it is in this file.

A worker of vLLM makes one ``GlooWeightTransferEngine``, finds the rank that it has in a transfer, and hands vLLM's
lifecycle on to a :class:`harness.transfer.receiver.Receiver`. Loading goes through vLLM's layerwise reload, so that
whatever a layer makes of its weights (packed, quantised) is made anew.

Written against the releases in ``vllm_versions``; on any other the engine refuses to start. What was used of them:
``WeightTransferEngine`` with ``init_transfer_engine``, ``start_weight_update``, ``receive_weights``,
``finish_weight_update`` and ``shutdown``; ``WeightTransferEngineFactory.register_engine``; and, of
``model_loader.reload.layerwise``, the two ends of a reload, the table of what each layer still waits for, and
``_layerwise_process``, which a rehearsal leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.logger import init_logger

from harness.transfer.errors import TransferFailed, TransferRefused
from harness.transfer.manifest import Manifest, Source
from harness.transfer.orders import Connect, Update
from harness.transfer.receiver import Named, Receiver
from harness.transfer.stream import CHUNK_BYTES, Staging, chunks
from harness.transfer.vllm_versions import refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

refuse_unknown(vllm.__version__)
logger = init_logger("vllm.harness.transfer")


class GlooWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """A worker's end, in vLLM's shape."""

    init_info_cls = Connect
    update_info_cls = Update
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        parallel = vllm_config.parallel_config
        index = parallel.data_parallel_index * parallel.world_size + parallel.rank
        # A worker that raises shifts the replies of its executor's other workers to later calls, so where
        # there are others a failure is told to the trainer, through the channel, and logged; it is not raised.
        self._may_raise = parallel.world_size == 1
        self.receiver = Receiver(LayerwiseModel(model, vllm_config.model_config), index + 1)

    def init_transfer_engine(self, init_info: Connect) -> None:
        try:
            self.receiver.connect(init_info)
        except TransferFailed as error:
            self._tell(str(error))

    def start_weight_update(self) -> None:
        self.receiver.start()

    def receive_weights(self, update_info: Update) -> None:
        failure = self.receiver.receive(update_info)
        if failure is not None and self._may_raise:
            self.receiver.is_open = False  # vLLM closes an update whose worker raised
        self._tell(failure)

    def finish_weight_update(self) -> None:
        self._tell(self.receiver.finish(), may_raise=False)  # or vLLM would think the update open for ever

    def shutdown(self) -> None:
        self.receiver.close()

    def _tell(self, failure: str | None, *, may_raise: bool = True) -> None:
        if failure is None:
            return
        logger.error("weight transfer: %s", failure)
        if may_raise and self._may_raise:
            raise TransferFailed(failure)


def load_colocated(llm: Any, source: Source) -> int:
    """Load a source's weights into an ``LLM`` whose worker is in this process: no transport, the same promises.

    Everything is copied aside and rehearsed first, so a source that fails leaves the engine as it was.

    Args:
        llm: a ``vllm.LLM`` made under ``VLLM_ENABLE_V1_MULTIPROCESSING=0``, on every trainer rank its own.
        source: iterated to its end on every rank.

    Returns:
        Number of tensors loaded.

    Raises:
        TransferRefused: the pass disagrees with its metadata, or the model does not take it.
        TransferFailed: the load itself failed; the engine refuses to serve until a load succeeds.
    """
    manifest = Manifest.of(source.metadata())
    staging = Staging(manifest)
    for chunk in chunks(source, manifest, CHUNK_BYTES):
        staging.place(chunk)
    config = llm.llm_engine.vllm_config

    def load(module: Any) -> None:
        model = LayerwiseModel(module, config.model_config)
        with set_current_vllm_config(config):
            model.rehearse(staging.tensors())
            try:
                model.load(staging.tensors())
            except Exception as error:
                model.refuse(str(error))
                raise TransferFailed(f"the load failed, and the engine refuses to serve: {error}") from error
        model.refuse(None)

    llm.apply_model(load)
    llm.reset_prefix_cache()
    return len(manifest.entries)


class LayerwiseModel:
    """A model of vLLM on one worker, loaded through layerwise reload.

    Args:
        model: the worker's module.
        model_config: vLLM's, for the layers that finish last.
    """

    def __init__(self, model: Any, model_config: Any) -> None:
        self._model, self._config = model, model_config

    def rehearse(self, named: Named) -> None:
        """Go through the motions of a load with tensors that have no bytes; the weights stay what they are.

        Raises:
            TransferRefused: the model does not take one of these tensors, or a layer would get nothing.
        """
        from vllm.model_executor.model_loader.reload import layerwise

        current = ""

        def weightless() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal current
            for name, tensor in named:
                current = f"{name} {list(tensor.shape)}"
                yield name, tensor.to("meta")

        processed = layerwise._layerwise_process  # noqa: SLF001 - the step that would write to the weights
        layerwise.initialize_layerwise_reload(self._model)
        layerwise._layerwise_process = lambda _layer, _info: None  # noqa: SLF001
        try:
            self._model.load_weights(weightless())
            missed = self._unfed(layerwise)
        except Exception as error:
            raise TransferRefused(
                f"the engine's model does not take {current}: {type(error).__name__}: {error}"
            ) from error
        finally:
            layerwise._layerwise_process = processed  # noqa: SLF001
            self._put_back(layerwise)
        if missed:
            raise TransferRefused(
                f"{len(missed)} of the engine's layers would get no weights, the first: {missed[0]}"
            )

    def _unfed(self, layerwise: Any) -> list[str]:
        """Layers with weights of their own that got nothing. A part may be padding, nothing cannot."""
        layers = [(name, layerwise.get_layerwise_info(layer)) for name, layer in self._model.named_modules()]
        waiting = [(name, info) for name, info in layers if info.can_load() and info.restore_metadata[0]]
        fed = {id(weight) for _, info in waiting if info.load_numel for weight in _weights(info)}
        return [
            name
            for name, info in waiting
            if not info.load_numel and any(id(weight) not in fed for weight in _weights(info))
        ]

    def _put_back(self, layerwise: Any) -> None:
        for layer in self._model.modules():
            info = layerwise.get_layerwise_info(layer)
            if info.can_load():
                layerwise._place_kernel_tensors(layer, info)  # noqa: SLF001
                info.reset()
        self._model._do_torchao_reload = self._model._original_do_torchao_reload  # noqa: SLF001
        layerwise.LOADING_LAYERS.clear()

    def load(self, named: Named) -> None:
        """Replace the model's weights, in place."""
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        initialize_layerwise_reload(self._model)
        try:
            self._model.load_weights(iter(named))
        finally:
            finalize_layerwise_reload(self._model, self._config)

    def refuse(self, reason: str | None) -> None:
        """Make every step of the model fail with ``reason``: vLLM then ends the engine, and says why in its log."""
        if reason is None:
            vars(self._model).pop("compute_logits", None)
            return

        def compute_logits(*_: object, **__: object) -> None:
            raise TransferFailed(
                f"this engine's weights are neither old nor new, and are not served: {reason}"
            )

        self._model.compute_logits = compute_logits


def _weights(info: Any) -> list[Any]:
    """The parameters that a layer had before the reload began; tied layers have the same ones."""
    return list(info.kernel_tensors[0].values())
