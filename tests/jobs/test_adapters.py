"""LoRA: what is trained, counted, saved, resumed and served."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trnx.jobs import models
from trnx.jobs.adapters import add_lora, merge_lora, passes
from trnx.jobs.checkpoint_reader import read_metadata
from trnx.jobs.compiling import linear_flops
from trnx.jobs.corpus import load_corpus
from trnx.jobs.drawn_weights import build_model
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.errors import ModelError, ResumeWarning
from trnx.jobs.parallel import linear_sizes
from trnx.jobs.weights import load_safetensors, make_weights, without_weights

pytest.importorskip("peft", reason="needs the extra training (peft)")
Train = Callable[..., tuple[int, list[dict[str, Any]], str]]
SMALL = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--json")
LORA = ("--lora-rank", "4", "--lora-dropout", "0.1")
KEYS: Mapping[str, Any] = {"rank": 4, "alpha": 16.0, "dropout": 0.0, "targets": None}
CPU = torch.device("cpu")


def build(preset: str = "llama-tiny", seed: int = 0, **keys: Any) -> torch.nn.Module:
    config = models.build_config(models.PRESETS[preset], 256, 16, 0.0)
    model = build_model(config, seed)
    add_lora(model, {**KEYS, **keys}, seed)
    return model


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_resumed_run_is_equal_bit_by_bit(
    preset: str, train: Train, text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, *LORA, "--preset", preset, "--steps", "4")
    status, whole, errors = train(*common)
    assert status == 0, errors
    folder = ("--checkpoint-dir", str(tmp_path), "--checkpoint-every", "2", "--keep-checkpoints=9")
    train(*common, *folder)
    first = tmp_path / "step-00000002"
    _, rest, _ = train(*common, *folder, "--resume", str(first))
    assert losses(rest) == {step: loss for step, loss in losses(whole).items() if step > 2}
    assert len(losses(rest)) == 2
    names = read_metadata(first).state_dict_metadata
    assert sum(".lora_" in name for name in names if name.startswith("model.")) > 0
    assert not [name for name in names if name.startswith("model.") and ".lora_" not in name]


def test_adapters_alone_are_trained(train: Train, text: Path, tmp_path: Path) -> None:
    flags = ("--data", str(text), *SMALL, *LORA, "--steps", "3", "--checkpoint-dir", str(tmp_path))
    _, lines, _ = train(*flags)
    assert len(set(losses(lines).values())) == 3
    # Without a first factor of zero, the second one's effect is that of the trained model.
    fresh = GenerationEngine("llama-tiny", "eager", None, CPU)
    found = GenerationEngine(str(tmp_path), "eager", None, CPU)
    other = {
        name
        for name, value in found.module.state_dict().items()
        if not torch.equal(value, fresh.module.state_dict()[name])
    }
    assert found.module.state_dict().keys() == fresh.module.state_dict().keys()
    blocks = {f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(2) for p in "qv"}
    assert other == blocks


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
@pytest.mark.parametrize("targets", [None, ["mlp.c_proj", "down_proj"]])
def test_linear_flops_are_those_that_torch_counts(preset: str, targets: list[str] | None) -> None:
    model = build(preset, targets=targets)
    expected = linear_flops(linear_sizes(model), 32, [], passes(model))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(0, 256, (2, 16))).logits.sum().backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counted.items() if "mm" in str(op) and "bmm" not in str(op))
    assert expected == products
    assert all(value.grad is None for name, value in model.named_parameters() if "lora" not in name)


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_merged_model_equals_that_with_adapters(preset: str) -> None:
    model = build(preset).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".lora_B." in name:
                value.normal_(0, 0.1)
    tokens = torch.randint(0, 256, (2, 16))
    expected = model(input_ids=tokens).logits
    merge_lora(model)
    assert not [name for name, _ in model.named_modules() if "lora" in name or "base" in name]
    torch.testing.assert_close(model(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-5)


def saved_base(folder: Path, seed: int = 5) -> torch.nn.Module:
    config = models.build_config(models.PRESETS["llama-tiny"], 256, 16, 0.0)
    model = build_model(config, seed)
    model.save_pretrained(folder)  # type: ignore[operator]
    return model


def test_model_of_files_is_adapted_and_served(train: Train, text: Path, tmp_path: Path) -> None:
    base = saved_base(tmp_path / "hf")
    flags = ("--data", str(text), *SMALL, *LORA, "--steps", "2", "--init-from")
    common = (*flags, str(tmp_path / "hf"), "--checkpoint-dir", str(tmp_path / "ckpt"))
    status, lines, errors = train(*common)
    assert status == 0, errors
    tokens = load_corpus(text, "bytes", 16, 0).batch(0, 2)
    logits = base(input_ids=tokens[:, :-1]).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    assert losses(lines)[1] == pytest.approx(loss.item(), rel=1e-6)
    served = GenerationEngine(str(tmp_path / "ckpt"), "eager", None, CPU).module.state_dict()
    changed = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(served["lm_head.weight"], base.state_dict()["lm_head.weight"])
    assert not torch.equal(served[changed], base.state_dict()[changed])
    # Other weights in the same place are neither trained on nor served with these adapters.
    saved_base(tmp_path / "hf", seed=6)
    with pytest.raises(ModelError, match="not the weights that the adapters were trained beside"):
        GenerationEngine(str(tmp_path / "ckpt"), "eager", None, CPU)
    status, _, errors = train(*common)
    assert status == 1
    assert "is of another run: its base is" in errors


def test_adapters_beside_a_model_without_weights_have_values(tmp_path: Path) -> None:
    expected = saved_base(tmp_path)
    with without_weights():
        model = models.make_model(expected.config)
    add_lora(model, KEYS, 0)
    make_weights(model, CPU)
    load_safetensors(tmp_path, model)
    values = dict(model.named_parameters())
    first = "model.layers.0.self_attn.q_proj.lora_{}.default.weight"
    assert 0 < values[first.format("A")].abs().max() < 1
    assert not values[first.format("B")].any()
    tokens = torch.randint(0, 256, (1, 16))
    found = model(input_ids=tokens).logits
    torch.testing.assert_close(found, expected(input_ids=tokens).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora-targets", "nothing"), "ModelError: peft refuses --lora-targets: "),
        (("--preset", "gpt2-tiny", "--lora-targets", "lm_head"), "lm_head shares its weights with"),
        (("--lora-rank", "-1"), "FlagError: --lora-rank must not be negative"),
        (("--lora-alpha", "0"), "FlagError: --lora-alpha must be positive"),
        (("--lora-dropout", "1"), "FlagError: --lora-dropout must be at least 0 and below 1"),
    ],
)
def test_bad_flags_are_named_errors(
    flags: tuple[str, ...], message: str, train: Train, text: Path
) -> None:
    status, _, errors = train("--data", str(text), *SMALL, *LORA, "--steps", "1", *flags)
    assert status == 1
    assert message in errors


def test_missing_package_is_a_named_error(
    train: Train, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    status, _, errors = train("--data", str(text), *SMALL, *LORA, "--steps", "1")
    assert status == 1
    assert "MissingJobsExtraError: --lora-rank needs the package peft" in errors


def test_checkpoint_of_other_adapters_is_refused(train: Train, text: Path, tmp_path: Path) -> None:
    common = ("--data", str(text), *SMALL, "--steps", "1", "--checkpoint-dir", str(tmp_path))
    train(*common, *LORA)
    for flags in ((), (*LORA, "--lora-rank", "8")):
        status, _, errors = train(*common, *flags)
        assert status == 1
        assert "is of another run: its lora is" in errors


def test_adapters_run_on_nki_and_equal_eager(train: Train, text: Path) -> None:
    common = ("--data", str(text), "--sequence-length", "16", "--batch", "2", "--steps", "2")
    common += ("--activation-checkpointing", "--json")
    flags = (*common, "--lora-rank", "4", "--backend")
    _, eager, _ = train(*flags, "eager")
    status, lines, errors = train(*flags, "trnx", "--min-nki-share", "0.99")
    assert status == 0, errors
    assert losses(lines) == pytest.approx(losses(eager), rel=1e-4)
    assert lines[-1]["graph_breaks"] == 0
    assert lines[-1]["nki_share_min"] == pytest.approx(1.0)
    (throughput,) = (line for line in lines if line.get("event") == "throughput")
    speed, ratio = throughput["predicted_tokens_per_second"], throughput["measured_to_predicted"]
    assert speed == pytest.approx(32 / sum(throughput["predicted_seconds"].values()))
    assert throughput["measured_tokens_per_second"] == lines[-1]["tokens_per_second"]
    assert ratio == pytest.approx(throughput["measured_tokens_per_second"] / speed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [("--parallel", "ddp"), ("--parallel", "fsdp"), ("--tensor-parallel", "2")]
)
@pytest.mark.parametrize("base", ["random", "files"])
def test_ranks_equal_one_process(
    mode: tuple[str, ...],
    base: str,
    launch: Callable[..., Any],
    train: Train,
    text: Path,
    tmp_path: Path,
) -> None:
    flags = ("--data", str(text), *SMALL, "--lora-rank", "4", "--steps", "4")
    flags += ("--lora-targets", "q_proj,v_proj,o_proj,up_proj,down_proj", "--learning-rate", "0.01")
    if base == "files":
        saved_base(tmp_path / "hf")
        flags += ("--init-from", str(tmp_path / "hf"))
    expected = losses(train(*flags)[1])
    job = launch(*flags, *mode, "--checkpoint-dir", str(tmp_path / "ckpt"), processes=2)
    found = losses([line for line in job.lines() if "step" in line])
    status, errors = job.wait()
    assert status == 0, errors
    assert found == pytest.approx(expected, rel=1e-4)
    # Read by one process, the checkpoint of two is the same model.
    GenerationEngine(str(tmp_path / "ckpt"), "eager", None, CPU)
    run = json.loads((tmp_path / "ckpt" / "step-00000004" / "run.json").read_text())
    assert run["world"] == 2


def test_changed_flags_are_told_and_hold(train: Train, text: Path, tmp_path: Path) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path))
    train(*common, "--steps", "1")
    flags = ("--weight-decay", "0.5", "--learning-rate", "0.1", "--steps", "2")
    message = r"goes on with --learning-rate 0\.1 \(was 0\.001\), --weight-decay 0\.5 \(was 0\.01\)"
    with pytest.warns(ResumeWarning, match=message):
        decayed = train(*common, *flags)[0]
    assert decayed == 0
    strong = GenerationEngine(str(tmp_path), "eager", None, CPU).module.state_dict()
    for step in (tmp_path / "step-00000002").iterdir():
        step.unlink()
    (tmp_path / "step-00000002").rmdir()
    with pytest.warns(ResumeWarning, match="weight-decay"):
        train(*common, *flags, "--weight-decay", "0")
    weak = GenerationEngine(str(tmp_path), "eager", None, CPU).module.state_dict()
    # The rate is 0.01 in the last step: decay takes away that part of half of each weight.
    name = "model.layers.0.mlp.up_proj.weight"
    assert strong[name].abs().mean() < weak[name].abs().mean()
