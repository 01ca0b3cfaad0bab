"""Kernels with one fault that no single instruction shows: order, loops, cores, Python."""

from template import MARK, NEW, OLD, Kernel

_NL = "nki/api/nki/language/__init__.py"
_ISA = "nki/api/nki/isa/__init__.py"
_CC = "nki/api/nki/collectives/__init__.py"
_GUIDE = "nki/get-started/nki-language-guide.rst"
_LNC = "nki/get-started/about/lnc.rst"
_XY = ("x float32 128 64", "y float32 128 64")
_INTEGERS = ("x int32 128 64", "y int32 128 64")


def _program(family: str, source: str, what: str, body: str, **given: object) -> Kernel:
    return Kernel(family, source, what, body.replace("#!", MARK), **({"args": _XY} | given))


def _cores(source: str, what: str, body: str, **given: object) -> Kernel:
    return _program("two cores", source, what, body, **({"on": NEW, "cores": 2} | given))


KERNELS = (
    _program(
        "loops",
        f"{_NL}:2252",
        "a register loop in an order block",
        """
t = nl.load(x)
def body(i):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
with nl.no_reorder():
    nl.fori_loop(0, 4, body)  #!
return save(t)
""",
    ),
    _program(
        "loops",
        f"{_NL}:2252",
        "dynamic_range in an order block",
        """
t = nl.load(x)
with nl.no_reorder():
    for _ in nl.dynamic_range(4):  #!
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return save(t)
""",
    ),
    _program(
        "loops",
        f"{_NL}:2415",
        "a step that is not positive",
        """
t = nl.load(x)
for _ in nl.dynamic_range(0, 4, $step):  #!
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return save(t)
""",
        vary={"step": ("0", "-1")},
    ),
    _program(
        "loops",
        f"{_NL}:2415",
        "a step in a register",
        """
t, step = nl.load(x), nisa.register_alloc(2)
for _ in nl.dynamic_range(0, 4, step):  #!
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return save(t)
""",
    ),
    _program(
        "loops",
        "nki/deep-dives/nki-dynamic-loops.rst:110",
        "the counter as a Python number",
        """
t = nl.load(x)
for i in nl.dynamic_range(4):
    $use  #!
return save(t)
""",
        vary={"use": ("k = int(i)", "k = range(i)", "k = [0, 1, 2, 3][i]")},
    ),
    _program(
        "loops",
        f"{_ISA}:170",
        "a register decides in Python",
        """
t, r = nl.load(x), nisa.register_alloc(1)
if r:  #!
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return save(t)
""",
    ),
    _program(
        "loops",
        _GUIDE + ":532",
        "the counter is written",
        """
t = nl.load(x)
for i in nl.dynamic_range(4):
    nisa.register_move(i, 0)  #!
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
return save(t)
""",
    ),
    _program(
        "loops",
        "nki/migration/index.rst:138",
        "a body that returns",
        """
t = nl.load(x)
def body(i):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    return t
nl.fori_loop(0, 4, body)  #!
return save(t)
""",
    ),
    _program(
        "loops",
        "nki/migration/index.rst:139",
        "a tile of a loop's body is used behind it",
        """
t, made = nl.load(x), []
def body(i):
    u = sb((128, 64))
    nisa.tensor_copy(dst=u, src=t)
    made.append(u)
nl.fori_loop(0, 4, body)
nisa.tensor_copy(dst=t, src=made[0])  #!
return save(t)
""",
    ),
    _program(
        "loops",
        f"{_NL}:2501",
        "a condition that is no register",
        """
t = nl.load(x)
def body(r):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    return r
nl.while_loop($init, body)  #!
return save(t)
""",
        vary={"init": ("t", "None")},
    ),
    _program(
        "loops",
        f"{_ISA}:152",
        "an edge into a register loop",
        """
t, u = nl.load(x), sb((128, 64))
first = nisa.activation(dst=u, op=nl.exp, data=t)
for i in nl.dynamic_range(2):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
    last = nisa.tensor_scalar(dst=u, data=u, op0=nl.add, operand0=1.0)
first.depends_on(last)  #!
return save(t)
""",
    ),
    _program(
        "loops",
        f"{_NL}:2431",
        "a loop reaches rows beyond the tensor",
        """
t = sb((1, 64))
for i in nl.dynamic_range(126, 130):
    nisa.dma_copy(dst=t, src=x.ap([[64, 1], [1, 64]], scalar_offset=i, indirect_dim=0))  #!
return save(t)
""",
    ),
    _program(
        "registers",
        f"{_ISA}:3073",
        "a register without value",
        """
t, r = sb((1, 1), nl.int32), nisa.register_alloc()
nisa.register_store(t, r)  #!
return save(t)
""",
    ),
    _program(
        "registers",
        f"{_ISA}:3066",
        "a register holds one element",
        """
t, r = nl.load(x), nisa.register_alloc(0)
nisa.register_load(r, t[$cut])  #!
return save(t)
""",
        vary={"cut": ("0:1, 0:2", "0:2, 0:1")},
        args=_INTEGERS,
    ),
    _program(
        "registers",
        f"{_ISA}:3100",
        "one element takes a register",
        """
t, r = nl.load(x), nisa.register_alloc(0)
nisa.register_store(t, r)  #!
return save(t)
""",
        args=_INTEGERS,
    ),
    _program(
        "python",
        _GUIDE + ":116",
        "a value that changed since the last call",
        """
KEPT.append(len(KEPT))  #!
return save(nl.load(x))
""",
    ),
    _program(
        "python",
        _GUIDE + ":179",
        "a dict with numbers as keys",
        """
tiles = {0: nl.load(x)}  #!
return save(tiles[0])
""",
    ),
    _program(
        "python",
        "nki/migration/index.rst:611",
        "a result in SBUF",
        """
t = nl.load(x)
return t  #!
""",
    ),
    _program(
        "python",
        "nki/migration/index.rst:611",
        "a result that nothing has written",
        """
out = hb((128, 64))
return out  #!
""",
    ),
    _program(
        "python",
        "nki/migration/index.rst:901",
        "an instruction's result is used",
        """
t = nl.load(x)
u = nisa.reciprocal(data=t)  #!
return save(t)
""",
    ),
    _program(
        "python",
        "nki/migration/index.rst:857",
        "a mask",
        """
t = nl.load(x, mask=None)  #!
return save(t)
""",
    ),
    _program(
        "python",
        "nki/migration/index.rst:640",
        "a buffer as a string",
        """
t = nl.ndarray((128, 64), dtype=nl.float32, buffer="$buffer")  #!
nisa.dma_copy(dst=t, src=x)
return save(t)
""",
        vary={"buffer": ("nowhere",)},
    ),
    _program(
        "psum",
        f"{_ISA}:526",
        "an accumulation goes on after its tile was rewritten",
        """
p, a, b = ps((64, 64)), nl.load(x), nl.load(y)
nisa.nc_matmul(dst=p, stationary=a, moving=b, accumulate=False)
nisa.memset(p, value=0.0)
nisa.nc_matmul(dst=p, stationary=a, moving=b, accumulate=True)  #!
return save(p)
""",
        on=OLD,
    ),
    _program(
        "psum",
        "nki/migration/index.rst:1111",
        "an address within a bank",
        """
p = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum, address=(0, $at))  #!
nisa.nc_matmul(dst=p, stationary=nl.load(x), moving=nl.load(y))
return save(p)
""",
        vary={"at": ("4", "1024")},
    ),
    _program(
        "psum",
        "nki/guides/architecture/trainium_inferentia2_arch.rst:78",
        "more banks than there are",
        """
a, b = nl.load(x), nl.load(y)
tiles = []
for k in range(9):
    p = nl.ndarray((64, 512), dtype=nl.float32, buffer=nl.psum)  #!
    nisa.nc_matmul(dst=p[:, 0:64], stationary=a, moving=b)
    tiles.append(p)
c = sb((64, 64))
nisa.memset(c, value=0.0)
for p in tiles:
    nisa.tensor_tensor(dst=c, data1=c, data2=p[:, 0:64], op=nl.add)
return save(c)
""",
    ),
    _program(
        "capacity",
        "nki/guides/architecture/trainium_inferentia2_arch.rst:78",
        "more live tiles than SBUF holds",
        """
tiles = []
for k in range(5):
    t = nl.ndarray((128, 16384), dtype=nl.float32, buffer=nl.sbuf)  #!
    nisa.memset(t, value=1.0)
    tiles.append(t)
for t in tiles[1:]:
    nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=t, op=nl.add)
return save(tiles[0])
""",
    ),
    _program(
        "capacity",
        f"{_NL}:2545",
        "two tiles at one address",
        """
a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, $at))
nisa.dma_copy(dst=a, src=x)
nisa.dma_copy(dst=b, src=y)
nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=1.0)  #!
return save(a)
""",
        vary={"at": ("0", "128")},
    ),
    _cores(
        f"{_ISA}:2617",
        "the other core's half is read without a barrier",
        """
shared, out, k = hb((128, 64)), hb((128, 64)), nl.program_id(0)
other = 1 - k
nl.store(shared[k * 64:(k + 1) * 64], value=nl.load(x[k * 64:(k + 1) * 64]))
t = nl.load(shared[other * 64:(other + 1) * 64])  #!
nl.store(out[other * 64:(other + 1) * 64], value=t)
return out
""",
    ),
    _cores(
        f"{_LNC}:148",
        "both cores write other values to one place",
        """
out, k = hb((128, 64)), nl.program_id(0)
t = nl.load(x)
u = nl.add(t, float(k))
nl.store(out, value=u)  #!
return out
""",
    ),
    _cores(
        f"{_ISA}:2630",
        "cores that a barrier does not take",
        """
out, k = hb((128, 64)), nl.program_id(0)
nl.store(out[k * 64:(k + 1) * 64], value=nl.load(x[k * 64:(k + 1) * 64]))
nisa.core_barrier(data=out, cores=$cores)  #!
return out
""",
        vary={"cores": ("(0, 2)", "(0,)", "(0, 1, 2)")},
    ),
    _cores(
        f"{_ISA}:2634",
        "a barrier on a tile in SBUF",
        """
t = nl.load(x)
nisa.core_barrier(data=t, cores=(0, 1))  #!
return save(t)
""",
    ),
    _cores(
        f"{_ISA}:2958",
        "a rank that a pair of cores has not",
        """
t, u, k = nl.load(x), sb((128, 64)), nl.program_id(0)
nisa.sendrecv(src=t, dst=u, send_to_rank=$rank, recv_from_rank=1 - k, pipe_id=0)  #!
return save(u)
""",
        vary={"rank": ("2", "-1")},
    ),
    _cores(
        f"{_ISA}:2978",
        "tiles of other types are exchanged",
        """
t, u, k = nl.load(x), sb((128, 64), nl.bfloat16), nl.program_id(0)
nisa.sendrecv(src=t, dst=u, send_to_rank=1 - k, recv_from_rank=1 - k, pipe_id=0)  #!
return save(u)
""",
    ),
    _cores(
        f"{_ISA}:2979",
        "tiles of other shapes are exchanged",
        """
t, u, k = nl.load(x), sb((128, 32)), nl.program_id(0)
nisa.sendrecv(src=t, dst=u, send_to_rank=1 - k, recv_from_rank=1 - k, pipe_id=0)  #!
return save(u)
""",
    ),
    _cores(
        f"{_ISA}:2977",
        "PSUM is exchanged",
        """
t, u, k = in_psum(x), sb((128, 64)), nl.program_id(0)
nisa.sendrecv(src=t, dst=u, send_to_rank=1 - k, recv_from_rank=1 - k, pipe_id=0)  #!
return save(u)
""",
    ),
    _cores(
        f"{_ISA}:2970",
        "more bytes than GpSimd's DMA moves",
        """
t, u, other = load(z, nl.$dtype), sb((128, $n), nl.$dtype), 1 - nl.program_id(0)
engine = nisa.dma_engine.gpsimd_dma
nisa.sendrecv(t, u, other, other, pipe_id=0, dma_engine=engine)  #!
return save(u)
""",
        args=(*_XY, "z float32 128 $n"),
        vary={"dtype": ("float32", "bfloat16"), "n": ("320", "512")},
    ),
    _program(
        "two cores",
        f"{_ISA}:2607",
        "a barrier on NeuronCore-v2",
        """
out = hb((128, 64))
nl.store(out, value=nl.load(x))
nisa.core_barrier(data=out, cores=(0, 1))  #!
return out
""",
        on=("trn1",),
    ),
)
