"""Conformance and benchmark suite for weight sync and worker IPC in RL post-training.

Importing this package imports nothing heavy: torch, DeepSpeed, PEFT and vLLM are imported by the modules
that use them, when they use them.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
