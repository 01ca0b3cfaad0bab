"""Kernels that break no rule: views, and DMA."""

import numpy as np
from functions_of_tiles import ISA, NL, XY, P, program
from template import NEW

KERNELS = (
    program(
        "views",
        f"{NL}:197",
        "slices, steps and selections",
        """
a = nl.load(x)
c = sb((128, 16))
nisa.tensor_copy(dst=c, src=a[$index])
return save(c)
""",
        lambda x, y: x[:, 0:32:2],
        within=0.0,
        vary={"index": (":, 0:32:2", "..., 0:32:2", "0:128, nl.ds(0, 32)][:, ::2")},
    ),
    program(
        "views",
        f"{NL}:222",
        "free dimensions are permuted",
        """
a = nl.load(x).reshape((128, 4, 16)).permute((0, 2, 1))
c = sb((128, 16, 4))
nisa.tensor_copy(dst=c, src=a)
return save(c)
""",
        lambda x, y: x.reshape(128, 4, 16).transpose(0, 2, 1),
        within=0.0,
    ),
    program(
        "views",
        f"{NL}:244",
        "a column is broadcast over a free dimension",
        """
a, b = nl.load(x), nl.load(y)
c = sb((128, 8, 8))
row = b[:, 0:8].expand_dim(1).broadcast(1, 8)
nisa.tensor_tensor(dst=c, data1=a.reshape((128, 8, 8)), data2=row, op=nl.add)
return save(c)
""",
        lambda x, y: x.reshape(128, 8, 8) + y[:, None, 0:8],
    ),
    program(
        "views",
        f"{NL}:372",
        "a rearranged view",
        """
a = nl.load(x).rearrange(('p', ('h', 'w')), ('p', 'w', 'h'), {'h': 4})
c = sb((128, 16, 4))
nisa.tensor_copy(dst=c, src=a)
return save(c)
""",
        lambda x, y: x.reshape(128, 4, 16).transpose(0, 2, 1),
        within=0.0,
    ),
    program(
        "views",
        f"{NL}:516",
        "bits as another type",
        """
a = nl.load(x)
c = sb((128, $n), nl.$dtype)
nisa.tensor_copy(dst=c, src=a.view(nl.$dtype))
return save(c.view(nl.float32))
""",
        lambda x, y: x,
        within=0.0,
        vary={"n": ("64",), "dtype": ("int32", "uint32")},
    ),
    program(
        "views",
        f"{NL}:486",
        "an explicit pattern",
        """
a = nl.load(x)
c = sb((128, 32))
nisa.tensor_copy(dst=c, src=a.ap(pattern=[[64, 128], [$step, 32]], offset=$offset))
return save(c)
""",
        None,
        vary={"step": ("1", "2"), "offset": ("0", "1")},
    ),
    program(
        "views",
        f"{NL}:178",
        "a pattern from a view's own",
        """
a = nl.load(x)
pattern = a.get_pattern()
pattern[0][1] = 64
c = sb((64, 64))
nisa.tensor_copy(dst=c, src=a.ap(pattern=pattern))
return save(c)
""",
        lambda x, y: x[:64],
        within=0.0,
    ),
    program(
        "views",
        f"{NL}:340",
        "HBM is reshaped and merged at will",
        """
c = sb((64, 128))
nisa.dma_copy(dst=c, src=x.reshape((64, 2, 64)).$view)
return save(c)
""",
        lambda x, y: x.reshape(64, 128),
        within=0.0,
        vary={"view": ("flatten_dims(1, 2)", "reshape((64, 128))")},
    ),
    program(
        "views",
        f"{NL}:236",
        "HBM is permuted",
        """
c = sb((64, 128))
nisa.dma_copy(dst=c, src=x.permute((1, 0)))
return save(c)
""",
        lambda x, y: x.T,
        within=0.0,
    ),
    program(
        "views",
        f"{NL}:422",
        "a row of HBM that a tile names",
        """
c, i = sb((1, 64)), sb((1, 1), nl.int32)
nisa.memset(i, value=$row)
nisa.dma_copy(dst=c, src=x.select(0, i).expand_dim(0))
return save(c)
""",
        None,
        vary={"row": ("0", "127")},
    ),
    program(
        "dma",
        f"{ISA}:251",
        "rows are gathered",
        """
r, c = nl.load(i), sb((128, 64))
nisa.dma_copy(dst=c, src=x.$view)
return save(c)
""",
        lambda x, y, i: x[i[:, 0]],
        within=0.0,
        args=(*XY, "i uint32 128 1"),
        vary={"view": ("ap(pattern=[[64, 128], [1, 64]], vector_offset=r, indirect_dim=0)",)},
    ),
    program(
        "dma",
        f"{ISA}:335",
        "rows are scattered",
        """
r, c, out = sb((128, 1), nl.uint32), nl.load(x), hb((128, 64))
nisa.iota(r, pattern=[[0, 1]], offset=127, channel_multiplier=-1)
nisa.dma_copy(dst=out.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, indirect_dim=0), src=c)
return out
""",
        lambda x, y: x[::-1],
        within=0.0,
    ),
    program(
        "dma",
        f"{ISA}:376",
        "rows out of bounds are skipped",
        """
r, c = sb((128, 1), nl.uint32), nl.load(y)
nisa.iota(r, pattern=[[0, 1]], offset=0, channel_multiplier=2)
rows = x.ap(pattern=[[64, 128], [1, 64]], vector_offset=r, indirect_dim=0)
nisa.dma_copy(dst=c, src=rows, oob_mode=nisa.oob_mode.skip)
return save(c)
""",
        lambda x, y: np.where(P < 64, x[np.minimum(2 * P[:, 0], 127)], y),
        within=0.0,
    ),
    program(
        "dma",
        f"{ISA}:286",
        "DMA converts",
        """
c = sb((128, 64), nl.$dtype)
nisa.dma_copy(dst=c, src=x)
return save(c)
""",
        lambda x, y: x,
        within=2.0**-8,
        vary={"dtype": ("bfloat16", "float16")},
    ),
    program(
        "dma",
        f"{ISA}:372",
        "modes of descriptor generation",
        """
c = sb((128, 64))
nisa.dma_copy(dst=c, src=x, dge_mode=nisa.dge_mode.$mode)
return save(c)
""",
        lambda x, y: x,
        within=0.0,
        on=NEW,
        vary={"mode": ("none", "swdge", "hwdge", "unknown")},
    ),
    program(
        "dma",
        f"{ISA}:381",
        "engines of hardware DGE",
        """
c = sb((128, 64))
nisa.dma_copy(dst=c, src=x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.$engine)
return save(c)
""",
        lambda x, y: x,
        within=0.0,
        on=NEW,
        vary={"engine": ("sync", "scalar")},
    ),
    program(
        "dma",
        f"{ISA}:371",
        "priorities",
        """
c = sb((128, 64))
nisa.dma_copy(dst=c, src=x, priority=$n)
return save(c)
""",
        lambda x, y: x,
        within=0.0,
        on=("trn3",),
        vary={"n": ("0", "3")},
    ),
    program(
        "dma",
        f"{ISA}:866",
        "DMA transposes",
        """
c = sb($shape, nl.$dtype)
nisa.dma_transpose(dst=c, src=z, axes=$axes)
return save(c)
""",
        lambda x, y, z: z.T,
        within=0.0,
        args=(*XY, "z $dtype 32 64"),
        vary={"shape": ("(64, 32)",), "axes": ("(1, 0)", "None"), "dtype": ("float32", "bfloat16")},
    ),
    program(
        "dma",
        f"{ISA}:869",
        "DMA transposes three dimensions",
        """
c = sb((8, 4, 16))
nisa.dma_transpose(dst=c, src=z, axes=(2, 1, 0))
return save(c)
""",
        lambda x, y, z: z.T,
        within=0.0,
        args=(*XY, "z float32 16 4 8"),
    ),
    program(
        "dma",
        f"{ISA}:2684",
        "DMA adds",
        """
c = sb((128, 64))
nisa.dma_compute(dst=c, srcs=[x, nl.load(y), x], reduce_op=nl.add)
return save(c)
""",
        lambda x, y: x + y + x,
    ),
    program(
        "dma",
        f"{ISA}:281",
        "a copy within HBM",
        """
out = hb((64, 128))
nisa.dma_copy(dst=out, src=x.reshape((64, 128)))
return out
""",
        lambda x, y: x.reshape(64, 128),
        within=0.0,
    ),
)
