"""What this machine cannot run, and the reason: such a test is skipped with it, before any process starts."""

from harness.ranks.marker import RankSpec


def unavailable(spec: RankSpec) -> str | None:
    """Why tests of a specification cannot run here, or None when they can."""
    if spec.device != "cuda":
        return None
    import torch
    import torch.distributed as dist

    wanted = f"backend={spec.backend!r}, device='cuda'"
    if not torch.cuda.is_available():
        return f"ranks({wanted}): this machine has no CUDA device that torch can use"
    if spec.backend == "nccl" and not dist.is_nccl_available():
        return f"ranks({wanted}): this build of torch has no NCCL"
    devices = torch.cuda.device_count()
    if spec.backend == "nccl" and devices < spec.world_size:
        return (
            f"ranks({spec.world_size}, {wanted}): NCCL wants a GPU for every rank, and there are {devices}; "
            "backend='gloo' shares one"
        )
    return None
