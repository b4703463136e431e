"""The releases of vLLM that the bridge was written against and is tested with."""

from harness.transfer.errors import TransferRefused

VERSIONS = ("0.32",)
BACKEND = "gloo"


def refuse_unknown(version: str) -> None:
    """Let through only releases that this bridge was written against.

    Raises:
        TransferRefused: another one, with those that would do.
    """
    if not any(version == known or version.startswith(f"{known}.") for known in VERSIONS):
        raise TransferRefused(
            f"the weight-transfer engine {BACKEND!r} is written against vLLM {', '.join(VERSIONS)} and this is vLLM"
            f" {version}, whose contract may differ: install one of those, or another backend"
        )
