"""Predicted time of a Program on the chip: costs of instructions, schedule, profile.

`docs/timing.md` explains the model. Layers: `constants` (numbers with their sources), `cost_*` (one
instruction by itself), `dependencies` (who waits for whom), `scheduler`, `profile`.
"""
