"""Checks of the simulator that are more than a condition in an instruction, one module each."""
