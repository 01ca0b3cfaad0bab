"""What train.py saved, read by transformers and peft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trnx.backend import demo
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.export import main

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]
SMALL = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--steps", "2")
CPU = torch.device("cpu")
TOKENS = torch.arange(32).reshape(2, 16)


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return found


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_a_model_is_that_of_the_checkpoint(
    preset: str, train: Train, text: Path, tmp_path: Path
) -> None:
    words = ("--tokenizer", str(demo.model_folder()))
    saved = ("--checkpoint-dir", str(tmp_path / "saved"))
    status, _, errors = train("--data", str(text), *SMALL, *words, *saved, "--preset", preset)
    assert status == 0, errors
    assert main([str(tmp_path / "saved"), str(tmp_path / "out")]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    served = GenerationEngine(str(tmp_path / "saved"), "eager", None, CPU)
    assert torch.equal(logits_of(model), logits_of(served.module))
    again = GenerationEngine(str(tmp_path / "out"), "eager", None, CPU)
    assert torch.equal(logits_of(again.module), logits_of(served.module))
    assert again.tokens("a b")[1:-1] == served.tokens("a b")  # with the tokenizer's marks
    assert not list(tmp_path.glob("*.partial"))


# peft asks transformers by a name that is deprecated there.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_adapters_are_peft_s(preset: str, train: Train, text: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra training (peft)")
    base = ("--data", str(text), *SMALL, "--preset", preset)
    train(*base, "--checkpoint-dir", str(tmp_path / "base"))
    assert main([str(tmp_path / "base"), str(tmp_path / "model")]) == 0
    lora = ("--lora-rank", "4", "--init-from", str(tmp_path / "model"), "--learning-rate", "0.1")
    status, _, errors = train(
        "--data", str(text), *SMALL, *lora, "--checkpoint-dir", str(tmp_path / "tuned")
    )
    assert status == 0, errors
    assert main([str(tmp_path / "tuned"), str(tmp_path / "adapters")]) == 0
    assert main([str(tmp_path / "tuned"), str(tmp_path / "whole"), "--merge"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    before = logits_of(model)
    tuned = logits_of(peft.PeftModel.from_pretrained(model, tmp_path / "adapters"))
    whole = logits_of(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole"))
    assert not torch.allclose(before, whole, rtol=1e-3)
    torch.testing.assert_close(tuned, whole)


def test_nothing_is_overwritten_and_errors_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["llama-tiny", str(tmp_path)]) == 1
    assert "is there already: name a folder that is not" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing"), str(tmp_path / "out")]) == 1
    assert "ModelError" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["llama-tiny", str(tmp_path / "file" / "out")]) == 1
    assert "SaveError" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
