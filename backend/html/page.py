"""The document: style, script, tables, and the data that it shows. Nothing is loaded from outside.

Python writes every element; the script filters the rows of tables, and a page without it is
complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLOURS = {
    "nki": "#1f5fa8",
    "xla": "#c4561a",
    "eager": "#7a7f85",
    "launch": "#c9a227",
    "collective": "#2e8b57",
}

_SHORT = 32  # characters of a cell that stay on one line
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 24px auto; max-width: 1180px;
  padding: 0 16px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 32px 0 8px; }
p.note { color: #555; margin: 4px 0 10px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #e2e2e2;
  vertical-align: top; overflow-wrap: break-word; }
th { position: sticky; top: 0; background: #fff; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
svg { display: block; max-width: 100%; height: auto; margin-bottom: 12px; }
svg text { font: 12px system-ui, sans-serif; fill: #222; }
td.short { white-space: nowrap; }
.swatch { display: inline-block; width: 10px; height: 10px; margin-right: 5px; }
.filters { margin: 6px 0; } .filters input { width: 320px; }
.legend span { margin-right: 18px; white-space: nowrap; }
"""

_SCRIPT = """
for (const box of document.querySelectorAll(".filters")) {
  const table = document.getElementById(box.dataset.table);
  const [engine, text] = [box.querySelector("select"), box.querySelector("input")];
  const shown = box.querySelector("output");
  const filter = () => {
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const fits = (!engine.value || row.dataset.engine === engine.value)
        && row.textContent.toLowerCase().includes(text.value.toLowerCase());
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = count + " of " + table.tBodies[0].rows.length;
  };
  engine.addEventListener("change", filter);
  text.addEventListener("input", filter);
  filter();
}
"""


@dataclass(frozen=True)
class Number:
    """A cell: the value that the data has, and how it is written."""

    value: float | None
    text: str


Cell = str | Number


def document(title: str, data: dict[str, Any], sections: Sequence[str]) -> str:
    """The page. `data` is embedded as JSON in the element `data`."""
    # A closing tag, or a comment, within a string would end the element.
    embedded = json.dumps(data).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>\n{''.join(sections)}\n"
        f'<script type="application/json" id="data">{embedded}</script>\n'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def write(path: Path, text: str) -> Path:
    """Write a page."""
    path.write_text(text, encoding="utf-8")
    return path


def heading(title: str, note: str = "") -> str:
    """The head of a section."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2>{below}\n"


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(engine, text) with the engine's colour."""
    parts = (
        f'<span><i class="swatch" style="background:{COLOURS[engine]}"></i>{escape(text)}</span>'
        for engine, text in entries
    )
    return f'<p class="legend">{"".join(parts)}</p>\n'


def table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    *,
    filters: bool = False,
) -> str:
    """A table with the id `name`; each row has an engine, which is empty where it has none."""
    is_number = (
        [isinstance(cell, Number) for cell in rows[0][1]] if rows else [False] * len(columns)
    )
    head = "".join(
        f"<th{_class(number)}>{escape(column)}</th>"
        for column, number in zip(columns, is_number, strict=True)
    )
    body = "".join(_row(engine, cells) for engine, cells in rows)
    above = _filters(name, sorted({engine for engine, _ in rows if engine})) if filters else ""
    return (
        f'{above}<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n'
    )


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _row(engine: str, cells: Sequence[Cell]) -> str:
    parts = []
    for index, cell in enumerate(cells):
        if isinstance(cell, Number):
            value = "" if cell.value is None else repr(cell.value)
            parts.append(f'<td class="number" data-value="{value}">{escape(cell.text)}</td>')
        else:
            mark = ""
            if index == 0 and engine:
                mark = f'<i class="swatch" style="background:{COLOURS[engine]}"></i>'
            whole = ' class="short"' if len(cell) <= _SHORT else ""
            text = escape(cell).replace("/", "/<wbr>")  # where long paths may break
            parts.append(f"<td{whole}>{mark}{text}</td>")
    return f'<tr data-engine="{escape(engine)}">{"".join(parts)}</tr>'


def _filters(name: str, engines: Sequence[str]) -> str:
    options = "".join(f'<option value="{one}">{one}</option>' for one in engines)
    return (
        f'<div class="filters" data-table="{name}"><label>engine <select><option value="">all'
        f'</option>{options}</select></label> <label>containing <input type="search"></label> '
        f"<output></output></div>\n"
    )
