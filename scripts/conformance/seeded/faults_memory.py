"""Kernels with one fault in what lies where: memory, views, bounds, unwritten tiles, DMA."""

from template import MARK, NEW, OLD, Kernel

_ISA = "nki/api/nki/isa/__init__.py"
_NL = "nki/api/nki/language/__init__.py"
_GUIDE = "nki/get-started/nki-language-guide.rst"
_ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"


def _line(
    family: str, source: str, what: str, line: str, before: str = "", **given: object
) -> Kernel:
    """A kernel with the tiles `a`, `b` [128, 64], in which one line is wrong."""
    setup = "\n".join(before.split("; ")) if before else ""
    result = given.pop("result", "a")
    body = f"""
a, b = load(x), load(y)
{setup}
{line}  {MARK}
return save({result})
"""
    args = ("x float32 128 64", "y float32 128 64")
    return Kernel(family, source, what, body, **({"args": args} | given))


def _dma(line: int, what: str, call: str, before: str = "", **given: object) -> Kernel:
    return _line("dma", f"{_ISA}:{line}", what, call, before, **given)


def _view(line: int, what: str, view: str, before: str = "", **given: object) -> Kernel:
    return _line("views", f"{_NL}:{line}", what, f"v = {view}", before, **given)


def _unwritten(what: str, call: str, before: str = "", **given: object) -> Kernel:
    """`u` is unwritten; the kernel gives `b` back."""
    before = "; ".join(filter(None, ("u = sb((128, 64))", before)))
    return _line("unwritten", f"{_GUIDE}:358", what, call, before, result="b", **given)


_INDEXED = ("x float32 128 64", "y float32 128 64", "i int32 128 1")
_ROWS = "g = sb((128, 64)); r = load(i, nl.uint32)"

