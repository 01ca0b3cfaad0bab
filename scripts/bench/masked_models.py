"""Predicted time of Hugging Face models whose attention gets a mask as a tensor, in bfloat16: GPT-2
1x1024 and BERT-base 8x128 with padding, a Llama of GPT-2's size 1x2048 with padding, and a Mistral
with a sliding window of 1,024 of 4,096 tokens. Two layers of each, random weights.

`--target`, `--only TEXT` (models whose name contains it), `--json` prints one object as the last
line. Exit status 0 means that the attention of every layer runs on NKI.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import trnx
from trnx.simulator.hardware import hardware

_LAYERS = 2
_DECODER = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2816,
    "num_hidden_layers": _LAYERS,
    "vocab_size": 32000,
    "use_cache": False,
}


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(n_layer=_LAYERS, use_cache=False))


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=_LAYERS))


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(**_DECODER))


def _mistral() -> torch.nn.Module:
    from transformers import MistralConfig, MistralModel

    return MistralModel(MistralConfig(**_DECODER, sliding_window=1024))


# A model, its batch and length, and how many tokens of the last sequence are padding.
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], int, int, int]] = {
    "GPT-2 1x1024, padding": (_gpt2, 1, 1024, 100),
    "BERT-base 8x128, padding": (_bert, 8, 128, 28),
    "Llama 1x2048, padding": (_llama, 1, 2048, 100),
    "Mistral 1x4096, window 1024": (_mistral, 1, 4096, 0),
}


def measure(name: str, target: str) -> dict[str, Any]:
    """Predicted microseconds of all regions and of those of attention, and the ops off NKI."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, batch, length, padding = MODELS[name]
    model = make().eval().to(torch.bfloat16)
    inputs = {"input_ids": torch.randint(0, 1000, (batch, length))}
    if padding:
        inputs["attention_mask"] = torch.ones((batch, length), dtype=torch.int64)
        inputs["attention_mask"][-1, length - padding :] = 0
    compiled = torch.compile(model, backend="trnx", options={"target": target})
    with torch.no_grad():
        profile = trnx.profile(compiled, target=target, **inputs)
    attention = [r for r in profile.regions if any("sdpa" in op for op in r.ops)]
    return {
        "us": sum(r.seconds for r in profile.regions) * 1e6,
        "attention_us": sum(r.seconds for r in attention) * 1e6,
        "attention_regions": len(attention),
        "regions": len(profile.regions),
        "off_nki": sorted({op for r in profile.regions if r.engine != "nki" for op in r.ops}),
    }


def main() -> int:
    """Command line: 0 where attention runs on NKI."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="trn2", type=lambda name: hardware(name).target)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {}
    for name in MODELS:
        if options.only in name:
            results[name] = row = measure(name, options.target)
            print(
                f"{name:<30}{row['us']:10.1f} us, attention {row['attention_us']:8.1f} us in "
                f"{row['attention_regions']} of {row['regions']} regions, off NKI: "
                f"{', '.join(row['off_nki']) or 'nothing'}",
                flush=True,
            )
    held = all(
        row["attention_regions"] == _LAYERS and not any("sdpa" in op for op in row["off_nki"])
        for row in results.values()
    )
    if options.json:
        print(json.dumps({"results": results, "holds": held}))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
