"""The HTML pages of explanations and profiles show what `--json` prints: as they are written, and
in a headless browser after their script has run, without an error on its console."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend.html.reports import profile_page
from trnx.backend.report import percent
from trnx.simulator.timing.summary import time_text

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--dump-dom",
)  # fmt: skip


class UNet(torch.nn.Module):
    """Two scales, a norm, attention, a skip connection, and a line that breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.down = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.last = torch.nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.silu(self.norm(self.first(x)))
        deep = F.silu(self.down(wide))
        q = deep.flatten(2).mT.unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, q, q).squeeze(1).mT.view_as(deep)
        if mixed.sum() > 1e9:
            mixed = mixed.cumsum(1)
        return self.last(torch.cat([wide, F.interpolate(mixed, scale_factor=2.0)], 1))


def unet() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    return UNet().eval(), {"x": torch.randn(1, 3, 16, 16)}


def gpt2() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    transformers = pytest.importorskip("transformers", reason="needs the extra `demo`")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=64, vocab_size=256, n_positions=64, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    return model, {"input_ids": torch.randint(0, 256, (2, 16))}


def demo() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    pytest.importorskip("transformers", reason="needs the extra `demo`")
    from trnx.backend.demo import load

    model, tokens = load(torch.float32)
    layers: Any = model.encoder
    layers.layer = layers.layer[:1]
    return model, {name: value[:2] for name, value in tokens.items()}


@dataclass
class Page(HTMLParser):
    """What stands in a page: cells of tables, marks in drawings, the embedded data."""

    tables: dict[str, list[tuple[str, list[str]]]] = field(default_factory=dict)
    values: dict[str, list[list[str | None]]] = field(default_factory=dict)
    counts: list[str] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    hidden: int = 0
    data: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._table = self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [str(named[key]) for key in ("src", "href") if key in named]
        if tag == "table":
            self._table = str(named["id"])
            self.tables[self._table], self.values[self._table] = [], []
        elif tag == "tr" and "data-engine" in named:
            self.tables[self._table].append((str(named["data-engine"]), []))
            self.values[self._table].append([])
            self.hidden += "hidden" in named
        elif tag == "td":
            self.tables[self._table][-1][1].append("")
            self.values[self._table][-1].append(named.get("data-value"))
        elif tag == "g" and "data-region" in named:
            self.regions.append(str(named["data-region"]))
        elif tag == "rect" and "data-seconds" in named:
            self.seconds.append(float(str(named["data-seconds"])))
        elif tag == "output":
            self.counts.append("")
        if tag in ("td", "output", "script"):
            self._inside = str(named.get("id", tag))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "output", "script"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside == "output":
            self.counts[-1] += data
        elif self._inside == "td":
            self.tables[self._table][-1][1][-1] += data


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    return page


def shown(file: Path, tmp_path: Path) -> str:
    """The document after its script has run. Nothing may be on the console."""
    if not BROWSER:
        pytest.skip("no Chromium is installed")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert told == []
    return done.stdout


def check_explanation(page: Page, data: dict[str, Any]) -> None:
    assert json.loads(page.data) == json.loads(json.dumps(data))
    regions = [(graph, region) for graph in data["graphs"] for region in graph["regions"]]
    expected = [
        (
            region["engine"],
            [
                region["name"], graph["name"], time_text(region["predicted_seconds"]),
                percent(region["predicted_share"]), region["predicted_by"], region["label"],
                region["source"],
            ],
        )
        for graph, region in regions
    ]  # fmt: skip
    assert page.tables["regions"] == expected
    values = [[row[2], row[3]] for row in page.values["regions"]]
    assert values == [
        [repr(region["predicted_seconds"]), repr(region["predicted_share"])]
        for _, region in regions
    ]
    assert page.regions == [region["name"] for _, region in regions]
    entries = [entry for graph in data["graphs"] for entry in graph["fallbacks"]]
    assert [cells for _, cells in page.tables.get("ledger", [])] == [
        [entry[key] for key in ("op", "engine", "reason", "advice", "source")] for entry in entries
    ]
    breaks = [cells for _, cells in page.tables.get("breaks", [])]
    assert breaks == [[b["reason"], b["source"], str(b["count"])] for b in data["graph_breaks"]]
    check_times(page, data["graphs"], [region["predicted_seconds"] for _, region in regions])
    assert sum(page.seconds) == pytest.approx(data["predicted_seconds"])


