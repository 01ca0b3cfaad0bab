"""Predicted time of a Program on the chip: costs of instructions, schedule, profile, error band.

`docs/timing.md` explains the model. Layers: `constants` (numbers with their sources), `cost_*` (one
instruction by itself), `dependencies` (who waits for whom) over `cells` and `placement`, `machine`
and `resources` (discrete events) with `periods` and `steady` (repetition), `scheduler` and its
result `schedule`; then `profile` and what shows it. `band` is how far predictions are off.
"""
