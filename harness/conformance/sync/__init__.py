"""Checks of weight sync: does what the trainer yields equal what the engine should serve, at what cost?"""

CHECK_MODULES = (
    "test_stream",
    "test_adapters",
    "test_lifetime",
    "test_restoration",
    "test_rounds",
    "test_failures",
    "test_memory",
    "test_scale",
    "test_peers",
    "test_buckets",
)
