"""The training job in one process: resuming, checkpoints, coverage, flags."""

from __future__ import annotations

import io
import json
import pickle
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode

from trnx.errors import CheckpointError
from trnx.jobs import models, parallel
from trnx.jobs.checkpoint_reader import read_metadata
from trnx.jobs.checkpoints import finished, load_weights
from trnx.jobs.checksums import seal
from trnx.jobs.compiling import compile_parts, linear_flops, recompute
from trnx.jobs.corpus import load_corpus
from trnx.jobs.drawn_weights import build_model
from trnx.jobs.errors import NoGraphWarning, ResumeWarning
from trnx.jobs.metrics import Summary
from trnx.jobs.parallel import clip_gradients, linear_sizes
from trnx.jobs.schedules import SCHEDULES, learning_rate
from trnx.jobs.train import STOPPED, holds
from trnx.jobs.weights import load_safetensors, make_weights, without_weights

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]
SMALL = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--json")


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines if "step" in line and "loss" in line}


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_resumed_run_is_equal_bit_by_bit_with_dropout(
    preset: str, train: Train, text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, "--preset", preset, "--dropout", "0.2", "--steps", "6")
    _, whole, _ = train(*common)
    folder = ("--checkpoint-dir", str(tmp_path), "--checkpoint-every", "3", "--keep-checkpoints=9")
    train(*common, *folder)
    first = str(tmp_path / "step-00000003")
    status, rest, _ = train(*common, *folder, "--resume", first)
    assert status == 0
    assert rest[1] == {"event": "resume", "step": 3, "checkpoint": first, "rank": 0}
    assert sorted(losses(rest)) == [4, 5, 6]
    assert losses(rest) == {step: loss for step, loss in losses(whole).items() if step > 3}


def test_newest_complete_checkpoint_is_resumed_and_others_are_dropped(
    train: Train, text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path))
    train(*common, "--steps", "4", "--checkpoint-every", "1", "--keep-checkpoints", "2")
    assert [folder.name for folder in finished(tmp_path)] == ["step-00000003", "step-00000004"]
    # What a killed job leaves: a folder that is being written, or one whose metadata is missing.
    (tmp_path / "step-00000008.partial").mkdir()
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000004" / ".metadata").unlink()
    with pytest.warns(
        ResumeWarning, match=r"step-00000004/\.metadata cannot be read: No such file"
    ):
        status, lines, _ = train(*common, "--steps", "4")
    assert status == 0
    assert lines[1]["step"] == 3
    assert sorted(losses(lines)) == [4]


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def saved(train: Train, text: Path, folder: Path, steps: int) -> tuple[str, ...]:
    """Flags of a run with a checkpoint after each step."""
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(folder))
    assert train(*common, "--steps", str(steps), "--checkpoint-every", "1")[0] == 0
    return common


def test_metadata_that_names_a_function_is_refused_and_nothing_runs(
    train: Train, text: Path, tmp_path: Path
) -> None:
    common = saved(train, text, tmp_path / "ckpt", 1)
    victim = tmp_path / "victim"
    metadata = tmp_path / "ckpt" / "step-00000001" / ".metadata"
    metadata.write_bytes(pickle.dumps(Malicious(victim)))
    seal(metadata.parent)
    status, _, errors = train(*common, "--steps", "2")
    assert status == 1
    assert f"CheckpointError: {metadata} names pathlib.Path.touch" in errors
    folder = str(metadata.parent)
    status, _, errors = train(*common, "--steps", "2", "--resume", folder)
    assert status == 1
    assert "names pathlib.Path.touch" in errors
    assert not victim.exists()


class ByGetattr:
    """Is pickled as `getattr(owner, name)`, as Python 3.11.2 pickles members of enumerations."""

    def __init__(self, owner: type, name: str) -> None:
        self.parts = (owner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, self.parts


def test_of_attributes_members_of_enumerations_alone_are_read(
    train: Train, text: Path, tmp_path: Path
) -> None:
    saved(train, text, tmp_path / "ckpt", 1)
    folder = tmp_path / "ckpt" / "step-00000001"
    metadata = read_metadata(folder)
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    metadata.planner_data = ByGetattr(_MEM_FORMAT_ENCODING, member.name)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert read_metadata(folder).planner_data is member
    metadata.planner_data = ByGetattr(OrderedDict, "fromkeys")
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"names builtins\.getattr of 'fromkeys'"):
        read_metadata(folder)


