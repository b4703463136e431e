"""What a rank begins is recorded in order, and ranks that differ are told."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from harness.conformance.sync.test_peers import compare_collectives, compare_messages
from harness.conformance.sync.traffic import Begun, recorded
from harness.conformance.verdict import Violation

BOTH = (0, 1)


@pytest.mark.ranks(2)
def test_collectives_and_messages_are_recorded_in_order_and_only_while_the_block_lasts(rank):
    before = dict(vars(ProcessGroup))
    other = 1 - rank.rank
    with recorded() as begun:
        dist.all_reduce(torch.ones(3))
        works = [dist.isend(torch.ones(2), other), dist.irecv(torch.empty(2), other)]
        for work in works:
            work.wait()
        dist.all_gather_into_tensor(torch.empty(2), torch.ones(1))
    dist.all_reduce(torch.ones(1))
    assert vars(ProcessGroup) == before
    assert [each.peer for each in begun] == [None, other, other, None]
    assert [each.operation for each in begun[:3]] == ["allreduce", "send", "recv"]
    assert begun[0].nbytes == 12
    assert begun[0].members == BOTH


@pytest.mark.ranks(2)
def test_the_gather_of_a_dtensor_is_recorded(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    cut = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    with recorded() as begun:
        cut.full_tensor()
    assert [each.operation for each in begun] == ["all_gather_into_tensor"]
    assert begun[0].members == BOTH


def collective(operation, group="world"):
    return Begun(operation, group, BOTH, 4)


def test_two_ranks_that_interleave_two_groups_differently_are_told():
    one = [collective("allreduce"), collective("broadcast", "engine")]
    with pytest.raises(Violation, match=r"collective 0 of a round is allreduce .* on rank 0 and broadcast"):
        compare_collectives(0, one, 1, one[::-1])
    compare_collectives(0, one, 1, list(one))


def test_a_collective_that_one_rank_never_begins_is_told():
    with pytest.raises(
        Violation, match=r"collective 1 of a round is barrier .* on rank 0 and none on rank 1"
    ):
        compare_collectives(0, [collective("allreduce"), collective("barrier")], 1, [collective("allreduce")])


def test_collectives_of_others_do_not_count():
    alone = Begun("allreduce", "mine", (0,), 4)
    compare_collectives(0, [alone, collective("barrier")], 1, [collective("barrier")])


def test_messages_that_are_received_in_another_order_are_told():
    sent = [Begun("send", "world", BOTH, size, 1) for size in (4, 8)]
    received = [Begun("recv", "world", BOTH, size, 0) for size in (8, 4)]
    with pytest.raises(Violation, match="message 0 from rank 0 to rank 1"):
        compare_messages(0, sent, 1, received)
    compare_messages(0, sent, 1, received[::-1])
