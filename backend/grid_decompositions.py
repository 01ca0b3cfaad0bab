"""Grid sampling as torch decomposes it, with eager's results where a coordinate is not finite.

Points behind a camera have such coordinates. torch's decomposition gives zero there, whatever the
padding is; eager gives NaN between zeros, and the first pixel where it pads with the border or by
reflection.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# The modes of aten.grid_sampler_2d.
_BICUBIC, _NEAREST = 2, 1
_ZEROS, _BORDER = 0, 1


def grid_sampler(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`rule`, torch's decomposition of aten.grid_sampler_2d, mended; the result is row-major."""

    def sample(
        x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool
    ) -> torch.Tensor:
        if mode == _BICUBIC or (mode == _NEAREST and padding == _ZEROS):
            return rule(x, grid, mode, padding, align_corners).contiguous()
        sizes = x.shape[:-3:-1]  # width, height
        axes = zip(grid.unbind(-1), sizes, strict=True)
        pixels = [_pixels(values, size, align_corners) for values, size in axes]
        if padding == _ZEROS:
            result = rule(x, grid, mode, padding, align_corners)
            for coordinate in pixels:
                result = result + (coordinate * 0).unsqueeze(1).to(result.dtype)
            return result.contiguous()
        first = [-1.0 if align_corners else 1 / size - 1 for size in sizes]
        lost = [p.isnan() if padding == _BORDER else ~p.isfinite() for p in pixels]
        kept = zip(grid.unbind(-1), lost, first, strict=True)
        inside = [torch.where(is_lost, start, values) for values, is_lost, start in kept]
        return rule(x, torch.stack(inside, -1), mode, padding, align_corners).contiguous()

    return sample


def _pixels(values: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Coordinates from -1 to 1 in pixels of an axis."""
    if align_corners:
        return (values + 1) / 2 * (size - 1)
    return ((values + 1) * size - 1) / 2
