"""Drive a sync on all ranks: a failure on any of them is a failure on all, and none is left waiting."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from harness.sync.errors import SyncFailed
from harness.sync.exchange import Transfer
from harness.sync.round import Round
from harness.sync.source import WeightSource

Send = Callable[[str, Tensor], object]
_ACCOUNT_BYTES = 512  # of each rank's account of its failure


def push(source: WeightSource, send: Send | None, *, seconds: float = 600.0) -> int:
    """Hand every tensor of a pass to ``send``; collective, called on every rank.

    A rank on which ``send`` raises stops sending, and goes on taking part until every rank has heard of it.
    What a transport does with a round that it was given in part is its own affair; the model is whole on
    every rank, and the next push starts afresh.

    Args:
        source: the reference sources end early when a rank fails; any other source is exhausted first.
        send: called as ``send(name, tensor)`` where this rank is given tensors; None on ranks that send
            nothing.
        seconds: limit for each wait on a peer. A push that ends by this limit leaves exchanges unfinished in
            the process group, which cannot be used again.

    Returns:
        How many tensors this rank has sent.

    Raises:
        SyncRefused: the model cannot be synced right; on every rank, before any collective.
        SyncFailed: on every rank, if anything failed on any rank; names each and what happened there.
    """
    stream = source.begin(seconds) if hasattr(source, "begin") else iter(source)
    sent, failure = _drain(stream, send)
    if isinstance(stream, Round) and stream.agrees:
        return sent
    _agree(failure, seconds)
    return sent


def _drain(stream: Iterator[tuple[str, Tensor]], send: Send | None) -> tuple[int, Exception | None]:
    sent, failure = 0, None
    while True:
        try:
            name, tensor = next(stream)
        except StopIteration:
            return sent, failure
        except SyncFailed as error:
            if isinstance(stream, Round) and stream.agrees:
                raise
            return sent, failure or error
        except Exception as error:  # noqa: BLE001  a source of the user's: its peers must hear of it
            return sent, failure or error
        if send is None or failure is not None:
            continue
        try:
            send(name, tensor)
            sent += 1
        except Exception as error:  # noqa: BLE001  whatever a transport raises, the peers must hear of it
            failure = error
            if isinstance(stream, Round):
                stream.fail(error, f"sending {name}")
        del tensor


def _agree(failure: Exception | None, seconds: float) -> None:
    """Raise on every rank of the default group if any of them failed."""
    account = f"{type(failure).__name__}: {failure}" if failure is not None else ""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        accounts = [account]
    else:
        accounts = _exchange_accounts(account, seconds)
    told = [f"rank {rank} failed: {text}" for rank, text in enumerate(accounts) if text]
    if told:
        raise SyncFailed("; ".join(told)) from failure


def _exchange_accounts(account: str, seconds: float) -> list[str]:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    table = torch.zeros(dist.get_world_size(), _ACCOUNT_BYTES, dtype=torch.uint8, device=device)
    encoded = account.encode(errors="replace")[:_ACCOUNT_BYTES]
    if encoded:
        table[dist.get_rank(), : len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8).to(
            device
        )
    try:
        Transfer([dist.all_reduce(table, async_op=True)], [table]).wait(seconds)
    except RuntimeError as error:
        raise SyncFailed(f"the ranks could not tell each other how the push went: {error}") from error
    return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in table.cpu()]
