"""Found by vLLM through the entry point ``vllm.general_plugins``, in every process that it starts.

It must cost nothing and break nothing where another backend is used, so the engine is only named here; an unknown
release of vLLM is refused by the engine when a user asks for this backend.
"""


def register() -> None:
    """Make ``weight_transfer_config={"backend": "gloo"}`` known. Loading the plugin twice does nothing twice."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from harness.transfer.vllm_versions import BACKEND

    if BACKEND not in WeightTransferEngineFactory._registry:  # noqa: SLF001 - it has no other way to ask
        WeightTransferEngineFactory.register_engine(
            BACKEND, "harness.transfer.vllm_bridge", "GlooWeightTransferEngine"
        )
