"""Whether this pytest was started by torchrun: asked by every session, so nothing is imported here."""

import os


def attached() -> bool:
    """Whether torchrun started this process as one of several, and it is not itself a rank of ours."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ and "WORLD_SIZE" in os.environ


def attached_rank() -> int:
    """This process's rank under torchrun."""
    return int(os.environ["RANK"])
