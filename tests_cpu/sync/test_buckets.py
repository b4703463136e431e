"""Buckets hold what the stream gave, in its order, sized by true sizes."""

import pytest
import torch
from peft import LoraConfig
from sync_models import adapted, llama, merged, same_bits

from harness.errors import UsageError
from harness.sync import ModuleGatherSource, ParamMeta, SyncFailed, bucketed
from harness.sync.buckets import plan_buckets


class Listed:
    """A source that says one thing and streams another."""

    def __init__(self, announced, streamed):
        self.announced, self.streamed = announced, streamed

    def metadata(self):
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.announced]

    def __iter__(self):
        return iter(self.streamed)


@pytest.mark.parametrize("nbytes", [4, 5000, 1 << 30])
def test_a_round_trip_through_buckets_changes_nothing(nbytes):
    model = adapted(llama(), LoraConfig(r=4, target_modules="all-linear"))
    expected = merged(model)
    found = [pair for bucket in bucketed(ModuleGatherSource(model), nbytes) for pair in bucket.tensors()]
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(same_bits(got, want) for (_, got), (_, want) in zip(found, expected, strict=True))


def test_no_bucket_is_larger_than_asked_unless_one_tensor_is():
    source = ModuleGatherSource(llama())
    for bucket in bucketed(source, 5000):
        assert bucket.buffer.nbytes <= 5000 or len(bucket.entries) == 1
        assert bucket.buffer.nbytes < sum(entry.nbytes + 16 for entry in bucket.entries)


def test_dtypes_mix_and_scalars_fit():
    pairs = [
        ("a", torch.ones(3, dtype=torch.bfloat16)),
        ("b", torch.ones((), dtype=torch.float64)),
        ("c", torch.zeros(0)),
    ]
    (bucket,) = bucketed(Listed(pairs, pairs), 1000)
    assert all(same_bits(got, want) for (_, got), (_, want) in zip(bucket.tensors(), pairs, strict=True))


def test_a_bucket_keeps_its_bytes_when_the_tensor_changes():
    tensor = torch.ones(4)
    (bucket,) = bucketed(Listed([("a", tensor)], [("a", tensor)]), 1000)
    tensor.zero_()
    assert bucket.tensors()[0][1].tolist() == [1, 1, 1, 1]


def test_a_bucket_smaller_than_an_element_is_refused():
    with pytest.raises(UsageError, match="smaller than one element: 4 bytes"):
        bucketed(ModuleGatherSource(llama()), 3)


def test_a_stream_that_differs_from_its_metadata_is_found():
    a, b = ("a", torch.ones(2)), ("b", torch.ones(2))
    for streamed, said in [
        ([b, a], "gave b .* where its metadata announces a"),
        ([a], "ended where its metadata announces b"),
        ([a, b, a], "goes on with a"),
        ([("a", torch.ones(3)), b], r"gave a \(3,\)"),
    ]:
        with pytest.raises(SyncFailed, match=said):
            list(bucketed(Listed([a, b], streamed), 1000))


def test_a_rank_that_is_given_nothing_has_no_buckets():
    assert list(bucketed(Listed([("a", torch.ones(2))], []), 1000)) == []


def test_planning_needs_no_tensor():
    metas = [ParamMeta(name, torch.float32, (64,)) for name in "abcd"]
    assert [[meta.name for meta in group] for group in plan_buckets(metas, 600)] == [["a", "b"], ["c", "d"]]
