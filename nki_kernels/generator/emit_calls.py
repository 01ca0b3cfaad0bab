"""The body of a generated kernel: loops over the tiles, and the calls that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trnx.nki_kernels.generator.geometry import Geometry, RowTiles, Share


@dataclass(frozen=True)
class TileCalls:
    """Calls of the functions `names`, one a stage, for all tiles of a geometry. `position` are the
    numbers of axes in the names of their counts (`n0`) and starts (`i0`).
    """

    g: Geometry
    position: Mapping[int, int]
    names: list[str]

    def lines(self, share: Share, arguments: list[list[str]]) -> list[str]:
        """The loops of a core; `arguments` are the names of the parameters of each function."""
        lines: list[str] = []
        depth = ""
        for number, axis in enumerate(self.g.loops):
            i = self.position[axis.label]
            turns = range(0, axis.size, axis.block)
            if number == 0 and share.outer is not None:
                turns = share.outer
            lines.append(f"{depth}for i{i} in range({turns.start}, {turns.stop}, {turns.step}):")
            depth += "    "
            if axis.block > 1:
                left = f"{axis.size} - i{i}"
                exact = axis.size % axis.block == 0
                lines.append(
                    f"{depth}n{i} = {axis.block}"
                    if exact
                    else f"{depth}n{i} = min({axis.block}, {left})"
                )
        lead = self.g.lead
        fixed = {
            f"n{self.position[a.label]}": str(a.size)
            for a in (*self.g.free, *([] if lead is None else [lead]))
            if a.block == a.size
        }
        for rows in share.rows:
            values = {"p": str(rows.count), "m": str(rows.count), "k": str(rows.fold), **fixed}
            if lead is not None:
                even = lead.size % lead.block == 0
                ragged = f"n{self.position[lead.label]} * {rows.count}"
                values["p"] = str(lead.block * rows.count) if even else ragged
            lines += [depth + line for line in self._row_calls(rows, arguments, values)]
        return lines

    def _row_calls(
        self, rows: RowTiles, arguments: list[list[str]], values: Mapping[str, str]
    ) -> list[str]:
        """The tiles of one size, one after another: in step t stage s computes tile t - s."""
        starts, behind = rows.starts, len(self.names) - 1

        def calls(row_of: Callable[[int], str | None]) -> list[str]:
            return self._step({s: row_of(s) for s in range(len(self.names))}, arguments, values)

        def loop(first: int) -> list[str]:
            step = starts.step
            if first == len(starts) - 1:
                return calls(lambda s: str(starts[first - s]))
            body = calls(lambda s: f"r - {s * step}" if s else "r")
            return [f"for r in range({starts[first]}, {starts.stop}, {step}):", *indent(body)]

        def single(t: int) -> list[str]:
            return calls(lambda s: str(starts[t - s]) if 0 <= t - s < len(starts) else None)

        if len(starts) <= behind:
            return [line for t in range(len(starts) + behind) for line in single(t)]
        fill = [line for t in range(behind) for line in single(t)]
        drain = [line for t in range(len(starts), len(starts) + behind) for line in single(t)]
        return [*fill, *loop(behind), *drain]

    def _step(
        self, rows: Mapping[int, str | None], arguments: list[list[str]], values: Mapping[str, str]
    ) -> list[str]:
        """The stages that have a row to start at, first ones first; what one hands on is kept
        apart until the next stage, which still has the tile before, is done.
        """
        lines: list[str] = []
        turned: list[str] = []
        for stage, row in rows.items():
            if row is None:
                continue
            taken = ", ".join({**values, "r": row}.get(x, x) for x in arguments[stage])
            target = ""
            if stage < len(self.names) - 1:
                busy = rows[stage + 1] is not None
                target = f"{'next' if busy else 'tiles'}{stage} = "
                turned += [f"tiles{stage} = next{stage}"] if busy else []
            lines.append(f"{target}{self.names[stage]}({taken})")
        return lines + turned


def indent(lines: list[str]) -> list[str]:
    """`lines` one level deeper."""
    return [f"    {line}" for line in lines]
