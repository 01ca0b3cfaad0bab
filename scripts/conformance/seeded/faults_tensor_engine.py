"""Kernels with one fault in a Tensor Engine instruction."""

from template import MARK, NEW, OLD, Kernel

_ISA = "nki/api/nki/isa/__init__.py"
_ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"
_XW = ("x float32 128 64", "w float32 128 128")
_BF = ("x bfloat16 128 64", "w bfloat16 128 128")


def _product(line: int | str, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """A product of `a` [128, 64] and `b` [128, 128] into `p`, in a call that is wrong."""
    source = f"{_ISA}:{line}" if isinstance(line, int) else line
    body = f"""
a, b, p = load(x), load(w), ps((64, 128))
{setup}
{call}  {MARK}
return save(p)
"""
    return Kernel("nc_matmul", source, what, body, **({"args": _XW} | given))


def _mx(line: int, what: str, call: str, setup: str = "", **given: object) -> Kernel:
    """An MX product; `q`, `r` are packed tiles [128, 64], `s`, `t` their scales."""
    body = f"""
q, r = sb((128, 64), nl.float8_e4m3fn_x4), sb((128, 128), nl.float8_e4m3fn_x4)
s, t = sb((128, 64), nl.float8_e8m0fnu), sb((128, 128), nl.float8_e8m0fnu)
p = ps((64, 128))
nisa.quantize_mx(dst=q, src=load(x), dst_scale=s)
nisa.quantize_mx(dst=r, src=load(w), dst_scale=t)
{setup}
{call}  {MARK}
return save(p)
"""
    args = ("x bfloat16 128 256", "w bfloat16 128 512")
    return Kernel(
        "nc_matmul_mx", f"{_ISA}:{line}", what, body, **({"on": ("trn3",), "args": args} | given)
    )


KERNELS = (
    _product(
        607,
        "operands have other numbers of partitions",
        "nisa.nc_matmul(dst=p, stationary=a[0:$rows, :], moving=b)",
        vary={"rows": ("32", "64")},
    ),
    _product(
        610,
        "the stationary operand has more than 128 columns",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b)",
        args=("x float32 128 $columns", "w float32 128 128"),
        vary={"columns": ("192", "256")},
    ),
    _product(
        612,
        "the moving operand has more than 512 columns",
        "nisa.nc_matmul(dst=q, stationary=a, moving=c)",
        setup="q, c = ps((64, $columns)), load(y)",
        on=OLD,
        vary={"columns": ("640", "1024")},
        args=(*_XW, "y float32 128 $columns"),
    ),
    _product(
        553,
        "the product goes to SBUF",
        "nisa.nc_matmul(dst=d, stationary=a, moving=b)",
        setup="d = sb((64, 128))",
    ),
    _product(
        553,
        "an operand is in PSUM",
        "nisa.nc_matmul(dst=p, stationary=$first, moving=$second)",
        setup="c, d = in_psum(x), in_psum(w)",
        vary={"first": ("a", "c"), "second": ("d",)},
    ),
    _product(
        553,
        "an operand is in HBM",
        "nisa.nc_matmul(dst=p, stationary=$first, moving=$second)",
        vary={"first": ("x",), "second": ("b", "w")},
    ),
    _product(
        564,
        "float32 meets a narrower type",
        "nisa.nc_matmul(dst=p, stationary=a, moving=c)",
        setup="c = load(w, nl.$dtype)",
        vary={"dtype": ("bfloat16", "float16", "float8_e5m2")},
    ),
    _product(
        571,
        "dst is bfloat16 before NeuronCore-v4",
        "nisa.nc_matmul(dst=q, stationary=a, moving=b)",
        on=OLD,
        args=_BF,
        setup="q = ps((64, 128), nl.bfloat16)",
    ),
    _product(
        571,
        "dst is of a type that no product has",
        "nisa.nc_matmul(dst=q, stationary=a, moving=b)",
        setup="q = ps((64, 128), nl.$dtype)",
        vary={"dtype": ("float16", "int32")},
        args=_BF,
    ),
    _product(
        561,
        "operands are integers",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d)",
        setup="c, d = load(x, nl.$dtype), load(w, nl.$dtype)",
        vary={"dtype": ("int8", "int32", "uint16")},
    ),
    _product(
        562,
        "float8_e4m3fn before NeuronCore-v4",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d)",
        setup="c, d = load(x, nl.float8_e4m3fn), load(w, nl.float8_e4m3fn)",
        on=OLD,
    ),
    _product(
        563,
        "two kinds of float8_e4m3 meet",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d)",
        setup="c, d = load(x, nl.$one), load(w, nl.$other)",
        on=("trn3",),
        vary={"one": ("float8_e4m3",), "other": ("float8_e4m3fn",)},
    ),
    _product(
        481,
        "double_row on NeuronCore-v2",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d, perf_mode=nisa.matmul_perf_mode.double_row)",
        setup="c, d = load(x, nl.float8_e5m2), load(w, nl.float8_e5m2)",
        on=("trn1",),
        args=("x float32 128 2 64", "w float32 128 2 128"),
    ),
    _product(
        566,
        "double_row with wide types",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, perf_mode=nisa.matmul_perf_mode.double_row)",
        on=NEW,
        vary={"dtype": ("bfloat16", "float32")},
        args=("x $dtype 128 2 64", "w $dtype 128 2 128"),
    ),
    _product(
        580,
        "double_row with a first free dimension that is not 2",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d, perf_mode=nisa.matmul_perf_mode.double_row)",
        setup="c, d = load(x, nl.float8_e4m3), load(w, nl.float8_e4m3)",
        on=NEW,
        args=("x float32 128 $n 64", "w float32 128 $n 128"),
        vary={"n": ("1", "4")},
    ),
    _product(
        487,
        "double_row with column tiling",
        "nisa.nc_matmul(dst=p, stationary=c, moving=d, tile_position=(0, 0), tile_size=(128, 64), "
        "perf_mode=nisa.matmul_perf_mode.double_row)",
        setup="c, d = load(x, nl.float8_e4m3), load(w, nl.float8_e4m3)",
        on=NEW,
        args=("x float32 128 2 64", "w float32 128 2 128"),
    ),
    _product(
        503,
        "a row tile starts within another",
        "nisa.nc_matmul(dst=p, stationary=a[0:64], moving=b[0:64], tile_position=($row, 0), "
        "tile_size=(64, 128))",
        vary={"row": ("16", "32", "96")},
    ),
    _product(
        498,
        "operands exceed the row tile",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, tile_position=(0, 0), "
        "tile_size=($rows, 128))",
        vary={"rows": ("64",)},
    ),
    _product(
        498,
        "the stationary operand exceeds the column tile",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, tile_position=(0, 0), tile_size=(128, 32))",
        on=NEW,
    ),
    _product(
        494,
        "row tiles of 32 on NeuronCore-v2",
        "nisa.nc_matmul(dst=p, stationary=a[0:32], moving=b[0:32], tile_position=(0, 0), "
        "tile_size=(32, 128))",
        on=("trn1",),
    ),
    _product(
        521,
        "the first product accumulates",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, accumulate=True)",
        vary={"dtype": ("float32", "bfloat16")},
        args=("x $dtype 128 64", "w $dtype 128 128"),
    ),
    _product(
        531,
        "a product accumulates onto what memset wrote",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, accumulate=True)",
        setup="nisa.memset(p, value=0.0)",
        on=OLD,
    ),
    _product(
        531,
        "a product accumulates onto what a copy wrote",
        "nisa.nc_matmul(dst=p, stationary=a, moving=b, accumulate=True)",
        setup="nisa.tensor_copy(dst=p, src=load(y))",
        on=OLD,
        args=(*_XW, "y float32 64 128"),
    ),
    _product(
        583,
        "dst has the shape of the transposed product",
        "nisa.nc_matmul(dst=q, stationary=a, moving=b)",
        setup="q = ps((128, 64))",
    ),
    _product(
        584,
        "dst has too few columns",
        "nisa.nc_matmul(dst=p[:, 0:$n], stationary=a, moving=b)",
        vary={"n": ("64", "127")},
    ),
    _product(
        f"{_ARCH}:791",
        "dst crosses a bank",
        "nisa.nc_matmul(dst=q[:, $at:$at + 128], stationary=a, moving=b)",
        setup="q = ps((64, 1024))",
        vary={"at": ("448", "500")},
        on=OLD,
    ),
    _product(
        537,
        "a transpose reads PSUM",
        "nisa.nc_matmul(dst=p, stationary=c, moving=b, is_transpose=True)",
        setup="c = in_psum(x)",
    ),
    Kernel(
        "nc_matmul_mx",
        f"{_ISA}:675",
        "MX before NeuronCore-v4",
        f"""
q, s, p = load(x), load(y), ps((64, 64))
nisa.nc_matmul_mx(dst=p, stationary=q, moving=q, stationary_scale=s, moving_scale=s)  {MARK}
return save(p)
""",
        on=OLD,
        args=("x bfloat16 128 64", "y uint8 128 64"),
    ),
    _mx(
        712,
        "an operand is not packed",
        "nisa.nc_matmul_mx(dst=p, stationary=c, moving=r, stationary_scale=s, moving_scale=t)",
        setup="c = load(x)[:, 0:64]",
    ),
    _mx(
        708,
        "the product goes to SBUF",
        "nisa.nc_matmul_mx(dst=d, stationary=q, moving=r, stationary_scale=s, moving_scale=t)",
        setup="d = sb((64, 128))",
    ),
    _mx(
        713,
        "scales are floats",
        "nisa.nc_matmul_mx(dst=p, stationary=q, moving=r, stationary_scale=s, moving_scale=u)",
        setup="u = load(w, nl.$dtype)[:, 0:128]",
        vary={"dtype": ("float32", "bfloat16")},
    ),
    _mx(
        731,
        "partitions are no multiple of 32",
        "nisa.nc_matmul_mx(dst=p, stationary=q[0:$n], moving=r[0:$n], stationary_scale=s[0:$n], "
        "moving_scale=t[0:$n])",
        vary={"n": ("16", "48", "80")},
    ),
    _mx(
        733,
        "the stationary operand has an odd number of columns",
        "nisa.nc_matmul_mx(dst=p[0:63], stationary=q[:, 0:63], moving=r, "
        "stationary_scale=s[:, 0:63], moving_scale=t)",
    ),
    _mx(
        688,
        "column tiling",
        "nisa.nc_matmul_mx(dst=p, stationary=q, moving=r, stationary_scale=s, moving_scale=t, "
        "tile_position=(0, 0), tile_size=(128, 64))",
    ),
    _mx(
        691,
        "a tile starts behind column 0",
        "nisa.nc_matmul_mx(dst=p, stationary=q[0:64], moving=r[0:64], stationary_scale=s[0:64], "
        "moving_scale=t[0:64], tile_position=(0, 64), tile_size=(64, 128))",
    ),
    _mx(
        712,
        "dst is of a type that no product has",
        "nisa.nc_matmul_mx(dst=d, stationary=q, moving=r, stationary_scale=s, moving_scale=t)",
        setup="d = ps((64, 128), nl.$dtype)",
        vary={"dtype": ("float16", "int32")},
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:810",
        "the Tensor Engine reads PSUM",
        f"""
d = ps((64, 128))
nisa.nc_transpose(dst=d, data=in_psum(x), engine=nisa.engine.tensor)  {MARK}
return save(d)
""",
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:810",
        "the Tensor Engine writes SBUF",
        f"""
d = sb((64, 128), nl.$dtype)
a = load(x)
nisa.nc_transpose(dst=d, data=a, engine=nisa.engine.tensor)  {MARK}
return save(d)
""",
        vary={"dtype": ("float32", "bfloat16")},
        args=("x $dtype 128 64",),
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:827",
        "more than the Vector Engine transposes",
        f"""
a, d = load(x), sb(($columns, 64))
nisa.nc_transpose(dst=d, data=a, engine=nisa.engine.vector)  {MARK}
return save(d)
""",
        vary={"columns": ("32", "64")},
        args=("x float32 64 $columns",),
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:826",
        "more than the Tensor Engine transposes",
        f"""
a, d = load(x), ps((128, 128))
nisa.nc_transpose(dst=d, data=a, engine=nisa.engine.tensor)  {MARK}
return save(d)
""",
        args=("x float32 128 256",),
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:816",
        "dst has another type than data",
        f"""
a, d = load(x), ps((64, 128), nl.$dtype)
nisa.nc_transpose(dst=d, data=a)  {MARK}
return save(d)
""",
        vary={"dtype": ("float32", "float16")},
        args=("x bfloat16 128 64",),
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:834",
        "an engine that does not transpose",
        f"""
a, d = load(x), ps((64, 128))
nisa.nc_transpose(dst=d, data=a, engine=nisa.engine.$engine)  {MARK}
return save(d)
""",
        vary={"engine": ("gpsimd", "scalar")},
    ),
    Kernel(
        "nc_transpose",
        f"{_ISA}:821",
        "dst is not transposed",
        f"""
a, d = load(x), ps((128, 64))
nisa.nc_transpose(dst=d, data=a)  {MARK}
return save(d)
""",
    ),
    Kernel(
        "nl.matmul",
        "nki/api/nki/language/__init__.py:2218",
        "inner sizes differ",
        f"""
a, b = load(x), load(y)
c = nl.matmul(a, b$how)  {MARK}
return save(c)
""",
        args=("x float32 128 64", "y float32 32 128"),
        vary={"how": ("", ", transpose_x=True")},
    ),
    Kernel(
        "nl.matmul",
        "nki/api/nki/language/__init__.py:2219",
        "y has too many columns",
        f"""
a, b = load(x), load(y)
c = nl.matmul(a, b, transpose_x=True)  {MARK}
return save(c)
""",
        args=("x float32 128 64", "y float32 128 640"),
        on=OLD,
    ),
)
