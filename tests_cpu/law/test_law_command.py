"""The law at real shapes: what is counted is what the code makes, and what cannot be computed is a sentence."""

import json

import pytest

from harness.errors import UsageError
from harness.law import Model, Request, Row, read, rows, standard
from harness.law.table import document, table

GIB = 1 << 30
SMALL = {  # of layers; nobody would allocate its 19 GiB here
    "model_type": "llama",
    "vocab_size": 262144,
    "num_hidden_layers": 2,
    "hidden_size": 16384,
    "intermediate_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


@pytest.fixture(scope="module")
def request_():
    return Request([Model("small", "here", SMALL)], worlds=(2, 8))


@pytest.fixture(scope="module")
def found(request_):
    return {(row.world_size, row.path): row for row in rows(request_)}


@pytest.mark.timeout(300)
def test_the_shard_is_the_model_and_its_adapter_over_the_ranks(found):
    two, eight = found[2, "reference"], found[8, "reference"]
    assert two.model_bytes > 18 * GIB
    assert two.model_bytes / 2 < two.shard_bytes < 1.02 * two.model_bytes / 2
    assert eight.shard_bytes == pytest.approx(two.shard_bytes / 4, rel=1e-3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", [2, 8])
def test_the_reference_holds_one_tensor_and_the_full_gathers_the_model(found, world):
    largest, model = found[world, "reference"].largest_bytes, found[world, "reference"].model_bytes
    assert largest < found[world, "reference"].peak_bytes < 1.25 * largest
    assert found[world, "reference, sends only"].peak_bytes < 0.25 * largest
    assert found[world, "full gather"].peak_bytes > model
    assert found[world, "trl"].peak_bytes > model


@pytest.mark.timeout(300)
def test_the_document_says_what_is_computed_and_the_table_draws_it(found, request_):
    from rich.console import Console

    written = json.loads(json.dumps(document(request_, list(found.values()))))
    assert "fake tensors" in written["computed"]
    assert "arithmetic" in written["arithmetic"]
    assert [entry["fits"]["141"] for entry in written["rows"]] == [row.fits(141) for row in found.values()]
    console = Console(width=140, record=True, file=None, quiet=True)
    console.print(table(request_, list(found.values())))
    assert {entry["path"] for entry in written["rows"]} == {row.path for row in found.values()}


@pytest.mark.timeout(300)
def test_a_configuration_that_makes_no_model_is_a_sentence():
    broken = Model("broken", "here", SMALL | {"hidden_size": "wide"})
    with pytest.raises(UsageError, match="here: transformers and PEFT make no model of this configuration"):
        rows(Request([broken], worlds=(2,)))


def test_a_card_fits_what_is_on_it_and_not_more():
    row = Row("m", 8, "reference", 0, 0, 50_000_000_000, 30_000_000_000)
    assert row.fits(80)
    assert not row.fits(79)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no file .*: expected a model's config.json"),
        ("{", "is not JSON"),
        ("[]", 'has no "model_type"'),
        ('{"hidden_size": 8}', 'has no "model_type"'),
        ('{"model_type": "no-such"}', "knows no causal language model of type 'no-such'"),
        ('{"model_type": "llama", "quantization_config": {"bits": 4}}', "is of a quantised model"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_sentence(tmp_path, content, sentence):
    place = tmp_path / "config.json"
    if content is not None:
        place.write_text(content)
    with pytest.raises(UsageError, match=sentence):
        read(place)


def test_a_folder_with_a_configuration_is_named_by_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(SMALL))
    assert read(tmp_path / "mine").name == "mine"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"dtype": "int4"}, "unknown dtype 'int4': expected one of bf16, fp16, fp32"),
        ({"adapter_rank": 0}, "a rank is at least 1"),
        ({"worlds": (8, 0)}, "each at least 1"),
        ({"worlds": ()}, "at least one"),
        ({"cards": (0,)}, "at least 1 GB"),
    ],
)
def test_a_wrong_request_is_a_sentence(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        Request(standard(), **wrong)


def test_the_standard_models_are_those_of_the_paper():
    assert [model.config["num_hidden_layers"] for model in standard()] == [32, 80, 126]
    assert all("arXiv:2407.21783" in model.source for model in standard())
