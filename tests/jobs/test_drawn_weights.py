"""Random weights: those that transformers draws, by seed and path, one part at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnx.jobs import models
from trnx.jobs.drawn_weights import build_model, draw_weights, undrawn
from trnx.jobs.errors import ModelError
from trnx.jobs.weights import make_weights, parameters_of_base

CPU = torch.device("cpu")


def config_of(preset: str, **more: Any) -> Any:
    return models.build_config({**models.PRESETS[preset], **more}, 256, 16, 0.0)


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_they_are_distributed_as_those_of_transformers(preset: str) -> None:
    ours = dict(build_model(config_of(preset), 3).named_parameters())
    theirs = dict(models.make_model(config_of(preset)).named_parameters())
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.requires_grad
        if theirs[name].std() > 0:  # also GPT-2's last products, which are drawn smaller
            assert abs(value.std() / theirs[name].std() - 1) < 0.15, name
            assert abs(value.mean()) < 0.2 * value.std()
        else:
            assert torch.equal(value, theirs[name]), name


def test_they_follow_the_seed_and_leave_other_parts_alone() -> None:
    two = dict(build_model(config_of("llama-tiny"), 3).named_parameters())
    again = dict(build_model(config_of("llama-tiny"), 3).named_parameters())
    other = dict(build_model(config_of("llama-tiny"), 4).named_parameters())
    deeper = dict(build_model(config_of("llama-tiny", num_hidden_layers=3), 3).named_parameters())
    for name, value in two.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, deeper[name])
        assert torch.equal(value, other[name]) == ("norm" in name)


def test_tied_weights_stay_tied() -> None:
    model = build_model(config_of("llama-tiny", tie_word_embeddings=True), 0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    loose = build_model(config_of("llama-tiny"), 0)
    assert torch.equal(model.lm_head.weight, loose.model.embed_tokens.weight)


def test_parts_are_small_and_nothing_else_is_made() -> None:
    """A rank without any parameter of its own draws, and keeps nothing."""
    model, units = undrawn(config_of("llama-tiny"))
    assert all(value.is_meta for unit in units.values() for value in unit.parameters())
    largest = max(sum(v.numel() for v in unit.parameters()) for unit in units.values())
    assert largest < 0.4 * sum(value.numel() for value in model.parameters())
    draw_weights({}, model, units, 0)
    assert all(value.is_meta for value in model.parameters())
    assert all(value.is_meta for unit in units.values() for value in unit.parameters())


def test_a_parameter_that_nothing_draws_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, units = undrawn(config_of("llama-tiny"))
    make_weights(model, CPU)
    monkeypatch.setattr(model, "_init_weights", lambda _: None)
    with pytest.raises(ModelError, match=r"norm.*\.weight: transformers draws no weights for it"):
        draw_weights(parameters_of_base(model), model, units, 0)
