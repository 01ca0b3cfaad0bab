"""Grid sampling as eager computes it, also where a coordinate or a pixel is not finite.

torch's decomposition multiplies the first pixel by zero where a point lies outside of the image,
which is NaN for an infinite pixel, and gives zero at coordinates that are not finite, whatever the
padding is. Eager reads zeros outside. Points behind a camera have coordinates that are not finite:
eager gives NaN between zeros, and the first pixel where it pads with the border or by reflection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# The modes of aten.grid_sampler_2d, and its paddings.
_NEAREST, _BICUBIC = 1, 2
_ZEROS, _BORDER = 0, 1
# The free parameter of cubic convolution, as eager has it.
_A = -0.75


def grid_sampler(
    x: torch.Tensor,
    grid: torch.Tensor,
    mode: int = 0,
    padding: int = 0,
    align_corners: bool = False,
) -> torch.Tensor:
    """aten.grid_sampler_2d: x `[N, C, H, W]`, grid `[N, h, w, 2]` -> `[N, C, h, w]`, row-major;
    half precision is computed in float32.
    """
    wide = x.to(torch.float32) if x.dtype.itemsize < 4 else x
    sizes = (x.shape[3], x.shape[2])
    axes = zip(grid.to(wide.dtype).unbind(-1), sizes, strict=True)
    columns, rows = (_pixels(values, size, align_corners) for values, size in axes)

    def padded(values: torch.Tensor, size: int) -> torch.Tensor:
        return _inside(values, size, padding, align_corners)

    if mode == _BICUBIC:
        result = _bicubic(wide, rows, columns, padded)
    else:
        if padding != _ZEROS:
            rows, columns = (_kept(v, padding) for v in (rows, columns))
        rows, columns = padded(rows, sizes[1]), padded(columns, sizes[0])
        if mode == _NEAREST:
            result = _at(wide, rows.round(), columns.round())
        else:
            result = _bilinear(wide, rows, columns)
    return result.to(x.dtype).contiguous()


def _pixels(values: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Coordinates from -1 to 1 in pixels of an axis."""
    if align_corners:
        return (values + 1) / 2 * (size - 1)
    return ((values + 1) * size - 1) / 2


def _kept(pixels: torch.Tensor, padding: int) -> torch.Tensor:
    """The first pixel for coordinates that no padding brings into the image."""
    lost = pixels.isnan() if padding == _BORDER else ~pixels.isfinite()
    return torch.where(lost, 0.0, pixels)


def _inside(pixels: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Coordinates as the padding brings them into the image."""
    if padding == _ZEROS:
        return pixels
    if padding != _BORDER:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(pixels)
        away = (pixels - low).abs()
        rest = torch.fmod(away, span)
        is_turned = torch.fmod((away / span).floor(), 2.0) == 1
        pixels = torch.where(is_turned, span - rest, rest) + low
    return pixels.clamp(0, size - 1)


def _at(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Pixels `[N, C, h, w]` at whole coordinates `[N, h, w]`, zero outside of the image."""
    batch, channels, height, width = x.shape
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    where = [torch.where(is_inside, v, 0).to(torch.int64).unsqueeze(1) for v in (rows, columns)]
    image = torch.arange(batch, device=x.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    return torch.where(is_inside.unsqueeze(1), x[image, channel, where[0], where[1]], 0)


def _bilinear(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    top, left = rows.floor(), columns.floor()
    down, right = rows - top, columns - left
    corners = (
        (top, left, (1 - down) * (1 - right)),
        (top, left + 1, (1 - down) * right),
        (top + 1, left, down * (1 - right)),
        (top + 1, left + 1, down * right),
    )
    return _sum([_at(x, row, column) * w.unsqueeze(1) for row, column, w in corners])


def _bicubic(
    x: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    padded: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Each of the 16 pixels is padded by itself."""
    top, left = rows.floor(), columns.floor()
    across, along = _cubic(columns - left), _cubic(rows - top)
    lines = []
    for i, weight in enumerate(along):
        row = padded(top + (i - 1), x.shape[2])
        pixels = [_at(x, row, padded(left + (j - 1), x.shape[3])) for j in range(4)]
        line = _sum([p * w.unsqueeze(1) for p, w in zip(pixels, across, strict=True)])
        lines.append(line * weight.unsqueeze(1))
    return _sum(lines)


def _cubic(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Weights of the pixels at -1, 0, 1 and 2, seen from t in [0, 1)."""

    def near(d: torch.Tensor) -> torch.Tensor:
        return ((_A + 2) * d - (_A + 3)) * d * d + 1

    def far(d: torch.Tensor) -> torch.Tensor:
        return ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _sum(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