def test_value_that_names_a_function_is_refused_and_nothing_runs(
    train: Train, text: Path, tmp_path: Path
) -> None:
    common = saved(train, text, tmp_path / "ckpt", 1)
    victim = tmp_path / "victim"
    (data,) = (tmp_path / "ckpt" / "step-00000001").glob("*.distcp")
    folder = data.parent
    metadata = read_metadata(folder)
    harmful = io.BytesIO()
    torch.save(Malicious(victim), harmful)
    # In the place of one plain value of the optimizer, at the end of the data file.
    index = next(key for key in metadata.storage_data if key.fqn.endswith("weight_decay"))
    info = metadata.storage_data[index]
    info.offset, info.length = data.stat().st_size, harmful.getbuffer().nbytes
    data.write_bytes(data.read_bytes() + harmful.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    seal(folder)
    status, _, errors = train(*common, "--steps", "2")
    assert status == 1
    assert f"CheckpointError: {folder} cannot be loaded" in errors
    assert "is no plain value" in errors
    assert not victim.exists()


def test_data_outside_of_the_folder_is_refused(train: Train, text: Path, tmp_path: Path) -> None:
    common = saved(train, text, tmp_path, 1)
    path = tmp_path / "step-00000001" / ".metadata"
    metadata = read_metadata(path.parent)
    for info in metadata.storage_data.values():
        info.relative_path = f"../{info.relative_path}"
    path.write_bytes(pickle.dumps(metadata))
    seal(path.parent)
    status, _, errors = train(*common, "--steps", "2")
    assert status == 1
    assert f"CheckpointError: {path} names data outside of its folder" in errors


@pytest.mark.parametrize("name", ["run.json", ".metadata"])
def test_unreadable_checkpoint_gives_way_to_an_older_one(
    name: str, train: Train, text: Path, tmp_path: Path
) -> None:
    common = saved(train, text, tmp_path, 2)
    broken = tmp_path / "step-00000002" / name
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.warns(ResumeWarning, match="cannot be read: .*; an older one is taken"):
        status, lines, _ = train(*common, "--steps", "2")
    assert status == 0
    assert lines[1]["step"] == 1
    status, _, errors = train(*common, "--steps", "3", "--resume", str(tmp_path / "step-00000001"))
    assert status == 0, errors


def test_finished_run_has_nothing_to_do(train: Train, text: Path, tmp_path: Path) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path), "--steps", "2")
    train(*common)
    status, lines, _ = train(*common)
    assert status == 0
    assert lines[-1]["steps"] == 0
    assert lines[-1]["bars_hold"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("--seed", "1"), "seed"),
        (("--preset", "gpt2-tiny"), "model"),
        (("--sequence-length", "8"), "sequence_length"),
        (("--batch", "4"), "batch"),
    ],
)
def test_checkpoint_of_another_run_is_refused(
    change: tuple[str, str], field: str, train: Train, text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path), "--steps", "1")
    train(*common)
    status, _, errors = train(*common, *change)
    assert status == 1
    assert f"CheckpointError: {tmp_path / 'step-00000001'} is of another run: its {field}" in errors


def test_sigterm_saves_and_ends_with_the_documented_status(
    launch: Callable[..., Any], text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path), "--steps", "5000")
    job = launch(*common, "--checkpoint-every", "0")
    last = 0
    for line in job.lines():
        last = line["step"] if "loss" in line else last
        if line.get("step") == 2:
            job.send_signal(signal.SIGTERM)
    status, errors = job.wait()
    assert status == STOPPED == 75, errors
    assert [folder.name for folder in finished(tmp_path)] == [f"step-{last:08d}"]


