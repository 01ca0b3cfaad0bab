"""Random changes of a legal program, after which it need not be legal any more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_reference.choices import Choices
from nki_reference.functions import FUNCTIONS
from nki_reference.numbers import ANY, STORED, size_of
from nki_reference.program import TARGETS, Call, Program, Storage, Token, View

TOKENS = (
    *(
        f"nl.{name}"
        for name in (
            *FUNCTIONS,
            *(
                "add",
                "subtract",
                "multiply",
                "divide",
                "maximum",
                "minimum",
                "power",
                "mod",
                "fmod",
            ),
            *("equal", "not_equal", "less", "greater_equal", "logical_and", "logical_xor"),
            *("bitwise_and", "bitwise_xor", "invert", "left_shift", "right_shift", "bypass"),
            *("average", "abs_max", "abs_min", "max", "min", "cos", "floor"),
        )
    ),
    *(f"nisa.engine.{name}" for name in ("vector", "scalar", "gpsimd", "tensor", "dma", "sync")),
    *(
        f"nisa.reduce_cmd.{name}"
        for name in ("idle", "reset", "reduce", "reset_reduce", "load_reduce")
    ),
    "nisa.oob_mode.skip",
    "nisa.dge_mode.hwdge",
    "nisa.matmul_perf_mode.double_row",
    "nl.float32",
)
NUMBERS = (0, 1, -1, 2, 3, 8, 128, 513, 10**6, 2**31, -(2**40), 10**30)
FLOATS = (0.0, 1.0, 0.5, -2.5, 1e30, 1e300, math.inf, -math.inf, math.nan)
OTHERS: tuple[Any, ...] = (None, True, False, "", "add", (), [], (0, 1), (64, 0), [[1, 2]], [1.5])
KEYWORDS = (
    *("engine", "reverse0", "reverse1", "negate", "keepdims", "accumulate", "is_transpose"),
    *("bias", "scale", "reduce_op", "reduce_cmd", "reduce_res", "op1", "operand1", "imm1"),
    *("oob_mode", "dge_mode", "priority", "range_start", "axes", "mask", "dtype", "tile_size"),
    *("tile_position", "perf_mode", "num_valid_indices", "offset", "on_false_value"),
)


def mutate(c: Choices, program: Program) -> None:
    """Change one or two things."""
    program.is_wild = True
    for _ in range(c.pick((1, 1, 1, 2))):
        c.pick(CHANGES)(c, program)


def _calls(program: Program) -> list[Call]:
    return [call for call in program.calls if not call.name.startswith("register_alloc")]


def _value(c: Choices, program: Program) -> Any:
    kind = c.pick(("token", "number", "float", "other", "view"))
    if kind == "token":
        return Token(c.pick(TOKENS))
    if kind == "view":
        views = _still(program)
        return c.pick(views)[2] if views else None
    return c.pick({"number": NUMBERS, "float": FLOATS, "other": OTHERS}[kind])


def _views(program: Program) -> list[tuple[Call, str, View]]:
    return [
        (call, key, value)
        for call in _calls(program)
        for key, value in call.arguments.items()
        if isinstance(value, View)
    ]


def _still(program: Program) -> list[tuple[Call, str, View]]:
    """Views that any call may take: a register may be made only later."""
    return [found for found in _views(program) if found[2].offset is None]


def _change_argument(c: Choices, program: Program) -> None:
    calls = [call for call in _calls(program) if call.arguments]
    if not calls:
        return
    call = c.pick(calls)
    keys = list(call.arguments)
    constants = [key for key in keys if not isinstance(call.arguments[key], View)]
    key = c.pick(constants) if constants and c.flag(70) else c.pick(keys)
    call.arguments[key] = _value(c, program)


def _drop_argument(c: Choices, program: Program) -> None:
    calls = [call for call in _calls(program) if call.arguments]
    if calls:
        call = c.pick(calls)
        del call.arguments[c.pick(list(call.arguments))]


def _add_argument(c: Choices, program: Program) -> None:
    calls = _calls(program)
    if calls:
        c.pick(calls).arguments[c.pick(KEYWORDS)] = _value(c, program)


def _swap_views(c: Choices, program: Program) -> None:
    views, others = _views(program), _still(program)
    if len(views) > 1 and others:
        (call, key, _), (_, _, other) = c.pick(views), c.pick(others)
        call.arguments[key] = other


def _change_target(c: Choices, program: Program) -> None:
    program.target = c.pick(tuple(TARGETS))


def _change_dtype(c: Choices, program: Program) -> None:
    storage = c.pick(program.storages)
    storage.dtype = c.pick(ANY)
    for field in ("values", "other"):
        if getattr(storage, field) is not None:
            rng = np.random.default_rng(c.integer(0, 2**31))
            count = storage.size * size_of(storage.dtype)
            bits = rng.integers(0, 256, count, dtype=np.uint8)
            values = bits.view(STORED[storage.dtype]).reshape(storage.shape)
            setattr(storage, field, values)


def _change_buffer(c: Choices, program: Program) -> None:
    storage = c.pick(program.storages)
    if storage.buffer != "argument":
        storage.buffer = c.pick(("sbuf", "psum", "private_hbm"))


def _forget_content(c: Choices, program: Program) -> None:
    storage = c.pick(program.storages)
    # Which elements a dynamic address reads is not known: a tensor written in part may be legal.
    moving = {view.storage for _, _, view in _views(program) if view.offset is not None}
    if storage.buffer != "argument" and storage not in moving:
        storage.values = storage.other = None


def _place(c: Choices, program: Program) -> None:
    """Manual addresses that do not overlap, at any partition."""
    storage = c.pick(program.storages)
    if storage.is_on_chip:
        start = c.pick((0, 1, 16, 32, 48, 64, 96, 120))
        number = program.storages.index(storage)
        column = 2048 * (number % 8) if storage.buffer == "psum" else 8192 * number
        storage.address = (start, column)


def _cut_view(c: Choices, program: Program) -> None:
    """Fewer partitions or elements, or another first one."""
    views = _views(program)
    if not views:
        return
    call, key, view = c.pick(views)
    if view.offset is not None or view.other is not None:
        return
    dim = c.integer(0, len(view.shape) - 1)
    size = view.shape[dim]
    start = c.integer(0, size - 1)
    stop = c.integer(start + 1, size)
    cut = (slice(None),) * dim + (slice(start, stop),)
    text = ":, " * dim + f"{start}:{stop}"
    call.arguments[key] = View(view.storage, f"{view.expression}[{text}]", view.index[cut])


# Views and tensors that do not exist, whatever they are made of.
BROKEN = (
    "{name}[{rows}:{beyond}]",
    "{name}.slice(0, 0, {beyond})",
    "{name}.slice(1, 3, 3)",
    "{name}.ap(pattern=[[{pitch}, {rows}], [1, {larger}]])",
    "{name}.ap(pattern=[[{pitch}, {rows}], [-1, 1]])",
    "{name}.ap(pattern=[], offset=0)",
    "{name}.ap(pattern=[[{pitch}, 1], [1, 0]])",
    "{name}.ap(pattern=[[{pitch}, 1], [1, 1]], offset={size})",
    "{name}.reshape(({rows}, {wider}))",
    "{name}.permute((0, 0))",
    "{name}.broadcast(1, 0)",
    "{name}.broadcast(-9, 4)",
    "{name}.squeeze_dim(7)",
    "{name}.reshape_dim(1, ({wider}, 1))",
    "{name}.flatten_dims(1, 9)",
    "{name}.view('complex64')",
    "{name}.view(None)",
    "{name}['x']",
    "{name}[1.5]",
    "{name}[0:1:0]",
    "{name}[..., ...]",
    "{name}[0, 0, 0, 0, 0, 0, 0, 0, 0]",
    "{name}.select(1, {pitch})",
    "{name}.vector_select(1, {name})",
    "{name}.indirect(None)",
    "{name}.indirect({name}, 0)",
    "{name}.rearrange(('p', 'q'), ('p',))",
    "nl.ndarray((0, 4), dtype=nl.float32, buffer=nl.{buffer})",
    "nl.ndarray((200, 4), dtype=nl.float32, buffer=nl.sbuf)",
    "nl.ndarray((2, 4), dtype='float7', buffer=nl.sbuf)",
    "nl.ndarray((2, 1.5), dtype=nl.float32, buffer=nl.sbuf)",
    "nl.ndarray((2, 4), dtype=nl.float32, buffer='nowhere')",
    "nl.ndarray((2, 300000), dtype=nl.float32, buffer=nl.sbuf)",
    "nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.sbuf, address=(127, 0))",
)


def _broken(template: str, storage: Storage) -> str:
    """The template for a storage."""
    rows, pitch, size = storage.shape[0], storage.pitch, storage.size
    return template.format(
        name=storage.name,
        buffer=storage.buffer,
        rows=rows,
        beyond=rows + 1,
        pitch=pitch,
        wider=pitch + 1,
        size=size,
        larger=size + 1,
    )


def _break_view(c: Choices, program: Program) -> None:
    views = _views(program)
    if not views:
        return
    call, key, view = c.pick(views)
    if view.storage.buffer == "argument":
        return
    text = _broken(c.pick(BROKEN), view.storage)
    call.arguments[key] = View(view.storage, text, view.index, is_broken=True)


def _rename_call(c: Choices, program: Program) -> None:
    from nki_reference.table import ENTRIES

    calls = _calls(program)
    if calls:
        c.pick(calls).name = c.pick(sorted(set(ENTRIES) - {"language"}))


CHANGES = (
    _change_argument,
    _change_argument,
    _change_argument,
    _drop_argument,
    _add_argument,
    _add_argument,
    _swap_views,
    _swap_views,
    _change_target,
    _change_dtype,
    _change_dtype,
    _change_buffer,
    _forget_content,
    _place,
    _cut_view,
    _cut_view,
    _break_view,
    _break_view,
    _rename_call,
)