KERNELS = (
    _dma(
        289,
        "numbers of elements differ",
        "nisa.dma_copy(dst=a[$cut], src=x)",
        vary={"cut": ("0:64", ":, 0:32")},
    ),
    _dma(
        272,
        "PSUM is moved",
        "nisa.dma_copy(dst=$dst, src=$src)",
        "p = in_psum(x)",
        vary={"dst": ("a", "x"), "src": ("p",)},
    ),
    _dma(272, "data goes to PSUM", "nisa.dma_copy(dst=p, src=x)", "p = ps((128, 64))"),
    _dma(371, "a priority before NeuronCore-v4", "nisa.dma_copy(dst=a, src=x, priority=1)", on=OLD),
    _dma(
        371,
        "a priority that does not exist",
        "nisa.dma_copy(dst=a, src=x, priority=$n)",
        on=("trn3",),
        vary={"n": ("4", "-1")},
    ),
    _dma(
        372,
        "hardware DGE on NeuronCore-v2",
        "nisa.dma_copy(dst=a, src=x, dge_mode=nisa.dge_mode.hwdge)",
        on=("trn1",),
    ),
    _dma(
        382,
        "an engine without hardware DGE",
        "nisa.dma_copy(dst=a, src=x, engine=nisa.engine.$engine)",
        vary={"engine": ("sync", "scalar")},
    ),
    _dma(
        381,
        "an engine that makes no descriptors",
        "nisa.dma_copy(dst=a, src=x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.$engine)",
        on=NEW,
        vary={"engine": ("vector", "gpsimd", "tensor")},
    ),
    _dma(
        304,
        "an index per partition into SBUF",
        "nisa.dma_copy(dst=g, src=a.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0))",
        _ROWS,
        args=_INDEXED,
    ),
    _dma(
        310,
        "two kinds of indices",
        "nisa.dma_copy(dst=g, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "scalar_offset=r[0:1, 0:1], indirect_dim=0))",
        _ROWS,
        args=_INDEXED,
    ),
    _dma(
        270,
        "an index beyond the rows",
        "nisa.dma_copy(dst=g, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0))",
        "g = sb((128, 64)); r = sb((128, 1), nl.uint32); nisa.memset(r, value=$n)",
        vary={"n": ("128", "4000")},
    ),
    _dma(
        270,
        "a row that a register names beyond the tensor",
        "nisa.dma_copy(dst=a[0:1], src=x.ap(pattern=[[64, 1], [1, 64]], scalar_offset=q, "
        "indirect_dim=0))",
        "q = nisa.register_alloc($n)",
        vary={"n": ("128", "1000")},
    ),
    _dma(
        303,
        "fewer indices than partitions",
        "nisa.dma_copy(dst=g, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r[0:64], "
        "indirect_dim=0))",
        _ROWS,
        args=_INDEXED,
    ),
    _dma(
        994,
        "a transpose changes the type",
        "nisa.dma_transpose(dst=t, src=x, axes=(1, 0))",
        "t = sb((64, 128), nl.bfloat16)",
    ),
    _dma(
        995,
        "an order of axes that does not exist",
        "nisa.dma_transpose(dst=t, src=z, axes=$axes)",
        "t = sb($shape)",
        args=("x float32 128 64", "y float32 128 64", "z float32 16 4 8"),
        vary={"axes": ("(0, 2, 1)", "(1, 2, 0)"), "shape": ("(16, 8, 4)", "(4, 8, 16)")},
    ),
    _dma(
        992,
        "a transpose goes to HBM",
        "nisa.dma_transpose(dst=t, src=x, axes=(1, 0))",
        "t = hb((64, 128))",
    ),
    _dma(
        992,
        "a transpose goes to PSUM",
        "nisa.dma_transpose(dst=t, src=x, axes=(1, 0))",
        "t = ps((64, 128))",
    ),
    _dma(
        887,
        "a transpose by hardware of four bytes",
        "nisa.dma_transpose(dst=t, src=z, axes=(1, 0), dge_mode=nisa.dge_mode.hwdge)",
        "t = sb((64, 16))",
        on=NEW,
        args=("x float32 128 64", "y float32 128 64", "z float32 16 64"),
    ),
    _dma(
        879,
        "a plain transpose by software DGE",
        "nisa.dma_transpose(dst=t, src=x, axes=(1, 0), dge_mode=nisa.dge_mode.swdge)",
        "t = sb((64, 128))",
    ),
    _dma(
        895,
        "a gathering transpose of four bytes",
        "nisa.dma_transpose(dst=t, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0), axes=(1, 0))",
        "t = sb((64, 128)); r = load(i, nl.uint32)",
        on=NEW,
        args=_INDEXED,
    ),
    _dma(
        903,
        "a gathering transpose with signed indices",
        "nisa.dma_transpose(dst=t, src=z.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0), axes=(1, 0))",
        "t = sb((64, 128), nl.bfloat16); r = load(i)",
        on=NEW,
        args=(*_INDEXED, "z bfloat16 128 64"),
    ),
    _dma(
        905,
        "a gathering transpose on NeuronCore-v2",
        "nisa.dma_transpose(dst=t, src=z.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0), axes=(1, 0))",
        "t = sb((64, 128), nl.bfloat16); r = load(i, nl.uint32)",
        on=("trn1",),
        args=(*_INDEXED, "z bfloat16 128 64"),
    ),
    _dma(
        2688,
        "a DMA product",
        "nisa.dma_compute(dst=b, srcs=[a, x], reduce_op=nl.$op)",
        vary={"op": ("multiply", "maximum")},
    ),
    _dma(
        2689,
        "a scale that is not 1",
        "nisa.dma_compute(dst=b, srcs=[a, x], reduce_op=nl.add, scales=[1.0, $n])",
        vary={"n": ("2.0", "0.5")},
    ),
    _dma(
        2732,
        "more than 16 sources",
        "nisa.dma_compute(dst=b, srcs=[x] * $n, reduce_op=nl.add)",
        vary={"n": ("17", "32")},
    ),
    _dma(
        2731,
        "a source of another size",
        "nisa.dma_compute(dst=b, srcs=[a, x[0:64]], reduce_op=nl.add)",
    ),
    _line("dma", f"{_NL}:2576", "a load from SBUF", "t = nl.load(a)"),
    _line("dma", f"{_NL}:2588", "a store to SBUF", "nl.store(a, value=b)"),
    _view(
        235,
        "no permutation",
        "h.permute($dims)",
        "h = a.reshape((128, 4, 16))",
        vary={"dims": ("(0, 1)", "(0, 1, 1)")},
    ),
    _view(236, "the partition dimension moves", "a.permute((1, 0))"),
    _view(256, "a dimension of several elements is broadcast", "a.broadcast(1, 128)"),
    _view(257, "partitions are broadcast", "a[0:1].broadcast(0, 128)"),
    _view(274, "a dimension before the partitions", "a.expand_dim(0)"),
    _view(292, "a dimension of several elements is dropped", "a.squeeze_dim(1)"),
    _view(293, "the partition dimension is dropped", "a[0:1].squeeze_dim(0)"),
    _view(
        303,
        "parts that do not fill a dimension",
        "a.reshape_dim(1, $shape)",
        vary={"shape": ("(4, 15)", "(3, -1)")},
    ),
    _view(315, "partitions are split", "a.reshape_dim(0, (2, 64))"),
    _view(
        338,
        "dimensions with gaps are merged",
        "h$view.flatten_dims(1, 2)",
        "h = a.reshape((128, 4, 16))",
        vary={"view": ("[:, :, 0:8]", ".permute((0, 2, 1))")},
    ),
    _view(339, "partitions are merged", "a.flatten_dims(0, 1)"),
    _view(350, "another number of elements", "a.reshape((128, $n))", vary={"n": ("32", "65")}),
    _view(363, "partitions become columns", "a.reshape((64, 128))"),
    _view(
        365,
        "a view with gaps is reshaped",
        "a[:, 0:32:2].reshape((128, 4, 4)).flatten_dims(1, 2).view(nl.bfloat16)",
    ),
    _view(
        410,
        "a slice leaves its dimension",
        "a.slice(1, $start, $end)",
        vary={"start": ("32",), "end": ("65", "96")},
    ),
    _view(410, "an empty slice", "a.slice(1, 8, 8)"),
    _view(411, "a step of 0", "a.slice(1, 0, 64, 0)"),
    _view(
        442,
        "an index beyond its dimension",
        "a.reshape((128, 4, 16)).select(1, $n)",
        vary={"n": ("4", "100")},
    ),
    _view(
        443,
        "a second selection by value",
        "h.select(0, r).select(0, r)",
        "h = hb((4, 4, 64)); r = load(i)[0:1, 0:1]",
        args=_INDEXED,
    ),
    _view(
        445,
        "partitions are selected by value",
        "a.select(0, r)",
        "r = load(i)[0:1, 0:1]",
        args=_INDEXED,
    ),
    _view(
        473, "indices for another dimension", "x.vector_select(1, r)", "r = load(i)", args=_INDEXED
    ),
    _view(474, "indices into SBUF", "a.vector_select(0, r)", "r = load(i)", args=_INDEXED),
    _view(536, "a type of another width over gaps", "a[:, 0:64:2].view(nl.uint8)"),
    _view(
        537,
        "columns that no wider type fills",
        "c.view(nl.float32)",
        "c = load(y, nl.bfloat16)[:, 0:$n]",
        vary={"n": ("31", "63")},
    ),
    _view(
        549,
        "indirection on tiles before NeuronCore-v4",
        "a.indirect(r)",
        "r = load(i, nl.uint16)",
        args=_INDEXED,
        on=OLD,
    ),
    _line(
        "views",
        f"{_GUIDE}:333",
        "another stride between partitions",
        "v = a.ap(pattern=[[$n, 128], [1, 32]])",
        vary={"n": ("32", "1")},
    ),
    _line(
        "bounds",
        f"{_NL}:410",
        "columns beyond the tile",
        "nisa.memset(a[:, $cut], value=0.0)",
        vary={"cut": ("64:65", "64:128")},
    ),
    _line(
        "bounds",
        f"{_NL}:410",
        "rows beyond the tensor",
        "nisa.dma_copy(dst=a, src=x[$start:$start + 128])",
        vary={"start": ("1", "64")},
    ),
    _line(
        "bounds",
        f"{_NL}:410",
        "a loop leaves the tensor in its last turn",
        "for k in range(4): nisa.dma_copy(dst=a[:, 0:32], src=x[:, k * 32:(k + 1) * 32])",
    ),
    _line("bounds", f"{_NL}:442", "a column beyond the tile", "nisa.memset(a[:, 64], value=0.0)"),
    _line(
        "bounds",
        f"{_NL}:501",
        "a pattern leaves the storage",
        "nisa.memset(a.ap(pattern=[[64, 128], [$step, $n]]), value=0.0)",
        vary={"step": ("2", "3"), "n": ("33", "64")},
    ),
    _line(
        "bounds",
        "nki/get-started/about/tiling-overview.rst:96",
        "more than 128 partitions",
        "t = nl.ndarray(($n, 4), dtype=nl.float32, buffer=nl.sbuf)",
        vary={"n": ("129", "256")},
    ),
    _line(
        "capacity",
        f"{_ARCH}:78",
        "a tile larger than SBUF",
        "t = nl.ndarray((128, $n), dtype=nl.bfloat16, buffer=nl.sbuf)",
        vary={"n": ("131100", "200000")},
    ),
    _line(
        "capacity",
        f"{_ARCH}:78",
        "a tile larger than PSUM",
        "t = nl.ndarray((128, $n), dtype=nl.float32, buffer=nl.psum)",
        vary={"n": ("4097", "8192")},
    ),
    _line(
        "start-partition",
        f"{_ARCH}:711",
        "65 partitions and more from another start",
        "nisa.tensor_copy(dst=b[0:$n], src=a[$start:$start + $n])",
        vary={"n": ("65", "96"), "start": ("32",)},
    ),
    _line(
        "start-partition",
        f"{_ARCH}:712",
        "33 to 64 partitions from another start",
        "nisa.memset(a[$start:$start + 33], value=0.0)",
        vary={"start": ("32", "16")},
    ),
    _line(
        "start-partition",
        f"{_ARCH}:713",
        "a start within a quadrant",
        "nisa.activation(dst=b[0:$n], op=nl.exp, data=a[$start:$start + $n])",
        vary={"n": ("1", "32"), "start": ("1", "48")},
    ),
    _unwritten(
        "one operand is unwritten",
        "$call",
        vary={
            "call": (
                "nisa.tensor_tensor(dst=b, data1=a, data2=u, op=nl.add)",
                "nisa.tensor_tensor(dst=b, data1=u, data2=a, op=nl.multiply)",
                "nisa.tensor_copy(dst=b, src=u)",
                "nisa.activation(dst=b, op=nl.exp, data=u)",
                "nisa.activation(dst=b, op=nl.exp, data=a, bias=u[:, 0:1])",
                "nisa.tensor_scalar(dst=b, data=u, op0=nl.add, operand0=1.0)",
                "nisa.tensor_scalar(dst=b, data=a, op0=nl.add, operand0=u[:, 3:4])",
                "nisa.tensor_reduce(dst=b[:, 0:1], op=nl.add, data=u, axis=1)",
                "nisa.scalar_tensor_tensor(dst=b, data=a, op0=nl.add, operand0=1.0, "
                "op1=nl.add, operand1=u)",
                "nisa.tensor_tensor_scan(dst=b, data0=a, data1=u, initial=0.0, "
                "op0=nl.multiply, op1=nl.add)",
                "nisa.bn_stats(dst=b[:, 0:6], data=u)",
                "nisa.max8(dst=b[:, 0:8], src=u)",
                "nisa.reciprocal(dst=b, data=u)",
                "nisa.nc_stream_shuffle(dst=b, src=u, shuffle_mask=[0] * 32)",
                "nisa.dma_copy(dst=x, src=u)",
                "nisa.affine_select(dst=b, pattern=[[1, 64]], channel_multiplier=-1, "
                "on_true_tile=u, on_false_value=0.0, cmp_op=nl.greater_equal)",
                "nisa.nc_transpose(dst=ps((64, 128)), data=u)",
                "nisa.nc_matmul(dst=ps((64, 64)), stationary=a, moving=u)",
                "nisa.nc_matmul(dst=ps((64, 64)), stationary=u, moving=a)",
            )
        },
    ),
    _unwritten(
        "half of an operand is unwritten",
        "nisa.tensor_tensor(dst=b, data1=a, data2=u, op=nl.add)",
        "nisa.memset(u[$cut], value=1.0)",
        vary={"cut": ("0:64", ":, 0:63", ":, 0:64:2", "0:127")},
    ),
    _unwritten("PSUM is unwritten", "nisa.tensor_copy(dst=b, src=p)", "p = ps((128, 64))"),
    _unwritten(
        "a product wrote fewer rows than are read",
        "nisa.tensor_copy(dst=b, src=p)",
        "p = ps((128, 64)); nisa.nc_matmul(dst=p[0:$n], stationary=a[:, 0:$n], moving=b)",
        vary={"n": ("32", "64")},
    ),
    _unwritten(
        "a loop leaves a column out",
        "nisa.tensor_copy(dst=b, src=u)",
        "for k in range(7): nisa.memset(u[:, k * 8:(k + 1) * 8], value=1.0)",
    ),
    _unwritten(
        "a predicate leaves elements unwritten",
        "nisa.tensor_copy(dst=b, src=u)",
        "m = load(k, nl.uint8); nisa.tensor_copy_predicated(dst=u, src=a, predicate=m)",
        args=("x float32 128 64", "y float32 128 64", "k int32 128 64"),
    ),
    _unwritten(
        "a gather skips rows",
        "nisa.tensor_copy(dst=b, src=u)",
        "r = sb((128, 1), nl.uint32); nisa.iota(r, pattern=[[1, 1]], channel_multiplier=2); "
        "nisa.dma_copy(dst=u, src=x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, "
        "indirect_dim=0), oob_mode=nisa.oob_mode.skip)",
        on=NEW,
    ),
    _unwritten(
        "a shuffle leaves partitions as they were",
        "nisa.tensor_copy(dst=b, src=u)",
        "nisa.nc_stream_shuffle(dst=u, src=a, shuffle_mask=[0] * 16 + [255] * 16)",
    ),
    _unwritten("HBM is unwritten", "nisa.dma_copy(dst=b, src=h)", "h = hb((128, 64))"),
    _unwritten(
        "a register's source is unwritten",
        "nisa.register_load(q, w)",
        "w = sb((1, 1), nl.int32); q = nisa.register_alloc()",
    ),
)
