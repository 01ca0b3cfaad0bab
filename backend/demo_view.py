"""How `trnx demo` shows its result on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trnx.backend.demo import DemoResult
from trnx.backend.demo_corpus import PASSAGES, QUERY
from trnx.backend.report import percent


def _search(result: DemoResult) -> Table:
    table = Table(title=f"Query: {QUERY}", title_justify="left", show_edge=False)
    table.add_column("cosine", justify="right")
    table.add_column("passage")
    for index, score in zip(result.ranking, result.scores, strict=True):
        table.add_row(f"{score:.3f}", PASSAGES[index])
    return table


def _regions(result: DemoResult) -> Table:
    table = Table(title="Regions", title_justify="left", show_edge=False)
    for column in ("engine", "kernel", "ops", "times"):
        table.add_column(column, justify="right" if column == "times" else "left")
    counts: dict[tuple[str, str, str], int] = {}
    for region in result.regions:
        key = (region["engine"], region["kernel"] or "", ", ".join(region["ops"]))
        counts[key] = counts.get(key, 0) + 1
    for (engine, kernel, ops), times in counts.items():
        table.add_row(engine, kernel, ops, str(times))
    return table


def _fallbacks(result: DemoResult) -> Table:
    table = Table(title="Not on NKI, and why", title_justify="left", show_edge=False)
    for column in ("op", "reason", "advice", "source"):
        table.add_column(column)
    for entry in result.fallbacks:
        table.add_row(*(escape(entry[key]) for key in ("op", "reason", "advice", "source")))
    return table


def render(result: DemoResult) -> None:
    """Print the ranking, the regions, the ledger of fallbacks and the comparison with eager."""
    console = Console()
    for table in (_search(result), _regions(result), _fallbacks(result)):
        console.print(table)
        console.print()
    same = "equal to" if result.ranking == result.ranking_eager else "DIFFERENT from"
    console.print(
        f"ranking {same} eager float32's; largest difference from eager {result.max_abs_diff:.2e}, "
        f"least cosine {result.cosine_min:.7f}\n"
        f"on NKI: {percent(result.flops_on_nki)} of FLOPs, {percent(result.nodes_on_nki)} of nodes "
        f"({result.target}, {result.runner} runner)\n"
        f"first call {result.first_seconds:.2f} s (compile {result.compile_seconds:.2f} s), then "
        f"{result.run_seconds:.3f} s; eager {result.eager_seconds:.3f} s",
        highlight=False,
    )
