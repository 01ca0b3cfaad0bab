"""`trnx plan`: whether a model fits, how fast it is and what it costs, per mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trnx.arguments import JsonOption, PlanMode, PlanOptimizer, PlanPrecision


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A config.json of Hugging Face, its folder, MODULE:FUNCTION or FILE.py:FUNCTION "
            "whose model has such a config, or a known name (llama-3-8b, llama-3-70b, "
            "mixtral-8x7b, bert-large)."
        ),
    ],
    instance: Annotated[
        list[str] | None, typer.Option(help="EC2 type; may be repeated. Else trn2.48xlarge.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Instances of the type.")] = 1,
    mode: Annotated[PlanMode, typer.Option(help="What a step does.")] = PlanMode.TRAIN,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a step, over all cores.")] = 128,
    sequence: Annotated[
        int, typer.Option(min=1, help="Tokens of a sequence; in decode those in the cache.")
    ] = 4096,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Training: sequences of a core at a time.")
    ] = 1,
    optimizer: Annotated[
        PlanOptimizer, typer.Option(help="Training: what is kept for each weight.")
    ] = PlanOptimizer.ADAMW_FP32,
    dtype: Annotated[
        PlanPrecision, typer.Option(help="Of weights, gradients and activations.")
    ] = PlanPrecision.BF16,
    checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Keep the input of each block alone.")
    ] = False,
    price: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Of one instance and hour; one for each --instance."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write a job file for `trnx eks`; needs --image.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="The container image of the job.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Memory, time and cost of a model on Trainium for each mesh, from shapes alone.

    Status 1 where no mesh fits on any of the instances.
    """
    from trnx.backend.plan.cluster import Cluster
    from trnx.backend.plan.description import describe_example
    from trnx.backend.plan.job import write_job
    from trnx.backend.plan.report import plan_dict, plan_text
    from trnx.backend.plan.search import make_plan
    from trnx.backend.plan.workload import Mode, Optimizer, Precision, Workload

    names, prices = instance or ["trn2.48xlarge"], price or []
    if prices and len(prices) != len(names):
        raise typer.BadParameter(f"{len(prices)} --price for {len(names)} --instance")
    if write is not None and (image is None or len(names) > 1):
        raise typer.BadParameter("--write needs --image, and one --instance")
    sizes = describe_example(model)
    work = Workload(
        Mode(mode.value), batch, sequence, micro_batch, Optimizer(optimizer.value),
        Precision(dtype.value), checkpointing,
    )  # fmt: skip
    found = [
        make_plan(sizes, Cluster(name, nodes), work, prices[index] if prices else None)
        for index, name in enumerate(names)
    ]
    if as_json:
        print(json.dumps({"plans": [plan_dict(one) for one in found]}))
    else:
        print("\n\n".join(plan_text(one) for one in found))
    if write is not None and image is not None:
        write_job(found[0], write, image)
    raise typer.Exit(0 if any(one.best for one in found) else 1)
