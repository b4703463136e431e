"""A consumer that raises, at every yield there is."""

import pytest
from sync_models import adapted, assert_untouched, assert_yields, llama, merged, snapshot

from harness.sync import ModuleGatherSource


class Broken(Exception):
    """What the consumer raises."""


def consume(source, stop):
    for index, _ in enumerate(source, start=1):
        if index == stop:
            raise Broken


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_consumer_that_raises_at_any_yield_leaves_the_model_whole(method):
    from peft import LoraConfig

    model = adapted(llama(), LoraConfig(target_modules="all-linear", use_dora=method == "dora"))
    expected, before = merged(model), snapshot(model)
    for stop in range(1, len(expected) + 1):
        with pytest.raises(Broken):
            consume(ModuleGatherSource(model), stop)
        assert_untouched(model, before)
    assert_yields(ModuleGatherSource(model), expected)
