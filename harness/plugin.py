"""The pytest entry point: options, markers and fixtures come from the packages named here; no logic of its own."""

pytest_plugins = ["harness.ranks.plugin"]
