"""Random PyTorch programs, and what must hold of them under `torch.compile(backend="trnx")`.

`program` is a program as data and as source, `operations` what its lines may be, `builder` draws
one, `layers` and `layer_builder` do so with parts of models, `differential` compares a program with
eager, `shrink` takes away what a failure does not need.
"""
