"""Off the device: a model's plan as a folder (`trnx.export`), and back (`trnx.load`).

`capture.py` makes the plan with torch.export, `write.py` the folder: `manifest.json`
(`manifest.py`, `plan_json.py`), `graph.pt2` (`archive.py`, a torch.export archive), the kernels'
sources (`sources.py`) and StableHLO. `load.py` runs it. Nothing from a folder is unpickled or
executed: the archive is read by `archive_reader.py` and `graph_reader.py`, as JSON and raw tensors,
and kernels are those of this installation, whose sources have to be equal to the folder's.
"""
