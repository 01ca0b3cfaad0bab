"""What one instruction costs by itself: rules that declarations of instructions name (`isa`).

`cost` is the result, and an instruction as rules see it; `constants` are the numbers with their
sources; `vector` (with ScalarE and GpSimdE), `tensor`, `dma` and `collective` are the rules.
`docs/timing.md` explains the model.
"""
