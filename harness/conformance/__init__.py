"""The checks: what an implementation of weight sync or worker IPC must hold, run as pytest modules.

``harness check`` runs them and prints a scoreboard; ``pytest --pyargs harness.conformance --subject NAME`` runs the
same modules under plain pytest.
"""
