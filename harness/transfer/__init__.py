"""Weights from a sharded trainer into a running inference engine over gloo, without a GPU.

``TrainerEngine`` sends any weight source; ``Receiver`` is an engine worker's end; ``harness.transfer.vllm_bridge``
makes that a weight-transfer engine of vLLM, which vLLM finds under the name ``gloo`` once this package is installed.
"""

from harness.transfer.control import EngineControl, HttpEngine, LocalEngine
from harness.transfer.errors import TransferFailed, TransferRefused
from harness.transfer.manifest import Source
from harness.transfer.peers import Alone, GroupPeers, Peers
from harness.transfer.trainer import Sent, TrainerEngine

__all__ = [
    "Alone",
    "EngineControl",
    "GroupPeers",
    "HttpEngine",
    "LocalEngine",
    "Peers",
    "Sent",
    "Source",
    "TrainerEngine",
    "TransferFailed",
    "TransferRefused",
]
