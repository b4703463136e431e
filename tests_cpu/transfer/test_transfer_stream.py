"""The stream is cut at a fixed size whatever the tensors are, and rebuilt byte for byte."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.transfer import TransferRefused
from harness.transfer.manifest import Manifest
from harness.transfer.stream import Staging, chunks
from tests_cpu.transfer.engine_stand_in import ListSource, tensors

SHAPE = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPE = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int8])


@given(st.lists(st.tuples(SHAPE, DTYPE), min_size=1, max_size=8), st.integers(1, 64))
def test_what_is_staged_is_what_was_yielded_and_no_chunk_is_larger_than_asked(layout, size):
    source = ListSource({f"t{i}": torch.randn(s).to(d) for i, (s, d) in enumerate(layout)})
    manifest = Manifest.of(source.metadata())
    staging = Staging(Manifest.from_json(manifest.to_json()))
    for chunk in chunks(source, manifest, size):
        assert 0 < chunk.numel() <= size
        staging.place(chunk.clone())
    staged = dict(staging.tensors())
    assert list(staged) == list(source.tensors)
    for name, tensor in source.tensors.items():
        assert torch.equal(staged[name], tensor)


def test_bytes_are_taken_at_the_yield_so_a_source_may_change_them_afterwards():
    def merging_source():
        weight = torch.ones(8)
        yield "w", weight
        weight.zero_()  # as an unmerge in place does

    manifest = Manifest.of(ListSource({"w": torch.ones(8)}).metadata())
    staging = Staging(manifest)
    for chunk in chunks(merging_source(), manifest, 1 << 20):
        staging.place(chunk)
    assert torch.equal(staging.tensors()[0][1], torch.ones(8))


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        ({"a": torch.zeros(2)}, "ended after 1: b never came"),
        ({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}, "yielded another one, c"),
        ({"b": torch.zeros(3), "a": torch.zeros(2)}, "tensor 0: metadata"),
        ({"a": torch.zeros(2), "b": torch.zeros(4)}, r"tensor 1: metadata\(\) declares b \(float32 \[3\]\)"),
        ({"a": torch.zeros(2), "b": torch.zeros(3).bfloat16()}, "bfloat16"),
    ],
)
def test_a_pass_that_disagrees_with_its_metadata_is_refused_by_the_first_tensor_that_does(passed, words):
    manifest = Manifest.of(ListSource({"a": torch.zeros(2), "b": torch.zeros(3)}).metadata())
    with pytest.raises(TransferRefused, match=words):
        list(chunks(passed.items(), manifest, 16))


def test_a_manifest_without_tensors_or_with_one_twice_is_refused():
    with pytest.raises(TransferRefused, match="declares no tensor"):
        Manifest.of([])
    twice = ListSource({"a": torch.zeros(2)}).metadata() * 2
    with pytest.raises(TransferRefused, match="declares a twice"):
        Manifest.of(twice)


@pytest.mark.parametrize("row", [["w"], ["w", "float99", [2]], ["w", "zeros", [2]], ["w", "float32", ["x"]]])
def test_a_row_that_describes_no_tensor_is_refused(row):
    with pytest.raises(TransferRefused):
        Manifest.from_json([row])


def test_more_or_fewer_bytes_than_declared_are_refused():
    staging = Staging(Manifest.of(ListSource({"a": torch.zeros(2)}).metadata()))
    with pytest.raises(TransferRefused, match="0 of 8 bytes arrived"):
        staging.tensors()
    with pytest.raises(TransferRefused, match="9 bytes arrived, the manifest has 8"):
        staging.place(torch.zeros(9, dtype=torch.uint8))
    assert tensors(1.0)["scale"].shape == ()
