"""`--generate FOLDER` of `save_pretrained`: tokens, ends, dtypes, chats, and wrong folders."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from trnx.jobs.continuous import ContinuousEngine
from trnx.jobs.engines import GenerationEngine
from trnx.jobs.errors import ModelError

CPU = torch.device("cpu")
WORDS = ["<s>", "</s>", "<end>", *"abcdefghijklmnopqrstuvwxyz .:"]


def save_tokenizer(folder: Path) -> None:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="."))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def save(folder: Path, architecture: str, dtype: torch.dtype) -> Any:
    """A small model of an architecture that train.py does not build, or of one that it does."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        architecture,
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.generation_config.eos_token_id = [1, 2]
    model.generation_config.pad_token_id = 1
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def tokens_of(writer: GenerationEngine, prompt: list[int], most: int) -> list[int]:
    text = ContinuousEngine(writer.module, 2, 64, 8, "eager", None)
    text.warm_up()
    text.start()

    async def run() -> list[int]:
        return [token async for token in text.stream(prompt, most, writer.ends)]

    try:
        return asyncio.run(run())
    finally:
        text.stop()


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("llama", torch.float32), ("qwen3", torch.float32), ("mistral", torch.bfloat16)],
)
def test_text_is_that_of_generate(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = save(tmp_path, architecture, dtype)
    writer = GenerationEngine(str(tmp_path), "eager", None, CPU)
    assert writer.module.dtype == dtype
    assert writer.limit == 96
    assert writer.ends == {1, 2}
    prompt = writer.tokens("hello")
    assert prompt == [0, *(WORDS.index(letter) for letter in "hello")]
    given = torch.tensor([prompt])
    wanted = model.generate(given, do_sample=False, max_new_tokens=20, attention_mask=given >= 0)
    assert tokens_of(writer, prompt, 20) == wanted[0, len(prompt) :].tolist()


def test_every_end_of_the_model_ends_a_text(tmp_path: Path) -> None:
    save(tmp_path, "llama", torch.float32)
    writer = GenerationEngine(str(tmp_path), "eager", None, CPU)
    prompt = writer.tokens("hello")
    writer.ends = frozenset()
    whole = tokens_of(writer, prompt, 12)
    for end in {whole[3], whole[5]}:
        writer.ends = frozenset({end, len(WORDS) + 1})
        assert tokens_of(writer, prompt, 12) == whole[: whole.index(end) + 1]


def test_a_chat_goes_by_the_template_and_special_tokens_are_no_text(tmp_path: Path) -> None:
    save(tmp_path, "llama", torch.float32)
    writer = GenerationEngine(str(tmp_path), "eager", None, CPU)
    found = writer.chat_tokens([{"role": "user", "content": "hi"}])
    assert found == [0, WORDS.index("h"), WORDS.index("i")]
    assert "<s>" not in writer.text(found)


def test_folders_that_cannot_be_served_are_named(tmp_path: Path) -> None:
    model = save(tmp_path / "pickled", "llama", torch.float32)
    (weights,) = (tmp_path / "pickled").glob("*.safetensors")
    weights.unlink()
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    save(tmp_path / "other", "llama", torch.float32)
    config = tmp_path / "other" / "config.json"
    config.write_text(json.dumps({"model_type": "no-such-model"}))
    for name in ("pickled", "other"):
        with pytest.raises(ModelError, match=rf"--generate \S*{name}: no (model|tokenizer) can be"):
            GenerationEngine(str(tmp_path / name), "eager", None, CPU)
    with pytest.raises(ModelError, match=r"no folder with config\.json"):
        GenerationEngine(str(tmp_path / "nowhere"), "eager", None, CPU)
