"""`trnx check`: what a kernel promises, tried out before it is used.

`cases.py` makes inputs of a kernel's samples, `compare.py` says what is wrong with a result,
`engine.py` runs the checks of a list of specs on each target, `selection.py` asks whether
torch.compile takes the kernel, `report.py` is the table.
"""
