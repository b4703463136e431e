"""Only releases of vLLM that the bridge was written against are let through."""

import pytest

from harness.transfer import TransferRefused
from harness.transfer.vllm_versions import refuse_unknown


@pytest.mark.parametrize("version", ["0.32.0", "0.32", "0.32.1+cpu"])
def test_a_known_release_is_let_through(version):
    refuse_unknown(version)


@pytest.mark.parametrize("version", ["0.33.0", "0.3", "0.320.0", "0.26.0", "dev"])
def test_another_release_is_refused_with_those_that_would_do(version):
    with pytest.raises(TransferRefused, match=rf"written against vLLM 0\.32 and this is vLLM {version}"):
        refuse_unknown(version)
