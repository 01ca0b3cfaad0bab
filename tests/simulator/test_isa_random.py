"""rng, dropout, seeds and states; quantize_mx."""

from __future__ import annotations

import pytest
import torch

from trnx.simulator import simulate, trace
from trnx.simulator.errors import IllegalInstructionError


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("engine", ["vector", "gpsimd"])
def test_rng_fills_all_bits_evenly(check_isa, nisa, kind, engine):
    outs = {"dst": ((128, 256), kind)}
    got = check_isa("rng", outs=outs, engine=getattr(nisa.engine, engine))["dst"]
    bits = 8 * got.element_size()
    words = got.to(torch.int64) & ((1 << bits) - 1)
    for bit in range(bits):
        share = ((words >> bit) & 1).double().mean().item()
        assert abs(share - 0.5) < 0.02
    assert len(set(words[:, 0].tolist())) > 60


def test_rng_engines_by_generation(check_isa, nisa, nl):
    with pytest.raises(IllegalInstructionError, match="engine"):
        check_isa("rng", outs={"dst": ((8, 4), nl.int32)}, engine=nisa.engine.gpsimd, target="trn1")
    with pytest.raises(IllegalInstructionError, match="PSUM"):
        check_isa("rng", outs={"dst": ((8, 4), nl.int32)}, engine=nisa.engine.gpsimd, psum=("dst",))
    with pytest.raises(IllegalInstructionError, match="dst is float32"):
        check_isa("rng", outs={"dst": ((8, 4), nl.float32)})


def _draws(nisa, nl, script):
    """A kernel that runs `script(draw, tile)` and returns the tiles of every draw."""

    def kernel(seed):
        tiles = []
        held = nl.ndarray(seed.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=held, src=seed)

        def draw(engine):
            tile = nl.ndarray((128, 16), dtype=nl.uint32, buffer=nl.sbuf)
            nisa.rng(dst=tile, engine=engine)
            out = nl.ndarray((128, 16), dtype=nl.uint32, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=tile)
            tiles.append(out)

        script(draw, held)
        return tuple(tiles)

    return kernel


def test_seed_restarts_the_stream(nisa, nl):
    def script(draw, held):
        for _ in range(2):
            nisa.set_rng_seed(held[0:1, 0:1])
            draw(nisa.engine.vector)
        draw(nisa.engine.vector)

    kernel = _draws(nisa, nl, script)
    first, again, later = simulate(kernel)(torch.full((1, 1), 7, dtype=torch.uint32))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    (other, *_) = simulate(kernel)(torch.full((1, 1), 8, dtype=torch.uint32))
    assert not torch.equal(first, other)