def check_profile(page: Page, data: dict[str, Any]) -> None:
    assert json.loads(page.data) == json.loads(json.dumps({"targets": [data]}))
    rows = page.tables["regions"]
    assert [(engine, cells[0], cells[1], cells[5]) for engine, cells in rows] == [
        (one["engine"], one["name"], one["graph"], one["label"]) for one in data["regions"]
    ]
    values = page.values["regions"]
    assert [row[2] for row in values] == [repr(one["seconds"]) for one in data["regions"]]
    queues = {cells[0]: row[1:] for (_, cells), row in
              zip(page.tables["queues"], page.values["queues"], strict=True)}  # fmt: skip
    assert queues == {
        name: [repr(one["busy_seconds"]), repr(one["stalled_seconds"])]
        for name, one in data["queues"].items()
    }
    assert [cells[0] for _, cells in page.tables["path"]] == [
        one["location"] for one in data["critical_path"]
    ]
    check_times(page, data["graphs"], [one["seconds"] for one in data["regions"]])
    assert sum(page.seconds) == pytest.approx(data["total_seconds"])


def check_times(page: Page, graphs: list[dict[str, Any]], regions: list[float]) -> None:
    """The timeline has each launch and each region."""
    launches = [graph["launch_seconds"] for graph in graphs]
    assert sorted(page.seconds) == sorted([*launches, *regions])
    assert [cells[0] for _, cells in page.tables["graphs"]] == [graph["name"] for graph in graphs]


# What a user does: filter the regions by an engine, and by a text.
FILTER = """<script>
const box = document.querySelector('.filters[data-table="regions"]');
box.querySelector("select").value = ENGINE;
box.querySelector("select").dispatchEvent(new Event("change"));
box.querySelector("input").value = TEXT;
box.querySelector("input").dispatchEvent(new Event("input"));
</script></body>"""


@pytest.mark.parametrize("make", [unet, gpt2, demo])
def test_pages_show_what_json_has(
    make: Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]], tmp_path: Path
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = make()
    with torch.no_grad():
        explanation, profile = trnx.explain(model, **inputs), trnx.profile(model, **inputs)
    pages: list[tuple[Path, dict[str, Any], Callable[[Page, dict[str, Any]], None]]] = [
        (explanation.write_html(tmp_path / "e.html"), explanation.to_dict(), check_explanation),
        (profile.write_html(tmp_path / "p.html"), profile.to_dict(), check_profile),
    ]
    if make is unet:
        assert explanation.to_dict()["graph_breaks"]
    for file, data, check in pages:
        written = read(file.read_text())
        check(written, data)
        assert written.links == []  # nothing is loaded from elsewhere
        assert written.counts == [""] * len(written.counts)
    for file, data, check in pages:
        page = read(shown(file, tmp_path))
        check(page, data)
        assert page.hidden == 0
        count = len(page.tables["regions"])
        assert page.counts[0] == f"{count} of {count}"


def test_the_filters_of_a_page(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model, inputs = unet()
    with torch.no_grad():
        file = trnx.explain(model, **inputs).write_html(tmp_path / "page.html")
    rows = read(file.read_text()).tables["regions"]
    wanted = [
        cells for engine, cells in rows if engine == "nki" and "CONV" in "".join(cells).upper()
    ]
    assert 0 < len(wanted) < len(rows)
    act = FILTER.replace("ENGINE", '"nki"').replace("TEXT", '"conv"')
    file.write_text(file.read_text().replace("</body>", act))
    page = read(shown(file, tmp_path))
    assert page.counts[0] == f"{len(wanted)} of {len(rows)}"
    assert page.hidden == len(rows) - len(wanted)


def test_texts_of_users_stay_texts() -> None:
    """A name may have what HTML or a script reads as its own."""
    odd = '</script><b>&"\u2028'
    chip = {"peak_bf16_flops": 1.0, "peak_fp32_flops": 1.0, "dma_bytes_per_second": 1.0}
    region = {
        "graph": odd, "name": odd, "label": odd, "engine": "eager", "seconds": 1e-6, "reads": [],
        "share": 1.0, "by": "estimate", "source": odd, "hbm_bytes": None,
    }  # fmt: skip
    data = {
        "targets": [
            {
                "name": odd, "target": "trn2", "chip": chip, "regions": [region],
                "graphs": [{"name": odd, "launch_seconds": 1e-4, "seconds": 1.01e-4}],
            }
        ]
    }  # fmt: skip
    page = read(profile_page(data))
    assert json.loads(page.data) == data
    assert page.regions == [odd]
    assert page.tables["regions"][0][1][0] == odd
