"""What boxes of rows and columns fill is what a map of elements says."""

from __future__ import annotations

import random

import pytest
import torch

from trnx.simulator.language.boxes import RegionKey, is_filled

ROWS, COLUMNS = 6, 8


def _marked(keys: list[RegionKey]) -> torch.Tensor:
    """The bytes of regions, one by one."""
    marks = torch.zeros(ROWS * COLUMNS * 4, dtype=torch.bool)
    for offset, shape, strides, itemsize in keys:
        places = torch.tensor([offset])
        for size, step in zip(shape, strides, strict=True):
            places = (places[:, None] + torch.arange(size) * step).flatten()
        for byte in range(itemsize):
            marks[places * itemsize + byte] = True
    return marks


def _drawn(random_: random.Random) -> RegionKey:
    """A box of rows and columns in one of the forms that kernels write it in."""
    top, left = random_.randrange(ROWS), random_.randrange(COLUMNS)
    rows, columns = random_.randint(1, ROWS - top), random_.randint(1, COLUMNS - left)
    offset = top * COLUMNS + left
    form = random_.choice(("rows", "turned", "blocks", "pairs", "repeated", "strided", "bytes"))
    if form == "turned":
        return (offset, (columns, rows), (1, COLUMNS), 4)
    if form == "blocks" and rows % 2 == 0:
        return (offset, (2, rows // 2, columns), (COLUMNS * (rows // 2), COLUMNS, 1), 4)
    if form == "pairs" and columns % 2 == 0:
        return (offset, (rows, columns // 2, 2), (COLUMNS, 2, 1), 4)
    if form == "repeated":
        return (offset, (rows, 3, columns), (COLUMNS, 0, 1), 4)
    if form == "strided" and columns > 2:
        return (offset, (rows, (columns + 1) // 2), (COLUMNS, 2), 4)
    if form == "bytes":
        return (offset * 4 + 1, (rows, columns * 4 - 1), (COLUMNS * 4, 1), 1)
    return (offset, (rows, columns), (COLUMNS, 1), 4)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_say_what_a_map_says(seed: int) -> None:
    drawn, answers = random.Random(seed), {True: 0, False: 0, None: 0}
    for _ in range(400):
        regions = [_drawn(drawn) for _ in range(drawn.randrange(12))]
        wanted = drawn.choice((_drawn(drawn), (0, (ROWS, COLUMNS), (COLUMNS, 1), 4)))
        answer = is_filled(wanted, regions, ROWS * COLUMNS * 4)
        if answer is not None:
            missing = _marked([wanted]) & ~_marked(regions)
            assert answer is not bool(missing.any()), (wanted, regions)
        answers[answer] += 1
    assert min(answers.values()) > 10, answers


def test_tiles_of_rows_and_of_blocks_fill_a_result() -> None:
    tiles: list[RegionKey] = [
        (row * 1024 + column, (128, 512), (1024, 1), 2)
        for row in range(0, 512, 128)
        for column in (0, 512)
    ]
    whole: RegionKey = (0, (512, 1024), (1024, 1), 2)
    assert is_filled(whole, tiles, 512 * 1024 * 2) is True
    assert is_filled(whole, tiles[:-1], 512 * 1024 * 2) is False
    lines: list[RegionKey] = [(start, (256,), (1,), 2) for start in range(0, 1024, 256)]
    assert is_filled((0, (1024,), (1,), 2), lines, 2048) is True
    assert is_filled((0, (1024,), (1,), 2), lines[1:], 2048) is False


def test_nothing_of_a_region_is_asked() -> None:
    assert is_filled((0, (0, 8), (8, 1), 4), [], 0) is True
    assert is_filled((0, (2, 8), (8, 1), 4), [(0, (0, 8), (8, 1), 4)], 64) is False