def test_trnx_runs_on_nki_and_equals_eager(train: Train, text: Path, tmp_path: Path) -> None:
    common = ("--data", str(text), "--sequence-length", "16", "--batch", "2", "--steps", "3")
    flags = ("--activation-checkpointing", "--json", "--metrics-dir", str(tmp_path))
    _, eager, _ = train(*common, "--backend", "eager")
    status, lines, _ = train(*common, *flags, "--backend", "trnx", "--min-nki-share", "0.99")
    assert status == 0
    assert losses(lines) == pytest.approx(losses(eager), rel=1e-4)
    assert lines[-1]["nki_share_min"] == pytest.approx(1.0)
    written = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert written == lines[:-1]


@pytest.mark.slow
def test_bfloat16_runs_on_nki_and_equals_eager(train: Train, text: Path) -> None:
    common = ("--data", str(text), "--sequence-length", "32", "--batch", "4", "--steps", "10")
    common += ("--dtype", "bf16", "--json")
    _, eager, _ = train(*common, "--backend", "eager")
    status, lines, errors = train(*common, "--backend", "trnx", "--min-nki-share", "0.9")
    assert status == 0, errors
    assert losses(lines) == pytest.approx(losses(eager), rel=1e-3)


def test_share_below_the_minimum_is_status_1(
    train: Train, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRNX_SELECT", "none")
    monkeypatch.setenv("TRNX_FALLBACK", "eager")
    flags = ("--data", str(text), "--sequence-length", "8", "--batch", "1", "--steps", "1")
    status, lines, _ = train(*flags, "--backend", "trnx", "--min-nki-share", "0.9", "--json")
    assert status == 1
    assert lines[-1]["nki_share_min"] == 0.0
    assert not lines[-1]["bars_hold"]


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_linear_flops_are_those_that_torch_counts(preset: str) -> None:
    config = models.build_config(models.PRESETS[preset], 256, 16, 0.0)
    model = build_model(config, 0)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(0, 256, (2, 16))).logits.sum().backward()
    counted = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counted.items() if "mm" in str(op) and "bmm" not in str(op))
    assert linear_flops(linear_sizes(model), 32) == products


def test_recomputed_blocks_cost_one_more_forward() -> None:
    sizes = [("layers.1.up", 10), ("layers.10.up", 10), ("head", 5)]
    assert linear_flops(sizes, 1) == 2 * 3 * 25
    assert linear_flops(sizes, 1, ["layers.1", "layers.10"]) == 2 * (4 * 20 + 3 * 5)
    assert linear_flops(sizes, 1, ["layers.1"]) == 2 * (4 * 10 + 3 * 15)


