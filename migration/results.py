"""What instructions of NKI 0.1 returned: shape, dtype and memory of the `dst` that NKI 0.6 asks
for. Templates are over the texts of the arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trnx.migration.affine import Affine
from trnx.migration.subscripts import ramp


@dataclass(frozen=True)
class Result:
    """The old positional parameters, and the `dst` by templates; `dtype` without one given."""

    parameters: tuple[str, ...]
    shape: str
    dtype: str
    buffer: str = ""


def _like(main: str, *parameters: str, dtype: str = "") -> Result:
    return Result(parameters, f"{{{main}}}.shape", dtype or f"{{{main}}}.dtype")


_FLOAT32 = "float32"
RESULTS: dict[str, Result] = {
    "activation": _like("data", "op", "data"),
    "activation_reduce": _like("data", "op", "data"),
    "bn_aggr": Result(("data",), "({data}.shape[0], 2)", _FLOAT32),
    "bn_stats": Result(("data",), "({data}.shape[0], 6)", _FLOAT32),
    "dma_transpose": Result(("src",), "({src}.shape[1], {src}.shape[0])", "{src}.dtype"),
    "dropout": _like("data", "data", "prob"),
    "local_gather": Result(
        ("src_buffer", "index", "num_elem_per_idx", "num_valid_indices"),
        "({src_buffer}.shape[0], {num_valid_indices} * {num_elem_per_idx})",
        "{src_buffer}.dtype",
    ),
    "max8": Result(("src",), "({src}.shape[0], 8)", "{src}.dtype"),
    "nc_find_index8": Result(("data", "vals"), "({data}.shape[0], 8)", "uint32"),
    "nc_match_replace8": _like("data", "data", "vals", "imm"),
    "nc_matmul": Result(
        ("stationary", "moving"),
        "({stationary}.shape[1], {moving}.shape[1])",
        _FLOAT32,
        "psum",
    ),
    "nc_transpose": Result(("data",), "({data}.shape[1], {data}.shape[0])", "{data}.dtype", "psum"),
    "range_select": _like("on_true_tile"),
    "reciprocal": _like("data", "data"),
    "scalar_tensor_tensor": _like("data"),
    "sequence_bounds": Result(
        (),
        "({segment_ids}.shape[0], 2, {segment_ids}.shape[1])",
        "{segment_ids}.dtype",
    ),
    "tensor_copy": _like("src", "src"),
    "tensor_partition_reduce": Result(
        ("op", "data"), "(1, {data}.size // {data}.shape[0])", "{data}.dtype"
    ),
    "tensor_scalar": _like(
        "data", "data", "op0", "operand0", "reverse0", "op1", "operand1", "reverse1"
    ),
    "tensor_scalar_reduce": _like("data"),
    "tensor_tensor": _like("data1", "data1", "data2", "op"),
    "tensor_tensor_scan": _like(
        "data0", "data0", "data1", "initial", "op0", "op1", "reverse0", "reverse1"
    ),
}


def bound(parameters: tuple[str, ...], call: ast.Call) -> dict[str, ast.expr] | None:
    """Argument by parameter; None where that cannot be told."""
    if len(call.args) > len(parameters) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    given = dict(zip(parameters, call.args, strict=False))
    return given | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def reduced_shape(data: str, axis: ast.expr | None, keepdims: bool) -> str | None:
    """The shape of `nisa.tensor_reduce` over trailing axes; None where `axis` is no constant."""
    try:
        value = ast.literal_eval(axis) if axis is not None else None
    except ValueError:
        return None
    axes = [value] if isinstance(value, int) else list(value or ())
    if not axes or min(axes) < 1:
        return f"({data}.shape[0], 1)" if axes in ([-1],) else None
    if keepdims or min(axes) == 1:
        return f"({data}.shape[0], {', '.join('1' for _ in (axes if keepdims else [1]))})"
    return f"{data}.shape[:{min(axes)}]"


def _filled(template: str, texts: Mapping[str, str]) -> str | None:
    try:
        return template.format_map(texts)
    except KeyError:
        return None


# Positional parameters of NKI 0.1 by instruction.
PARAMETERS: dict[str, tuple[str, ...]] = {
    **{name: result.parameters for name, result in RESULTS.items()},
    "tensor_reduce": ("op", "data", "axis"),
    "memset": ("shape", "value", "dtype"),
    "iota": ("expr", "dtype"),
    "affine_select": ("pred", "on_true_tile", "on_false_value"),
}


def declaration(
    isa: str,
    dst: str,
    given: Mapping[str, ast.expr],
    texts: Mapping[str, str],
    nl: Callable[[str], str],
) -> str | None:
    """The line that makes `dst`; None where its shape is not known."""
    result = RESULTS.get(isa)
    buffer, kind = "sbuf", ""
    shape: str | None
    if result is not None:
        shape, kind = _filled(result.shape, texts), _filled(result.dtype, texts) or ""
        buffer = result.buffer or buffer
        if isa == "nc_transpose" and texts.get("engine", "").endswith(".vector"):
            buffer = "sbuf"
        if isa == "dma_transpose" and "axes" in given:
            shape = None
        if isa == "nc_matmul" and "perf_mode" in given:
            # Both operands are [K, 2, F] where pairs of rows are multiplied.
            shape = _filled("({stationary}.shape[-1], {moving}.shape[-1])", texts)
    elif isa == "memset":
        shape = texts.get("shape")
    else:
        keeps = given.get("keepdims")
        is_kept = isinstance(keeps, ast.Constant) and bool(keeps.value)
        shape = reduced_shape(texts.get("data", ""), given.get("axis"), is_kept)
        kind = f"{texts.get('data')}.dtype"
    kind = texts.get("dtype") or (nl(kind) if kind.isidentifier() else kind)
    if shape is None or not kind:
        return None
    return _made(dst, shape, kind, nl, buffer)


def _made(dst: str, shape: str, kind: str, nl: Callable[[str], str], buffer: str = "sbuf") -> str:
    return f"{dst} = {nl('ndarray')}({shape}, dtype={kind}, buffer={nl(buffer)})"


def iota(
    dst: str, value: Affine, texts: Mapping[str, str], nl: Callable[[str], str]
) -> tuple[str, str]:
    """The lines for `nisa.iota(expr, dtype)`: the declaration, and the arguments of the call."""
    steps, offset, multiplier = ramp(value)
    sizes = {one.axis: one.size for one, _ in value.terms}
    shape = f"({', '.join(sizes.get(axis, '1') for axis in range(max(value.rank, 2)))})"
    call = f"({dst}, pattern={steps}, offset={offset}, channel_multiplier={multiplier})"
    return _made(dst, shape, texts.get("dtype") or nl("int32"), nl), call


def affine_select(
    dst: str,
    chosen: tuple[str, str, str, str],
    texts: Mapping[str, str],
    nl: Callable[[str], str],
) -> tuple[str, str]:
    """The same of `nisa.affine_select(pred, on_true_tile, on_false_value)`."""
    steps, offset, multiplier, op = chosen
    tile = texts["on_true_tile"]
    call = (
        f"({dst}, pattern={steps}, channel_multiplier={multiplier}, on_true_tile={tile}, "
        f"on_false_value={texts['on_false_value']}, cmp_op={nl(op)}, offset={offset})"
    )
    return _made(dst, f"{tile}.shape", texts.get("dtype") or f"{tile}.dtype", nl), call
