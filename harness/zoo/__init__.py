"""The zoo: subjects with one known bug each, and controls, which are unusual and right.

A check counts once it has failed the mutant that is meant for it and passed the controls.
"""

from harness.zoo.mutant import Control, Mutant, controls, mutants

__all__ = ["Control", "Mutant", "controls", "mutants"]