def test_state_is_stored_and_restored(nisa, nl):
    def script(draw, held):
        engine = nisa.engine.gpsimd
        nisa.rand_set_state(held)
        draw(engine)
        state = nl.ndarray((128, 6), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.rand_get_state(state)
        draw(engine)
        nisa.rand_set_state(state)
        draw(engine)

    seeds = torch.arange(128 * 6).view(128, 6).to(torch.uint32)
    first, second, third = simulate(_draws(nisa, nl, script))(seeds)
    assert torch.equal(second, third)
    assert not torch.equal(first, second)


def test_states_need_the_right_words_and_generation(check_isa, nisa, nl):
    for message, target, engine, words in (
        ("needs trn2", "trn1", "gpsimd", 6),
        ("engine", "trn2", "vector", 24),
        ("has 24", "trn3", "vector", 6),
    ):
        with pytest.raises(IllegalInstructionError, match=message):
            check_isa(
                "rand_get_state", outs={"dst": ((128, words), nl.uint32)}, target=target,
                engine=getattr(nisa.engine, engine),
            )  # fmt: skip


def test_every_run_starts_from_the_same_state(nisa, nl):
    kernel = _draws(nisa, nl, lambda draw, _: draw(nisa.engine.vector))
    seed = torch.zeros((1, 1), dtype=torch.uint32)
    program = trace(kernel, [seed])
    (first,) = program.run([seed])
    (second,) = program.run([seed])
    assert torch.equal(first, second)


def test_rand2_is_uniform(check_isa, nl):
    got = check_isa(
        "rand2", outs={"dst": ((128, 512), nl.float32)}, target="trn3", min=-1.0, max=3.0
    )["dst"]
    assert -1.0 <= got.min() < -0.99
    assert 2.99 < got.max() <= 3.0
    assert abs(got.mean().item() - 1.0) < 0.02
    with pytest.raises(IllegalInstructionError, match="must be less"):
        check_isa("rand2", outs={"dst": ((8, 4), nl.float32)}, target="trn3", min=3.0, max=3.0)
    infinite = {"min": -1.0, "max": float("inf")}
    with pytest.raises(IllegalInstructionError, match="must be finite"):
        check_isa("rand2", outs={"dst": ((8, 4), nl.float32)}, target="trn3", **infinite)
    with pytest.raises(IllegalInstructionError, match="dst is float8_e4m3fn"):
        check_isa(
            "rand2", outs={"dst": ((8, 4), nl.float8_e4m3fn)}, target="trn3", min=0.0, max=1.0
        )
    with pytest.raises(IllegalInstructionError, match="needs trn3"):
        check_isa("rand2", outs={"dst": ((8, 4), nl.float32)}, min=0.0, max=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("layout", ["dense", "strided"])
def test_dropout_drops_by_probability(check_isa, dtype, layout):
    x = torch.full((128, 500), 3).to(dtype)
    kind = str(dtype).removeprefix("torch.")
    for prob in (0.0, 0.25, 1.0):
        got = check_isa(
            "dropout", ins={"data": x}, outs={"dst": ((128, 500), kind)}, layout=layout, prob=prob
        )["dst"]  # fmt: skip
        assert set(got.float().unique().tolist()) <= {0.0, 3.0}
        assert abs((got == 0).double().mean().item() - prob) < 0.01


def test_dropout_by_partition(check_isa, nl):
    prob = torch.tensor([[0.0], [1.0]]).repeat(4, 1)
    got = check_isa(
        "dropout", ins={"data": torch.ones(8, 64), "prob": prob},
        outs={"dst": ((8, 64), nl.float32)},
    )["dst"]  # fmt: skip
    assert got.mean(1).tolist() == [1.0, 0.0] * 4
    with pytest.raises(IllegalInstructionError, match="prob is bfloat16"):
        check_isa(
            "dropout", ins={"data": torch.ones(8, 4, dtype=torch.int32), "prob": prob.bfloat16()},
            outs={"dst": ((8, 4), nl.int32)},
        )  # fmt: skip


@pytest.mark.parametrize("partitions", [32, 128])
@pytest.mark.parametrize(
    ("packed", "element", "emax"),
    [("float8_e4m3fn_x4", torch.float8_e4m3fn, 8), ("float8_e5m2_x4", torch.float8_e5m2, 15)],
)
def test_quantize_mx(nisa, nl, partitions, packed, element, emax):
    def kernel(x):
        src = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        dst = nl.ndarray((partitions, 6), dtype=getattr(nl, packed), buffer=nl.sbuf)
        scale = nl.ndarray((partitions, 6), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.memset(dst=scale, value=9)
        nisa.dma_copy(dst=src, src=x)
        nisa.quantize_mx(dst=dst, src=src, dst_scale=scale)
        outs = []
        for tile in (dst, scale):
            outs.append(nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=outs[-1], src=tile)
        return tuple(outs)

    x = (torch.randn(partitions, 24, generator=torch.Generator().manual_seed(0)) * 9).bfloat16()
    x[:8, :4] = 0
    data, scale = simulate(kernel, target="trn3")(x)
    codes = data.contiguous().view(torch.uint8).view(element).float().view(partitions, 24)
    rows = [32 * (p // 32) + (p % 32) // 8 for p in range(partitions)]
    factor = torch.exp2(scale[rows].float() - 127).repeat_interleave(4, 1)
    blocks = x.float().view(partitions // 8, 8, 6, 4).abs().amax((1, 3))
    expected = torch.floor(torch.log2(blocks)) - (emax - 1) + 127
    assert torch.equal(scale[rows[::8]].float(), torch.where(blocks == 0, 0.0, expected))
    assert torch.equal(codes, (x.float() / factor).to(element).float())
    assert scale[4].tolist() == [9] * 6
    with pytest.raises(IllegalInstructionError, match="needs trn3"):
        simulate(kernel)(x)
