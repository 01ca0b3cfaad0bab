"""39 architectures of transformers and diffusers from small configurations, with random weights.

Two layers, and sizes beyond one tile: hidden sizes of 256, two sequences of 160 tokens (320 rows),
images of 64x64 or more, feature maps of 64 channels and more. Nothing is downloaded. When a model
trains, dropout has probability 0 and language models get labels, so that their loss is part of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from suites.case import Built, Case

os.environ.setdefault("HF_HUB_OFFLINE", "1")

BATCH, LENGTH, VOCABULARY, HIDDEN, HEADS = 2, 160, 1024, 256, 4

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN,
}
_DECODER = {**_BERT, "num_key_value_heads": 2, "head_dim": 64}
_EXPERTS = {"moe_intermediate_size": HIDDEN, "num_experts_per_tok": 2}
_LATENT = {
    "kv_lora_rank": 64,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
}
_IMAGES = {"image_size": 64, "patch_size": 8}
_VISION = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN,
}

Inputs = Callable[[Any, bool], dict[str, Any]]


def _tokens() -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (BATCH, LENGTH))


def _text(config: Any, train: bool) -> dict[str, Any]:
    """Tokens, an attention mask that pads the second sequence, and labels."""
    del config
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[1, LENGTH - 16 :] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        **({"labels": tokens.clone()} if train else {}),
    }


def _causal(config: Any, train: bool) -> dict[str, Any]:
    del config
    tokens = _tokens()
    return {"input_ids": tokens, "use_cache": False, **({"labels": tokens} if train else {})}


def _recurrent(config: Any, train: bool) -> dict[str, Any]:
    return {k: v for k, v in _causal(config, train).items() if k != "use_cache"}


def _translation(config: Any, train: bool) -> dict[str, Any]:
    inputs = _text(config, False)
    target = _tokens()
    given = {"labels": target} if train else {"decoder_input_ids": target}
    return {**inputs, **given, "use_cache": False}


def _speech(config: Any, train: bool) -> dict[str, Any]:
    features = torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    target = _tokens()
    given = {"labels": target} if train else {"decoder_input_ids": target}
    return {"input_features": features, **given, "use_cache": False}


def _image(config: Any, train: bool, *, size: int = 64) -> dict[str, Any]:
    del config, train
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


def _wave(config: Any, train: bool) -> dict[str, Any]:
    del config, train
    return {"input_values": torch.randn(BATCH, 16000)}


def _clip(config: Any, train: bool) -> dict[str, Any]:
    tokens = torch.randint(4, VOCABULARY - 1, (BATCH, 77))
    tokens[:, -1] = VOCABULARY - 1
    return {"input_ids": tokens, **_image(config, train)}


def _transformer(
    train: bool, model: str, config: str, settings: dict[str, Any], inputs: Inputs
) -> Built:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    chosen = getattr(transformers, config)(**settings)
    if train:
        _without_dropout(chosen)
    network = getattr(transformers, model)(chosen).train(train)
    return Built(network, kwargs=inputs(chosen, train))


def _without_dropout(config: Any) -> None:
    """Set every probability of a dropout to 0; `layerdrop` skips whole layers."""
    for name, value in vars(config).items():
        random = "drop" in name or name.endswith("pdrop") or name.startswith("mask_")
        if random and isinstance(value, float):
            setattr(config, name, 0.0)
        elif hasattr(value, "model_type"):
            _without_dropout(value)


def _masked(name: str, **settings: Any) -> Callable[[bool], Built]:
    return partial(
        _transformer,
        model=f"{name}ForMaskedLM",
        config=f"{name}Config",
        settings=_BERT | settings,
        inputs=_text,
    )


def _decoder(name: str, **settings: Any) -> Callable[[bool], Built]:
    stem = name.removesuffix("Text")
    return partial(
        _transformer,
        model=f"{stem}ForCausalLM",
        config=f"{name}Config",
        settings=_DECODER | settings,
        inputs=_causal,
    )


def _of(
    model: str, config: str, inputs: Inputs, settings: dict[str, Any]
) -> Callable[[bool], Built]:
    return partial(_transformer, model=model, config=config, settings=settings, inputs=inputs)


def _diffuser(
    train: bool, model: str, settings: dict[str, Any], inputs: Callable[[], dict[str, Any]]
) -> Built:
    try:
        import diffusers
    except ImportError as error:
        raise RuntimeError("this model needs the package diffusers: pip install diffusers") from (
            error
        )
    torch.manual_seed(0)
    network = getattr(diffusers, model)(**settings).train(train)
    return Built(network, kwargs={**inputs(), "return_dict": False})


def _denoised() -> dict[str, Any]:
    return {
        "sample": torch.randn(BATCH, 4, 32, 32),
        "timestep": torch.tensor([10, 500]),
        "encoder_hidden_states": torch.randn(BATCH, 77, 128),
    }


def _classes() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(BATCH, 4, 32, 32),
        "timestep": torch.tensor([10, 500]),
        "class_labels": torch.tensor([1, 7]),
    }


_UNET = {
    "sample_size": 32,
    "block_out_channels": (64, 128),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 128,
}
_VAE = {
    "block_out_channels": (64, 128),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
_DIT = {"num_layers": 2, "num_attention_heads": 4, "attention_head_dim": 64, "sample_size": 32}
_SEQUENCES = {
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * HIDDEN,
    "decoder_ffn_dim": 2 * HIDDEN,
    "vocab_size": VOCABULARY,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}
_STATES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "use_cache": False,
}

BUILDERS: dict[str, Callable[[bool], Built]] = {
    "bert": _masked("Bert"),
    "roberta": _masked("Roberta"),
    "distilbert": _of(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        _text,
        {
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "n_layers": 2,
            "n_heads": HEADS,
            "hidden_dim": 512,
        },
    ),
    "deberta_v2": _masked(
        "DebertaV2",
        relative_attention=True,
        position_buckets=64,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
    ),
    "albert": _masked("Albert", embedding_size=128),
    "modernbert": _masked("ModernBert", local_attention=64, pad_token_id=0),
    "gpt2": _of(
        "GPT2LMHeadModel",
        "GPT2Config",
        _causal,
        {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS},
    ),
    "gpt_neox": _of("GPTNeoXForCausalLM", "GPTNeoXConfig", _causal, _BERT),
    "opt": _of(
        "OPTForCausalLM",
        "OPTConfig",
        _causal,
        {**_BERT, "ffn_dim": 512, "word_embed_proj_dim": HIDDEN},
    ),
    "bloom": _of(
        "BloomForCausalLM",
        "BloomConfig",
        _causal,
        {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": 2, "n_head": HEADS},
    ),
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral", sliding_window=64),
    "qwen3": _decoder("Qwen3"),
    "gemma2": _decoder("Gemma2", sliding_window=64, query_pre_attn_scalar=64),
    "gemma3": _decoder("Gemma3Text", sliding_window=64, query_pre_attn_scalar=64),
    "phi3": _decoder("Phi3", pad_token_id=0),
    "falcon": _of(
        "FalconForCausalLM",
        "FalconConfig",
        _causal,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
        },
    ),
    "mixtral": _decoder("Mixtral", num_local_experts=4),
    "qwen2_moe": _decoder(
        "Qwen2Moe", num_experts=4, shared_expert_intermediate_size=HIDDEN, **_EXPERTS
    ),
    "deepseek_v3": _decoder(
        "DeepseekV3",
        num_key_value_heads=HEADS,
        head_dim=32,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        **_EXPERTS,
        **_LATENT,
    ),
    "gpt_oss": _decoder("GptOss", num_local_experts=4, num_experts_per_tok=2, sliding_window=64),
    "mamba": _of("MambaForCausalLM", "MambaConfig", _recurrent, {**_STATES, "state_size": 16}),
    "mamba2": _of(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        _recurrent,
        {
            **_STATES,
            "head_dim": 64,
            "num_heads": 8,
            "n_groups": 1,
            "state_size": 64,
            "chunk_size": 64,
        },
    ),
    "recurrent_gemma": _of(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        _causal,
        {
            **_DECODER,
            "num_hidden_layers": 3,
            "lru_width": HIDDEN,
            "attention_window_size": 64,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    "t5": _of(
        "T5ForConditionalGeneration",
        "T5Config",
        _translation,
        {
            "vocab_size": VOCABULARY,
            "d_model": HIDDEN,
            "d_kv": 64,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": _of("BartForConditionalGeneration", "BartConfig", _translation, _SEQUENCES),
    "whisper": _of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _speech,
        {**_SEQUENCES, "max_source_positions": 256, "num_mel_bins": 80},
    ),
    "vit": _of("ViTForImageClassification", "ViTConfig", _image, _VISION | _IMAGES),
    "swin": _of(
        "SwinForImageClassification",
        "SwinConfig",
        partial(_image, size=112),
        {
            "image_size": 112,
            "patch_size": 4,
            "embed_dim": 96,
            "depths": [2, 2],
            "num_heads": [3, 6],
            "window_size": 7,
        },
    ),
    "convnext": _of(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        partial(_image, size=64),
        {"hidden_sizes": [64, 128, 256, 256], "depths": [1, 1, 2, 1]},
    ),
    "resnet": _of(
        "ResNetForImageClassification",
        "ResNetConfig",
        partial(_image, size=128),
        {"embedding_size": 64, "hidden_sizes": [128, 256, 256, 512], "depths": [1, 1, 2, 1]},
    ),
    "segformer": _of(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        partial(_image, size=128),
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [64, 128, 192, 256],
            "num_attention_heads": [1, 2, 3, 4],
            "decoder_hidden_size": 256,
        },
    ),
    "dinov2": _of("Dinov2ForImageClassification", "Dinov2Config", _image, _VISION | _IMAGES),
    "mobilenet_v2": _of(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        partial(_image, size=96),
        {"image_size": 96},
    ),
    "wav2vec2": _of(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        _wave,
        {**_VISION, "conv_dim": (128,) * 7, "num_conv_pos_embeddings": 16},
    ),
    "clip": _of(
        "CLIPModel",
        "CLIPConfig",
        _clip,
        {
            "text_config": {**_BERT, "eos_token_id": VOCABULARY - 1},
            "vision_config": _VISION | _IMAGES,
            "projection_dim": 128,
        },
    ),
    "unet2d_cond": partial(
        _diffuser, model="UNet2DConditionModel", settings=_UNET, inputs=_denoised
    ),
    "autoencoder_kl": partial(
        _diffuser,
        model="AutoencoderKL",
        settings=_VAE,
        inputs=lambda: {"sample": torch.randn(BATCH, 3, 64, 64)},
    ),
    "dit": partial(_diffuser, model="DiTTransformer2DModel", settings=_DIT, inputs=_classes),
}


def cases() -> list[Case]:
    """All models, in the order of the table."""
    return [Case(name, build) for name, build in BUILDERS.items()]
