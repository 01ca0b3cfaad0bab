"""`trnx.device`: the first hour on a device. `collect.py` runs the tasks of `tasks.py` and
`measures.py` in processes of `worker.py` and packs what they found; `report.py` compares an archive
with what trnx predicts (`fit.py`), anywhere."""
