"""The best mesh of a plan as a job file of `trnx eks`, which runs `trnx.jobs.train`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trnx.backend.plan.errors import PlanError
from trnx.backend.plan.search import Choice, Plan


def write_job(plan: Plan, path: Path, image: str) -> None:
    """Write the job file. The claim `data`, mounted on /data, holds text, the model's config.json
    and checkpoints; edit what differs.

    Raises PlanError where nothing fits, or where `trnx.jobs.train` cannot run the mesh.
    """
    path.write_text(job_text(plan, image))


def job_text(plan: Plan, image: str) -> str:
    """The job file; see `write_job`."""
    best = _runnable(plan)
    name = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")[:30] or "model"
    name = name if name[0].isalpha() else f"model-{name}"
    work = plan.work
    command = [
        "-m",
        "trnx.jobs.train",
        "--data=/data/corpus",
        f"--model-config=/data/{name}/config.json",
        f"--sequence-length={work.sequence}",
        f"--batch={work.batch}",
        f"--dtype={work.precision.value}",
        "--parallel=fsdp",
        f"--tensor-parallel={best.mesh.tensor}",
        *(["--activation-checkpointing"] if work.checkpointing else []),
        f"--checkpoint-dir=/data/checkpoints/{name}",
    ]
    lines = [
        f"# {plan.model.name} on {best.mesh}, as `trnx plan` chose it.",
        "kind: train",
        f"name: {json.dumps(name)}",
        f"image: {json.dumps(image)}",
        f"instance: {plan.cluster.instance}",
        f"nodes: {plan.cluster.nodes}",
        "lnc: 1  # the plan's ranks are physical cores",
        "command:",
        *(f"  - {json.dumps(argument)}" for argument in command),
        "volumes:",
        "  - name: data",
        "    claim: data",
        "    mount: /data",
    ]
    return "\n".join(lines) + "\n"


def _runnable(plan: Plan) -> Choice:
    """The fastest predicted mesh that `trnx.jobs.train` can run: of data and tensor ranks."""
    if plan.best is None:
        raise PlanError("there is no job to write: no mesh fits")
    if not plan.work.training:
        raise PlanError("a job file is written of training alone: trnx.jobs.serve is not sharded")
    found = [
        choice
        for choice in plan.choices
        if choice.step is not None
        and choice.mesh.pipeline == choice.mesh.expert == 1
        and not choice.mesh.sequence
    ]
    if not found:
        raise PlanError(
            f"trnx.jobs.train cannot run {plan.best.mesh}, nor another mesh that was predicted: it "
            "has data and tensor parallelism alone"
        )
    return min(found, key=lambda choice: choice.seconds)