def test_module_that_runs_without_a_graph_is_named() -> None:
    class Uncapturable(torch.nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    parts = {"good": torch.nn.Linear(4, 4), "bad": Uncapturable()}
    compiled = compile_parts(parts, "trnx", {})
    x = torch.randn(2, 4)
    torch.testing.assert_close(
        parts["good"](x), torch.nn.functional.linear(x, *parts["good"].parameters())
    )
    with pytest.warns(NoGraphWarning, match=r"^bad was compiled for trnx, and ran without a graph"):
        parts["bad"](x)
    parts["bad"](x)
    assert compiled.skipped == ["bad"]


def test_module_without_a_graph_breaks_the_bar() -> None:
    facts: dict[str, Any] = {"first_step": 0, "steps": 1, "loss_first": 1.0, "loss_last": 1.0}
    facts |= {"tokens_per_second": 1.0, "nki_share_min": 0.95, "nki_share_by_rank": [0.95]}
    facts |= {"graph_breaks": 0, "stopped": False, "checkpoint": None}
    assert holds(Summary(skipped=[], **facts), 0.9)
    assert not holds(Summary(skipped=[], **facts), 0.96)
    assert not holds(Summary(skipped=["block"], **facts), 0.9)
    assert holds(Summary(skipped=["block"], **facts), 0.0)
    assert not holds(Summary(skipped=[], **{**facts, "loss_last": float("nan")}), 0.0)


def test_missing_extra_is_a_named_error(
    train: Train, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, errors = train("--data", str(text), *SMALL)
    assert status == 1
    assert "MissingJobsExtraError: this job needs the package transformers" in errors


def test_recomputed_module_keeps_gradients() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = torch.randn(3, 4)
    expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    recompute(module)
    found = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [0.0, 0.5, 100.0])
def test_clipping_equals_that_of_torch(limit: float) -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 8)
    for module in (ours, theirs):
        module(x).square().sum().backward()
    norm = clip_gradients(ours, limit)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit or float("inf"))
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = {
        name: [learning_rate(name, 1.0, 4, 10, step) for step in range(12)] for name in SCHEDULES
    }
    for found in rates.values():
        assert found[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    for name in ("cosine", "linear"):
        assert rates[name][4:11] == sorted(rates[name][4:11], reverse=True)
        assert rates[name][10] == rates[name][11] == pytest.approx(0.1)
    assert rates["linear"][7] == rates["cosine"][7] == pytest.approx(0.55)
    assert rates["linear"][5] < rates["cosine"][5]
    assert set(rates["constant"][3:]) == {1.0}
    assert learning_rate("linear", 1.0, 0, 0, 0) == 1.0


def test_evaluation_is_the_loss_on_held_out_text_and_changes_nothing(
    train: Train, text: Path, tmp_path: Path
) -> None:
    common = ("--data", str(text), *SMALL, "--dropout", "0.2", "--steps", "4")
    held_out = ("--eval-data", str(text / "b.txt"), "--eval-every", "2", "--eval-batches", "3")
    _, plain, _ = train(*common)
    status, lines, _ = train(*common, *held_out, "--checkpoint-dir", str(tmp_path))
    assert status == 0
    assert losses(lines) == losses(plain)
    found = [line for line in lines if line.get("event") == "evaluation"]
    assert [line["step"] for line in found] == [2, 4]
    config = models.build_config(models.PRESETS["llama-tiny"], 256, 16, 0.2)
    model = build_model(config, 1).eval()
    load_weights(tmp_path / "step-00000004", model)
    tokens = load_corpus(text / "b.txt", "bytes", 16, 0).batch(0, 6)
    with torch.no_grad():
        expected = model(input_ids=tokens[:, :-1]).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(expected, tokens[:, 1:].flatten())
    assert found[1]["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert found[0]["eval_loss"] != found[1]["eval_loss"]


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_training_starts_from_safetensors(
    preset: str, train: Train, text: Path, tmp_path: Path
) -> None:
    config = models.build_config(models.PRESETS[preset], 256, 16, 0.0)
    model = build_model(config, 5)
    model.save_pretrained(tmp_path / "hf", max_shard_size="50KB")  # type: ignore[operator]
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    flags = ("--data", str(text), *SMALL, "--steps", "1", "--init-from", str(tmp_path / "hf"))
    status, lines, errors = train(*flags)
    assert status == 0, errors
    tokens = load_corpus(text, "bytes", 16, 0).batch(0, 2)
    logits = model(input_ids=tokens[:, :-1]).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    assert losses(lines)[1] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("preset", ["llama-tiny", "gpt2-tiny"])
def test_model_without_weights_becomes_the_one_of_the_files(preset: str, tmp_path: Path) -> None:
    config = models.build_config(models.PRESETS[preset], 256, 16, 0.0)
    expected = build_model(config, 5)
    expected.save_pretrained(tmp_path)  # type: ignore[operator]
    with without_weights():
        model = models.make_model(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    make_weights(model, torch.device("cpu"))
    load_safetensors(tmp_path, model)
    assert len(list(model.parameters())) == len(list(expected.parameters()))
    for found in (model.state_dict(), dict(model.named_buffers())):
        wanted = expected.state_dict() | dict(expected.named_buffers())
        assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    # Nothing is left of the change to torch.nn.
    assert not torch.nn.Linear(1, 1).weight.is_meta


def test_rank_reads_its_own_part_of_each_tensor(tmp_path: Path) -> None:
    # One rank alone: torch remembers the place of a process in a mesh. The last one has fewer rows.
    rank = 2
    config = models.build_config(models.PRESETS["llama-tiny"], 256, 16, 0.0)
    expected = build_model(config, 5)
    expected.save_pretrained(tmp_path)  # type: ignore[operator]
    dist.init_process_group("fake", rank=rank, world_size=3, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=("data", "tensor"))
        with without_weights():
            model = models.make_model(config)
        sharded = parallel.shard(model, config, mesh, torch.float32)
        make_weights(sharded, torch.device("cpu"))
        load_safetensors(tmp_path, sharded)
        for name, value in sharded.named_parameters():
            assert isinstance(value, DTensor)
            parts = torch.chunk(expected.get_parameter(name), 3)
            assert torch.equal(value.to_local(), parts[rank])
    finally:
        dist.destroy_process_group()


def test_safetensors_that_do_not_fit_are_named(train: Train, text: Path, tmp_path: Path) -> None:
    config = models.build_config(models.PRESETS["llama-tiny"], 128, 16, 0.0)
    folder = tmp_path / "hf"
    build_model(config, 5).save_pretrained(folder)  # type: ignore[operator]
    flags = ("--data", str(text), *SMALL, "--steps", "1", "--init-from", str(folder))
    status, _, errors = train(*flags)
    assert status == 1
    assert "embed_tokens.weight is [128, 64], and [256, 64] in the model" in errors
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**keys, "num_hidden_layers": 3}))
    assert "it has no model.layers.2." in train(*flags)[2]
    (folder / "config.json").write_text(json.dumps({**keys, "num_hidden_layers": 1}))
    assert "it has model.layers.1." in train(*flags)[2]
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    assert "model.safetensors cannot be read" in train(*flags)[2]
    weights.unlink()
    assert "no *.safetensors file in this folder" in train(*flags)[2]
    assert "leave --model-config out" in train(*flags, "--model-config", str(folder))[2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--data", "/no/such"), "DataError: --data /no/such: no such file or folder"),
        (("--steps", "0"), "FlagError: --steps must be at least 1"),
        (("--clip", "-1"), "FlagError: --clip must not be negative"),
        (("--dropout", "1"), "FlagError: --dropout must be at least 0 and below 1"),
        (("--parallel", "fsdp"), "FlagError: --parallel fsdp needs torchrun"),
        (("--tensor-parallel", "3"), "FlagError: --tensor-parallel 3 does not divide the 1"),
        (("--backend", "neuron"), "FlagError: --backend neuron needs torch-neuronx 2.13"),
        (("--sequence-length", "99999"), "DataError: the training text has"),
        (("--tokenizer", "/no/such"), "ModelError: --tokenizer /no/such: no such folder"),
        (("--model-config", "/no/such"), "ModelError: --model-config /no/such: cannot be read"),
        (("--resume", "somewhere"), "FlagError: --resume FOLDER needs --checkpoint-dir"),
        (("--resume", "/x", "--checkpoint-dir", "/y"), "CheckpointError: --resume /x: this is no"),
    ],
)
def test_bad_flags_are_named_errors(
    flags: tuple[str, ...], message: str, train: Train, text: Path
) -> None:
    status, _, errors = train("--data", str(text), *SMALL, *flags)
    assert status == 1
    assert message in errors
    assert "Traceback" not in errors


