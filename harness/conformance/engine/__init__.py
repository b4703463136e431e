"""Checks of a whole road: a trainer's ranks, a transfer, an engine, and the tokens that come out of it.

The modules are in the order in which they run: those that end a server come last.
"""

CHECK_MODULES = ("test_serving", "test_versions", "test_requests", "test_transfer_faults", "test_processes")
