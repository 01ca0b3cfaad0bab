"""Collectives as NKI kernels over two-dimensional tensors; loaded as a twin."""

import nki
import nki.collectives as ncc
import nki.language as nl


@nki.jit
def all_reduce(x, groups, op):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    how = nl.add if op == "sum" else nl.maximum
    ncc.all_reduce([x], [out], ncc.ReplicaGroup(groups), op=how)
    return out


@nki.jit
def all_gather_into_tensor(x, groups):
    shape = (x.shape[0] * len(groups[0]), x.shape[1])
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.all_gather([x], [out], ncc.ReplicaGroup(groups), collective_dim=0)
    return out


@nki.jit
def reduce_scatter_tensor(x, groups):
    shape = (x.shape[0] // len(groups[0]), x.shape[1])
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.reduce_scatter([x], [out], ncc.ReplicaGroup(groups), collective_dim=0, op=nl.add)
    return out


@nki.jit
def all_to_all_single(x, groups):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.all_to_all([x], [out], ncc.ReplicaGroup(groups), collective_dim=0)
    return out