def test_fresh_start_in_a_used_folder_is_refused(train: Train, text: Path, tmp_path: Path) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path), "--steps", "1")
    train(*common)
    status, _, errors = train(*common, "--resume", "never")
    assert status == 1
    assert CheckpointError.__name__ in errors
    assert "say --resume auto, or name another folder" in errors


def test_configuration_file_takes_the_place_of_a_preset(
    train: Train, text: Path, tmp_path: Path
) -> None:
    keys = {**models.PRESETS["gpt2-tiny"], "n_layer": 1}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    flags = ("--data", str(text), *SMALL, "--steps", "1", "--model-config")
    status, lines, _ = train(*flags, str(tmp_path))
    assert status == 0
    assert sorted(losses(lines)) == [1]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    status, _, errors = train(*flags, str(tmp_path))
    assert status == 1
    assert "model_type is 'bert'; it must be one of llama, gpt2" in errors


def test_warm_only_runs_one_step_and_saves_nothing(
    train: Train, text: Path, tmp_path: Path
) -> None:
    flags = ("--data", str(text), *SMALL, "--warm-only", "--checkpoint-dir", str(tmp_path))
    status, lines, _ = train(*flags)
    assert status == 0
    assert sorted(losses(lines)) == [1]
    assert list(tmp_path.iterdir()) == []
