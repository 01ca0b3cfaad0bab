"""Kernels that break no rule: products, loops, registers, memory, two cores."""

import numpy as np
from functions_of_tiles import ISA, NL, XY, program
from template import NEW

KERNELS = (
    program(
        "nc_matmul",
        f"{ISA}:476",
        "a product",
        """
p = ps((64, 64))
nisa.nc_matmul(dst=p, stationary=nl.load(x), moving=nl.load(y))
return save(p)
""",
        lambda x, y: x.T.astype(np.float32) @ y.astype(np.float32),
        within=1e-2,
        args=("x $dtype 128 64", "y $dtype 128 64"),
        vary={"dtype": ("float32", "bfloat16", "float16")},
    ),
    program(
        "nc_matmul",
        f"{ISA}:518",
        "products that accumulate",
        """
p = ps((64, 64))
a, b = nl.load(x), nl.load(y)
for k in range(4):
    at = nl.ds(k * 32, 32)
    nisa.nc_matmul(dst=p, stationary=a[at], moving=b[at], accumulate=$flag)
return save(p)
""",
        lambda x, y: x.T @ y,
        within=1e-2,
        vary={"flag": ("(k > 0)", "None")},
    ),
    program(
        "nc_matmul",
        f"{ISA}:490",
        "row tiles",
        """
p, q = ps((64, 64)), ps((64, 64))
a, b = nl.load(x), nl.load(y)
for half, row in ((p, 0), (q, 64)):
    at, where = nl.ds(row, 64), (row, 0)
    nisa.nc_matmul(half, a[at], b[at], tile_position=where, tile_size=(64, 128))
c = sb((64, 64))
nisa.tensor_copy(dst=c, src=p)
nisa.tensor_tensor(dst=c, data1=c, data2=q, op=nl.add)
return save(c)
""",
        lambda x, y: x.T @ y,
        within=1e-2,
    ),
    program(
        "nc_matmul",
        f"{ISA}:612",
        "wide products on NeuronCore-v4",
        """
p = ps((64, $n))
nisa.nc_matmul(dst=p, stationary=nl.load(x), moving=nl.load(z))
return save(p)
""",
        lambda x, y, z: x.T @ z,
        within=1e-2,
        on=("trn3",),
        args=(*XY, "z float32 128 $n"),
        vary={"n": ("1024", "2048")},
    ),
    program(
        "nc_matmul",
        f"{ISA}:571",
        "a bfloat16 result on NeuronCore-v4",
        """
p = ps((64, 64), nl.bfloat16)
nisa.nc_matmul(dst=p, stationary=nl.load(x), moving=nl.load(y))
return save(p)
""",
        lambda x, y: x.T @ y,
        within=2e-2,
        on=("trn3",),
    ),
    program(
        "nc_matmul",
        f"{ISA}:566",
        "double_row",
        """
a, b, p = load(x, nl.$dtype), load(y, nl.$dtype), ps((64, 64))
nisa.nc_matmul(dst=p, stationary=a, moving=b, perf_mode=nisa.matmul_perf_mode.double_row)
return save(p)
""",
        lambda x, y: np.einsum("pkm,pkn->mn", x, y),
        within=0.1,
        on=NEW,
        args=("x float32 128 2 64", "y float32 128 2 64"),
        vary={"dtype": ("float8_e4m3", "float8_e5m2")},
    ),
    program(
        "nc_transpose",
        f"{ISA}:826",
        "a transpose by the Tensor Engine",
        """
p = ps((64, 128), x.dtype)
nisa.nc_transpose(dst=p, data=nl.load(x), engine=nisa.engine.tensor)
return save(p)
""",
        lambda x, y: x.T,
        within=0.0,
        on=NEW,
        args=("x $dtype 128 64", "y float32 128 64"),
        vary={"dtype": ("float32", "bfloat16", "float16")},
    ),
    program(
        "nc_transpose",
        f"{ISA}:827",
        "a transpose by the Vector Engine",
        """
c = $memory((32, 32))
nisa.nc_transpose(dst=c, data=nl.load(x)[0:32, 0:32], engine=nisa.engine.vector)
return save(c)
""",
        lambda x, y: x[:32, :32].T,
        within=0.0,
        vary={"memory": ("sb", "ps")},
    ),
    program(
        "loops",
        f"{NL}:2317",
        "static loops over tiles",
        """
out = hb((128, 64))
for k in nl.$loop(4):
    t = nl.load(x[:, k * 16:(k + 1) * 16])
    nl.store(out[:, k * 16:(k + 1) * 16], value=nl.multiply(t, 2.0))
return out
""",
        lambda x, y: x * 2,
        vary={"loop": ("affine_range", "sequential_range", "static_range")},
    ),
    program(
        "loops",
        f"{NL}:2431",
        "fori_loop over rows",
        """
out, t = hb((128, 64)), sb((1, 64))
def body(i):
    nisa.dma_copy(dst=t, src=x.ap([[64, 1], [1, 64]], scalar_offset=i, indirect_dim=0))
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out.ap([[64, 1], [1, 64]], scalar_offset=i, indirect_dim=0), src=t)
nisa.dma_copy(dst=out, src=x)
nl.fori_loop($low, $high, body)
return out
""",
        None,
        vary={"low": ("0", "3"), "high": ("4", "nisa.register_alloc(5)")},
    ),
    program(
        "loops",
        f"{NL}:2489",
        "while_loop counts down",
        """
acc, count, one = nl.zeros((1, 1), dtype=nl.float32), sb((1, 1), nl.int32), sb((1, 1), nl.int32)
nisa.memset(count, value=5)
nisa.memset(one, value=1)
reg = nisa.register_alloc()
nisa.register_load(reg, count)
def body(r):
    nisa.tensor_scalar(dst=acc, data=acc, op0=nl.add, operand0=2.0)
    nisa.tensor_tensor(dst=count, data1=count, data2=one, op=nl.subtract)
    nisa.register_load(r, count)
    return r
nl.while_loop(reg, body)
return save(acc)
""",
        lambda x, y: np.array([[10.0]]),
    ),
    program(
        "loops",
        f"{NL}:2407",
        "dynamic_range with a bound from memory",
        """
acc, n = nl.zeros((1, 64), dtype=nl.float32), sb((1, 1), nl.int32)
nisa.memset(n, value=3)
bound = nisa.register_alloc()
nisa.register_load(bound, n)
t = nl.load(x[0:1])
for _ in nl.dynamic_range(bound):
    nisa.tensor_tensor(dst=acc, data1=acc, data2=t, op=nl.add)
return save(acc)
""",
        lambda x, y: x[:1] * 3,
    ),
    program(
        "registers",
        f"{ISA}:3045",
        "registers are moved, stored and loaded",
        """
a, b, t = nisa.register_alloc(7), nisa.register_alloc(), sb((1, 1), nl.int32)
nisa.register_move(b, a)
nisa.register_store(t, b)
return save(t)
""",
        lambda x, y: np.array([[7]]),
        within=0.0,
    ),
    program(
        "order",
        f"{NL}:2243",
        "an order block with a static loop",
        """
with nl.no_reorder():
    t = nl.load(x)
    for k in range(2):
        t = nl.add(t, 1.0)
return save(t)
""",
        lambda x, y: x + 2,
    ),
    program(
        "order",
        f"{ISA}:135",
        "an instruction depends on another",
        """
t, u = nl.load(x), sb((128, 64))
first = nisa.activation(dst=u, op=nl.exp, data=t)
nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0).depends_on(first)
return save(t)
""",
        lambda x, y: x + 1,
    ),
    program(
        "memory",
        f"{NL}:2545",
        "tiles at addresses",
        """
a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, $at))
nisa.dma_copy(dst=a, src=x)
nisa.tensor_scalar(dst=b, data=a, op0=nl.add, operand0=1.0)
return save(b)
""",
        lambda x, y: x + 1,
        vary={"at": ("256", "4096")},
    ),
    program(
        "memory",
        "nki/get-started/nki-language-guide.rst:358",
        "a tile is filled in parts",
        """
c = sb((128, 64))
for k in range(4):
    nisa.dma_copy(dst=c[k * 32:(k + 1) * 32], src=x[k * 32:(k + 1) * 32])
return save(c)
""",
        lambda x, y: x,
        within=0.0,
    ),
    program(
        "memory",
        "nki/get-started/nki-language-guide.rst:358",
        "an unwritten part is not used",
        """
c, d = sb((128, 64)), sb((128, 64))
nisa.dma_copy(dst=c[:, 0:$n], src=x[:, 0:$n])
nisa.tensor_scalar(dst=d, data=c, op0=nl.add, operand0=1.0)
return save(d[:, 0:$n])
""",
        None,
        vary={"n": ("1", "32")},
    ),
    program(
        "memory",
        f"{NL}:2616",
        "a constant",
        """
c = nl.load(nl.shared_constant(np.arange(64, dtype=np.float32).reshape(1, 64)))
return save(c)
""",
        lambda x, y: np.arange(64).reshape(1, 64),
        within=0.0,
    ),
    program(
        "memory",
        f"{NL}:84",
        "a large tensor passes through SBUF in pieces",
        """
out = hb((512, 64))
for k in range(4):
    nl.store(out[k * 128:(k + 1) * 128], value=nl.exp(nl.load(z[k * 128:(k + 1) * 128])))
return out
""",
        lambda x, y, z: np.exp(z),
        within=1e-3,
        args=(*XY, "z float32 512 64"),
    ),
    program(
        "two cores",
        "nki/get-started/about/lnc.rst:44",
        "each core writes a half",
        """
out, k = hb((128, 64)), nl.program_id(0)
nl.store(out[k * 64:(k + 1) * 64], value=nl.multiply(nl.load(x[k * 64:(k + 1) * 64]), 3.0))
return out
""",
        lambda x, y: x * 3,
        cores=2,
        on=NEW,
    ),
    program(
        "two cores",
        f"{ISA}:2617",
        "a barrier before the other's half is read",
        """
shared, out, k = hb((128, 64)), hb((128, 64)), nl.program_id(0)
other = 1 - k
nl.store(shared[k * 64:(k + 1) * 64], value=nl.load(x[k * 64:(k + 1) * 64]))
nisa.core_barrier(data=shared, cores=(0, 1))
nl.store(out[other * 64:(other + 1) * 64], value=nl.load(shared[other * 64:(other + 1) * 64]))
return out
""",
        lambda x, y: x,
        cores=2,
        on=NEW,
        within=0.0,
    ),
    program(
        "two cores",
        f"{NL}:2621",
        "constants that both make, one of them in a loop",
        """
out, k = hb((128, 64)), nl.program_id(0)
c = nl.shared_constant(np.full((64, 64), 3.0, np.float32))
for i in range(2):
    d = nl.shared_constant(np.full((64, 64), i + 0.5, np.float32))
    half = nl.load(x[k * 64:(k + 1) * 64])
    nl.store(out[k * 64:(k + 1) * 64], value=nl.add(nl.multiply(half, nl.load(c)), nl.load(d)))
return out
""",
        lambda x, y: x * 3 + np.float32(1.5),
        cores=2,
        on=NEW,
    ),
    program(
        "two cores",
        f"{ISA}:2933",
        "tiles are exchanged",
        """
out, k = hb((128, 64)), nl.program_id(0)
mine, theirs = nl.load(x[k * 64:(k + 1) * 64]), sb((64, 64))
nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - k, recv_from_rank=1 - k, pipe_id=0$engine)
nl.store(out[k * 64:(k + 1) * 64], value=theirs)
return out
""",
        lambda x, y: np.concatenate([x[64:], x[:64]]),
        cores=2,
        on=NEW,
        within=0.0,
        vary={"engine": ("", ", dma_engine=nisa.dma_engine.gpsimd_dma")},
    ),
    program(
        "python",
        "nki/get-started/nki-language-guide.rst:116",
        "lists, dicts, while and if",
        """
tiles, sizes, k = [], {"first": 32}, 0
while k < 2:
    tiles.append(nl.load(x[:, k * 32:k * 32 + sizes["first"]]))
    k += 1
out = hb((128, 64))
for k, tile in enumerate(tiles):
    value = nl.add(tile, 1.0) if k % 2 == 0 else nl.subtract(tile, 1.0)
    nl.store(out[:, k * 32:(k + 1) * 32], value=value)
return out
""",
        lambda x, y: np.concatenate([x[:, :32] + 1, x[:, 32:] - 1], 1),
    ),
)
