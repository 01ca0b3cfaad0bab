"""Many lengths through one compiled model, on one thread: `shapes.py [--count 200] [--json]`.

A four-layer BERT and a six-layer Llama (the sizes of published small models, random weights) see so
many different lengths of 16 to 511 tokens, each twice, with `dynamic=True`; and `generate` makes 64
tokens with a cache that grows and with a static one, compilation included, with `torch.compile` as
it is by default.

The bar of `generate` is that of GPT-2 small (124M parameters), the smallest of its published
family: what is compiled depends on the number of layers, not on their size, so that a ratio to
eager says little of a toy. The six-layer Llama of 15M parameters is measured for information.
`aot_eager_ratio` is what TorchDynamo and AOTAutograd take with no compiler behind them.

Bars: at most 2 graphs and 16 specialisations a model; the mean call of a new length, after the
first ten, at most 1.3x that of a length that is known; results equal eager's; `generate` of GPT-2
at most 6x eager, the tokens of both models equal eager's. Seconds of `generate` are those of CPU,
of all threads of the process: other work on the machine counts little.
`--json` prints one object as the last line; exit status 0 means that the bars hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TRNX_CACHE_DIR"] = "off"  # nothing is known at a cold start

import torch

import trnx

GRAPHS = 2
SPECIALISATIONS = 16
NEW_RATIO = 1.3
GENERATE_RATIO = 6.0
LENGTHS = range(16, 512)
FIRST = 10
TOKENS = 64
PROMPT = 16


def bert() -> torch.nn.Module:
    """The sizes of google/bert_uncased_L-4_H-256_A-4."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return BertModel(config).eval()


def llama() -> torch.nn.Module:
    """The sizes of Karpathy's stories15M."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=288, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6,
        intermediate_size=768, vocab_size=32000, max_position_embeddings=1024,
        bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2() -> torch.nn.Module:
    """GPT-2 small (12 layers, 768 wide, random weights) with its head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(bos_token_id=1, eos_token_id=None, pad_token_id=0)
    return GPT2LMHeadModel(config).eval()


def _cpu_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _inputs(length: int) -> dict[str, torch.Tensor]:
    """Two sequences, of which the second is a third shorter."""
    tokens = torch.randint(1, 30000, (2, length))
    mask = torch.ones_like(tokens)
    mask[1, length - length // 3 :] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def lengths(make: Callable[[], torch.nn.Module], count: int, **given: Any) -> dict[str, float]:
    """Graphs, specialisations, the worst difference to eager over the values of unmasked tokens,
    and mean milliseconds of a call: new and known length after the first ones, and eager."""
    torch._dynamo.reset()
    model = make()
    compiled = torch.compile(model, backend="trnx", dynamic=True)
    new, known, eager, worst = [], [], [], 0.0
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in random.Random(0).sample(LENGTHS, count):
            inputs = {**_inputs(length), **given}
            first, got = _seconds(lambda: compiled(**inputs))  # noqa: B023  called now
            again, _ = _seconds(lambda: compiled(**inputs))  # noqa: B023
            plain, want = _seconds(lambda: model(**inputs))  # noqa: B023
            new.append(first)
            known.append(again)
            eager.append(plain)
            seen = inputs["attention_mask"].bool()
            worst = max(worst, float((got[0] - want[0])[seen].abs().max()))
    mean = {
        name: 1e3 * statistics.mean(times[FIRST:])
        for name, times in (("new_ms", new), ("known_ms", known), ("eager_ms", eager))
    }
    return {
        "graphs": len(reports),
        "specialisations": max(report.shapes for report in reports),
        "error": worst,
        **mean,
        "ratio": mean["new_ms"] / mean["known_ms"],
    }


def generated(make: Callable[[], torch.nn.Module], cache: str | None) -> dict[str, float]:
    """Seconds of `generate` from a cold start, of a second time, and of eager's; `compile` is
    trnx's part of the first, on the clock; `same` is 1 where the tokens are."""
    torch._dynamo.reset()
    model = make()
    tokens = torch.randint(1, 30000, (1, PROMPT))
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(tokens), "max_new_tokens": TOKENS,
        "min_new_tokens": TOKENS, "do_sample": False, "disable_compile": True,
    }  # fmt: skip
    if cache is not None:
        options["cache_implementation"] = cache

    def run() -> torch.Tensor:
        found: torch.Tensor = model.generate(tokens, **options)  # type: ignore[operator]
        return found

    with torch.no_grad():
        run()
        eager, want = _cpu_seconds(run)
        forward = model.forward
        model.forward = torch.compile(forward, backend="trnx")
        with trnx.collect_reports() as reports:
            cold, got = _cpu_seconds(run)
        warm, _ = _cpu_seconds(run)
        torch._dynamo.reset()
        model.forward = torch.compile(forward, backend="aot_eager")
        least, _ = _cpu_seconds(run)
    return {
        "graphs": len(reports),
        "specialisations": sum(report.shapes for report in reports),
        "cold": cold,
        "compile": reports.compile_seconds,
        "warm": warm,
        "eager": eager,
        "ratio": cold / eager,
        "warm_ratio": warm / eager,
        "aot_eager_ratio": least / eager,
        "same": float(torch.equal(got, want)),
    }


def holds(results: dict[str, dict[str, float]]) -> bool:
    """Whether the bars do."""
    sized = [row for name, row in results.items() if name.endswith("lengths")]
    made = {name: row for name, row in results.items() if name.startswith("generate")}
    return all(
        row["graphs"] <= GRAPHS
        and row["specialisations"] <= SPECIALISATIONS
        and row["ratio"] <= NEW_RATIO
        and row["error"] <= 1e-3
        for row in sized
    ) and all(
        row["same"] == 1 and ("gpt2" not in name or row["ratio"] <= GENERATE_RATIO)
        for name, row in made.items()
    )


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="lengths that each model sees")
    parser.add_argument("--only", help="a part of the names of measures")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "bert_lengths": lambda: lengths(bert, chosen.count),
        "llama_lengths": lambda: lengths(llama, chosen.count, use_cache=False),
        "generate_gpt2_growing": lambda: generated(gpt2, None),
        "generate_gpt2_static": lambda: generated(gpt2, "static"),
        "generate_llama_growing": lambda: generated(llama, None),
        "generate_llama_static": lambda: generated(llama, "static"),
    }
    results: dict[str, dict[str, float]] = {}
    for name, measure in measures.items():
        if chosen.only is None or chosen.only in name:
            results[name] = row = measure()
            print(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    if chosen.json:
        print(json.dumps({**results, "bars_hold": holds(results)}))
    return 0 if holds(results) else 1


if __name__ == "__main__":
    sys.exit(main())
