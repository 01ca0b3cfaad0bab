"""Groups of partitions with a product of their own, side by side in the array of TensorE and in a
bank of PSUM.

TensorE adds up the partitions of a product one after another: the sum of 128 equal terms is four
times as far off as that of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.nki_kernels.generator.across import BANK, MOST_SUMS
from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import call

# Partitions of a group: a tile of the array, of which trn1 has none as small as the least ones.
GROUP, HALF = 32, 64
GROUP_OF = f"{HALF} if nisa.get_nc_version() == nisa.nc_version.gen2 else {GROUP}"


@dataclass(frozen=True)
class Groups:
    """The groups of `full` partitions, of a `size` in the source and at the `most` so many, whose
    tiles have `reduced` elements that are added up for each of `kept` ones."""

    size: str
    most: int
    full: int
    kept: int
    reduced: int

    @property
    def chunk(self) -> int:
        """Kept elements of a bank, nearly as many in each."""
        banks = -(-self.kept * self.most // BANK)
        return -(-self.kept // banks)

    @property
    def lines(self) -> list[str]:
        """The names `group`, `groups` and `run` in the source."""
        if self.most == 1:
            return []
        found = [f"group = {self.size}", f"groups = ({self.full} + group - 1) // group"]
        many = f"min({BANK} // ({self.kept} * groups), {self.reduced})"
        is_one = self.reduced == 1 or self.kept * self.most > BANK
        return [*found, "run = 1" if is_one else f"run = {many}"]

    @property
    def run(self) -> str:
        """How many elements that are added up lie side by side in a bank, for each group of
        partitions and each kept one."""
        if self.most > 1:
            return "run"
        return str(max(1, min(BANK // self.kept, self.reduced)))

    @property
    def side(self) -> str:
        """Columns of a bank for each kept element."""
        return self.run if self.most == 1 else "groups * run"


def groups_of(
    full: int, kept: int, reduced: int, *, is_float32: bool, in_one: bool, is_between: bool
) -> Groups:
    """The groups for such a sum: more than one for float32 numbers. Halves where all partitions get
    the total: the ones, a column for each, take so long to load that smaller groups, which move
    fewer columns each, would wait for them. A sum `is_between` that has one bank."""
    most = BANK if is_between else MOST_SUMS
    ways = [(GROUP_OF, -(-full // GROUP))] if in_one else []
    ways.append((str(HALF), -(-full // HALF)))
    ways = [way for way in ways if is_float32 and way[1] * kept <= most]
    size, count = ways[0] if ways else (str(full), 1)
    return Groups(size, count, full, kept, reduced)


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
