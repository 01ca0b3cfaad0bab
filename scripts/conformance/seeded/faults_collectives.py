"""Kernels with one fault in a collective, or in an instruction of GpSimd."""

from template import MARK, NEW, Kernel

_NL = "nki/api/nki/language/__init__.py"
_ISA = "nki/api/nki/isa/__init__.py"
_CC = "nki/api/nki/collectives/__init__.py"
_GUIDE = "nki/get-started/nki-language-guide.rst"
_LNC = "nki/get-started/about/lnc.rst"
_XY = ("x float32 128 64", "y float32 128 64")
_INTEGERS = ("x int32 128 64", "y int32 128 64")


def _collective(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """A collective of tensors in HBM `a`, `b` [128, 64] over one group of ranks."""
    body = f"""
a, b, group = hb((128, 64)), hb((128, 64)), ncc.ReplicaGroup([[0, 1]])
nisa.dma_copy(dst=a, src=x)
{setup}
{call}  {MARK}
return b
"""
    family = call.partition("(")[0].removeprefix("ncc.").strip()
    return Kernel(family, f"{_CC}:{line}", what, body, **({"args": _XY} | given))


def _gpsimd(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """An instruction of GpSimd on `a`, `b` [128, 64] into `d`."""
    body = f"""
a, b, d = nl.load(x), nl.load(y), sb((128, 64))
{setup}
{call}  {MARK}
return save(a)
"""
    family = call.partition("(")[0].removeprefix("nisa.").strip()
    return Kernel(family, f"{_ISA}:{line}", what, body, **({"args": _XY} | given))


KERNELS = (
    _collective(
        24,
        "HBM and SBUF mix",
        "ncc.all_reduce(srcs=[t], dsts=[b], replica_group=group, op=nl.add)",
        "t = nl.load(x)",
        on=NEW,
    ),
    _collective(
        31,
        "an operator that all_reduce has not",
        "ncc.all_reduce(srcs=[a], dsts=[b], replica_group=group, op=nl.$op)",
        on=NEW,
        vary={"op": ("multiply", "subtract")},
    ),
    _collective(
        32,
        "a priority before NeuronCore-v4",
        "ncc.all_reduce(srcs=[a], dsts=[b], replica_group=group, op=nl.add, priority=1)",
        on=("trn2",),
    ),
    _collective(
        25,
        "several tensors in SBUF",
        "ncc.all_reduce(srcs=[t, t], dsts=[u, v], replica_group=group, op=nl.add)",
        "t, u, v = nl.load(x), sb((128, 64)), sb((128, 64))",
        on=NEW,
    ),
    _collective(
        52,
        "HBM is gathered along another dimension",
        "ncc.all_gather(srcs=[a], dsts=[c], replica_group=group, collective_dim=1)",
        "c = hb((128, 128))",
        on=NEW,
    ),
    _collective(
        159,
        "another dimension is scattered",
        "ncc.reduce_scatter(srcs=[a], dsts=[c], replica_group=group, collective_dim=1, op=nl.add)",
        "c = hb((128, 32))",
        on=NEW,
    ),
    _collective(
        160,
        "an operator that reduce_scatter has not",
        "ncc.reduce_scatter(srcs=[a], dsts=[c], replica_group=group, collective_dim=0, "
        "op=nl.multiply)",
        "c = hb((64, 64))",
        on=NEW,
    ),
    _collective(
        173,
        "SBUF takes part",
        "ncc.all_to_all(srcs=[t], dsts=[u], replica_group=group, collective_dim=0)",
        "t, u = nl.load(x), sb((128, 64))",
        on=NEW,
    ),
    _collective(
        179,
        "another dimension is redistributed",
        "ncc.all_to_all(srcs=[a], dsts=[b], replica_group=group, collective_dim=1)",
        on=NEW,
    ),
    _collective(
        13,
        "groups overlap",
        "ncc.all_reduce(srcs=[a], dsts=[b], replica_group=ncc.ReplicaGroup([[0, 1], [1, 2]]), "
        "op=nl.add)",
        on=NEW,
    ),
    _collective(
        278,
        "several tensors are permuted",
        "ncc.collective_permute(srcs=[a, a], dsts=[b, c], source_target_pairs=[(0, 1), (1, 0)])",
        "c = hb((128, 64))",
        on=NEW,
    ),
    _collective(
        276,
        "SBUF is permuted",
        "ncc.collective_permute(srcs=[t], dsts=[u], source_target_pairs=[(0, 1), (1, 0)])",
        "t, u = nl.load(x), sb((128, 64))",
        on=NEW,
    ),
    _collective(
        315,
        "channels that do not count from 0",
        "ncc.collective_permute_implicit(srcs_by_channel=[[a]], dsts_by_channel=[[b]], "
        "replica_group=group, channel_ids=[$n])",
        on=NEW,
        vary={"n": ("1", "3")},
    ),
    _collective(
        311,
        "several tensors in a channel",
        "ncc.collective_permute_implicit(srcs_by_channel=[[a, a]], dsts_by_channel=[[b, c]], "
        "replica_group=group)",
        "c = hb((128, 64))",
        on=NEW,
    ),
    _collective(
        349,
        "an operator that the ring has not",
        "ncc.collective_permute_implicit_reduce(srcs0_by_channel=[[a]], srcs1_by_channel=[[a]], "
        "dsts_by_channel=[[b]], replica_group=group, op=nl.multiply)",
        on=NEW,
    ),
    _gpsimd(
        1697,
        "PSUM takes indices",
        "nisa.iota(dst=p, pattern=[[1, 64]])",
        "p = ps((128, 64), nl.int32)",
    ),
    _gpsimd(
        1719,
        "another number of elements",
        "nisa.iota(dst=e, pattern=[[1, $n]])",
        "e = sb((128, 64), nl.int32)",
        vary={"n": ("32", "65")},
    ),
    _gpsimd(
        1675,
        "five dimensions",
        "nisa.iota(dst=e, pattern=[[1, 2], [1, 2], [1, 2], [1, 2], [1, 4]])",
        "e = sb((128, 64), nl.int32)",
    ),
    _gpsimd(
        1769,
        "PSUM is masked",
        "nisa.affine_select(dst=d, pattern=[[1, 64]], channel_multiplier=-1, "
        "on_true_tile=in_psum(x), on_false_value=0.0)",
    ),
    _gpsimd(
        1792,
        "a pattern of another size",
        "nisa.affine_select(dst=d, pattern=[[1, 32]], "
        "channel_multiplier=-1, on_true_tile=a, on_false_value=0.0)",
    ),
    _gpsimd(
        1789,
        "other partitions",
        "nisa.affine_select(dst=d[0:64], pattern=[[1, 64]], "
        "channel_multiplier=-1, on_true_tile=a, on_false_value=0.0)",
    ),
    _gpsimd(
        1877,
        "partitions are no multiple of 16",
        "nisa.local_gather(dst=d[0:$n, 0:4], src_buffer=a[0:$n], index=g[0:$n])",
        "g = load(i, nl.uint16)",
        args=(*_XY, "i int32 128 4"),
        vary={"n": ("8", "40")},
    ),
    _gpsimd(
        1873,
        "indices of another type",
        "nisa.local_gather(dst=d[:, 0:4], src_buffer=a, index=g)",
        "g = load(i, nl.$dtype)",
        args=(*_XY, "i int32 128 4"),
        vary={"dtype": ("int32", "uint32", "int16")},
    ),
    _gpsimd(
        1880,
        "a number of elements that no gather has",
        "nisa.local_gather(dst=d[:, 0:12], src_buffer=a, index=g, num_elem_per_idx=$n)",
        "g = load(i, nl.uint16)",
        args=(*_XY, "i int32 128 4"),
        vary={"n": ("3", "64")},
    ),
    _gpsimd(
        1872,
        "a gather converts",
        "nisa.local_gather(dst=e, src_buffer=a, index=g)",
        "g, e = load(i, nl.uint16), sb((128, 4), nl.bfloat16)",
        args=(*_XY, "i int32 128 4"),
    ),
    _gpsimd(
        1853,
        "more valid indices than there are",
        "nisa.local_gather(dst=d[:, 0:4], src_buffer=a, index=g, num_valid_indices=65)",
        "g = load(i, nl.uint16)",
        args=(*_XY, "i int32 128 4"),
    ),
    _gpsimd(
        1921,
        "indices are signed",
        "nisa.nc_n_gather(dst=d, data=a, indices=g)",
        "g = load(i)",
        args=(*_XY, "i int32 128 64"),
    ),
    _gpsimd(
        1914,
        "PSUM is gathered",
        "nisa.nc_n_gather(dst=d, data=in_psum(x), indices=g)",
        "g = load(i)",
        args=(*_XY, "i uint32 128 64"),
    ),
    _gpsimd(
        1919,
        "a gather converts",
        "nisa.nc_n_gather(dst=e, data=a, indices=g)",
        "g, e = load(i), sb((128, 64), nl.bfloat16)",
        args=(*_XY, "i uint32 128 64"),
    ),
    _gpsimd(
        1931,
        "another number of results",
        "nisa.nc_n_gather(dst=d[:, 0:32], data=a, indices=g)",
        "g = load(i)",
        args=(*_XY, "i uint32 128 64"),
    ),
    _gpsimd(
        1932,
        "an index beyond the data",
        "nisa.nc_n_gather(dst=d, data=a, indices=g)",
        "g = sb((128, 64), nl.uint32); nisa.memset(g, value=$n)",
        vary={"n": ("64", "9999")},
    ),
    _gpsimd(
        2447,
        "several partitions of segments",
        "nisa.sequence_bounds(dst=e, segment_ids=s)",
        "s, e = sb((2, 8)), sb((2, 2, 8)); nisa.memset(s, value=1.0)",
    ),
    _gpsimd(
        2451,
        "segments of another type",
        "nisa.sequence_bounds(dst=e, segment_ids=s)",
        "s, e = sb((1, 8), nl.bfloat16), sb((1, 2, 8)); nisa.memset(s, value=1.0)",
    ),
    _gpsimd(
        3205,
        "nonzero_with_count on NeuronCore-v2",
        "nisa.nonzero_with_count(dst=e, src=a)",
        "e = sb((128, 65), nl.int32); nisa.memset(e, value=0)",
        on=("trn1",),
    ),
    _gpsimd(
        3247,
        "no room for the count",
        "nisa.nonzero_with_count(dst=e, src=a)",
        "e = sb((128, 64), nl.int32); nisa.memset(e, value=0)",
        on=NEW,
    ),
    _gpsimd(
        3249,
        "data of another type",
        "nisa.nonzero_with_count(dst=e, src=c)",
        "c, e = load(x, nl.$dtype), sb((128, 65), nl.int32); nisa.memset(e, value=0)",
        on=NEW,
        vary={"dtype": ("bfloat16", "int16")},
    ),
    _gpsimd(
        3250,
        "results of another type",
        "nisa.nonzero_with_count(dst=e, src=a)",
        "e = sb((128, 65), nl.$dtype); nisa.memset(e, value=0)",
        on=NEW,
        vary={"dtype": ("float32", "uint32")},
    ),
    _gpsimd(
        3335,
        "float32 is ranked",
        "nisa.topk(val_dst=v, idx_dst=e, src=a, n=64)",
        "v, e = sb((128, 8), nl.bfloat16), sb((128, 8), nl.uint32)",
    ),
    _gpsimd(
        3340,
        "fewer than 8 elements, or more results than elements",
        "nisa.topk(val_dst=v, idx_dst=e, src=c, n=$n)",
        "c, v, e = load(x, nl.bfloat16), sb((128, 16), nl.bfloat16), sb((128, 16), nl.uint32)",
        vary={"n": ("4", "12")},
    ),
    _gpsimd(
        3342,
        "more elements than src has",
        "nisa.topk(val_dst=v, idx_dst=e, src=c[:, 0:2], n=33)",
        "c, v, e = load(x, nl.bfloat16), sb((128, 8), nl.bfloat16), sb((128, 8), nl.uint32)",
    ),
    _gpsimd(
        3343,
        "partitions are no multiple of 16",
        "nisa.topk(val_dst=v[0:24], idx_dst=e[0:24], src=c[0:24], n=64)",
        "c, v, e = load(x, nl.bfloat16), sb((128, 8), nl.bfloat16), sb((128, 8), nl.uint32)",
    ),
    _gpsimd(
        3337,
        "indices are signed",
        "nisa.topk(val_dst=v, idx_dst=e, src=c, n=64)",
        "c, v, e = load(x, nl.bfloat16), sb((128, 8), nl.bfloat16), sb((128, 8), nl.int32)",
    ),
    _gpsimd(
        1249,
        "a reduction that GpSimd has not",
        "nisa.tensor_partition_reduce(dst=d[0:1], op=nl.$op, data=a)",
        vary={"op": ("multiply", "subtract")},
    ),
)
