"""Groups of partitions with a product of their own, side by side in the array of TensorE and in a
bank of PSUM.

TensorE adds up the partitions of a product one after another: the sum of 128 equal terms is four
times as far off as that of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.nki_kernels.generator.across import BANK
from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import call

# Partitions of a group: a tile of the array, of which trn1 has none as small as the least ones.
GROUP = 32
GROUP_OF = f"64 if nisa.get_nc_version() == nisa.nc_version.gen2 else {GROUP}"


@dataclass(frozen=True)
class Groups:
    """The groups of the partitions, at the `most` so many, whose tiles have `reduced` elements that
    are added up for each of `kept` ones; `beside` of them lie side by side in a bank, the others in
    the next one."""

    most: int
    full: int
    kept: int
    reduced: int
    beside: int

    @property
    def chunk(self) -> int:
        """Kept elements of a product, nearly as many in each."""
        chunks = -(-self.kept // (BANK // self.beside))
        return -(-self.kept // chunks)

    @property
    def run(self) -> int:
        """How many elements that are added up lie side by side in a bank, for each group of
        partitions and each kept one."""
        return max(1, min(BANK // (self.kept * self.beside), self.reduced))

    @property
    def lines(self) -> list[str]:
        """The names `group`, `groups`, `beside` and `banks` in the source."""
        if self.most == 1:
            return []
        return [
            f"group = {GROUP_OF}",
            f"groups = ({self.full} + group - 1) // group",
            f"beside = min({self.beside}, groups)",
            "banks = groups // beside",
        ]

    @property
    def side(self) -> str:
        """Columns of a bank for each kept element."""
        return str(self.run) if self.most == 1 else f"beside * {self.run}"

    def shape(self, rows: int, width: str) -> str:
        """Of a chunk of sums in PSUM, `width` kept ones in so many rows."""
        if self.most == 1:
            return f"({rows}, 1, {width} * {self.run})"
        columns = f"{width} * beside * {self.run}" if self.beside == self.most else str(BANK)
        return f"({rows}, banks, {columns})"


def groups_of(
    full: int, kept: int, reduced: int, *, is_float32: bool, is_between: bool, in_two_banks: bool
) -> Groups:
    """The groups for such a sum: more than one for float32 numbers. Four of them have two banks
    where that is said, or where a sum `is_between`, which has one chunk, has too many for one."""
    most = -(-full // GROUP) if is_float32 else 1
    is_long = kept * reduced * most > BANK
    in_two_banks = in_two_banks or (is_between and kept * most > BANK)
    return Groups(most, full, kept, reduced, 2 if most == 4 and is_long and in_two_banks else most)


def sums_of(bank: str, groups: Groups, rows: int) -> str:
    """The view of a chunk of `wide` sums by banks, kept elements, and what is added up."""
    taken = f"{bank}[0:{rows}, :, 0 : wide * {groups.side}]"
    banks = 1 if groups.most == 1 else "banks"
    return f"{taken}.reshape(({rows}, {banks}, wide, {groups.side}))"


def products_of_groups(
    dst: str, stationary: str, moving: str, rows: object, size: object, onezero: str = "stationary"
) -> list[str]:
    """A product for each group of `size` of the partitions `0 .. rows` of `stationary` and
    `moving`, side by side in the array. Of them `onezero` has the ones; `dst` depends on `start`.
    """
    arguments = [
        f"dst={dst}",
        f"stationary={_of_group(stationary)}",
        f"moving={_of_group(moving)}",
        f"is_{onezero}_onezero=True",
        "tile_position=(start, 0)",
        f"tile_size=({size}, 128)",
    ]
    return [
        f"for start in range(0, {rows}, {size}):",
        f"    end = min(start + {size}, {rows})",
        *indent(call("nisa.nc_matmul", arguments)),
    ]


def _of_group(operand: str) -> str:
    """The partitions of a group of `name` or of `name[:, ...]`."""
    name, brackets, columns = operand.partition("[:")
    return f"{name}[start:end{columns if brackets else ']'}"
