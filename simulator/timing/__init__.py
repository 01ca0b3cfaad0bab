"""Predicted time of a Program on the chip: schedule, profile, error band.

`docs/timing.md` explains the model. Layers, over `simulator/costs` (one instruction by itself):
`dependencies` (who waits for whom) over `overlap_grid` and `placement`, `machine` and `resources`
(discrete events) with `repeats` and `steady_state` (repetition), `scheduler` and its result
`schedule`; then `profile` and what shows it. `band` is how far predictions are off.
"""
