"""A plan as text and as plain numbers: the meshes, what the best is made of, and why it wins."""

from __future__ import annotations

from typing import Any

from trnx.backend.model_profile import range_of
from trnx.backend.plan.search import Choice, Plan
from trnx.backend.plan.workload import Mode
from trnx.simulator.timing.summary import band_dict, band_text, bytes_text, range_text, time_text

_SHOWN = 8
_BAR = 40

_WORDS = {
    "kernels": "kernels",
    "tensor": "tensor-parallel collectives",
    "expert": "expert-parallel exchanges",
    "pipeline": "sends between pipeline stages",
    "bubble": "the pipeline's bubble",
    "data": "reduction of gradients and gathering of weights",
    "optimizer": "the optimizer",
    "launches": "launches",
}


def plan_dict(plan: Plan) -> dict[str, Any]:
    """JSON-ready; bytes, seconds and tokens."""
    best = plan.best
    return {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "instance": plan.cluster.instance,
        "nodes": plan.cluster.nodes,
        "cores": plan.cluster.cores,
        "core_bytes": plan.cluster.core_bytes,
        "mode": plan.work.mode.value,
        "batch": plan.work.batch,
        "sequence": plan.work.sequence,
        "band": band_dict(plan.cluster.chip.target),
        "best": None if best is None else _choice_dict(plan, best),
        "why": why(plan),
        "meshes": [_choice_dict(plan, choice) for choice in plan.choices],
    }


def _choice_dict(plan: Plan, choice: Choice) -> dict[str, Any]:
    step = choice.step
    found: dict[str, Any] = {
        "mesh": choice.mesh.to_dict(),
        "memory": choice.memory.to_dict(),
        "fits": choice.fits,
        "missing_bytes": max(0, choice.memory.total - plan.cluster.core_bytes),
        "least_seconds": choice.least.total,
        "step_seconds": None if step is None else step.total,
    }
    if step is not None:
        bounds = _range(plan, choice)
        found |= {
            "seconds": step.parts,
            "range_seconds": None if bounds is None else list(bounds),
            "tokens_per_second": plan.tokens_per_second(choice),
            "mfu": plan.mfu(choice),
            "cost_per_million_tokens": plan.cost(choice),
            "bound": bound(choice),
        }
    return found


def _range(plan: Plan, choice: Choice) -> tuple[float, float] | None:
    """The error band on scheduled kernels; collectives and estimates have none."""
    if choice.step is None:
        return None
    return range_of(plan.cluster.chip.target, choice.step.total, choice.step.scheduled)


def bound(choice: Choice) -> str:
    """The largest part of a step, in words."""
    parts = (choice.step or choice.least).parts
    return _WORDS[max(parts, key=lambda name: parts[name])]


def why(plan: Plan) -> str:
    """Why the best wins, or why there is none."""
    best = plan.best
    if best is None:
        least = min(plan.choices, key=lambda choice: choice.memory.total)
        over = least.memory.total - plan.cluster.core_bytes
        less = "a smaller micro-batch or activation checkpointing"
        return (
            f"no mesh fits: {least.mesh} needs {bytes_text(least.memory.total)} of a core, "
            f"{bytes_text(over)} too much; take more nodes, "
            f"{less if plan.work.training else 'a smaller batch or a shorter sequence'}"
        )
    assert best.step is not None
    others = [c for c in plan.choices if c.step is not None and c is not best]
    text = f"{best.mesh} wins"
    if others:
        second = min(others, key=lambda choice: choice.seconds)
        assert second.step is not None
        mine, theirs = best.step.parts, second.step.parts
        name = max(mine, key=lambda part: theirs[part] - mine[part])
        gain = theirs[name] - mine[name]
        text += (
            f": {second.mesh} takes {time_text(second.seconds)}, "
            f"{time_text(gain)} more for {_WORDS[name]}"
        )
    below = sum(c.fits and c.step is None for c in plan.choices) - len(plan.open)
    unfit = sum(not c.fits for c in plan.choices)
    text += f"; {unfit} meshes do not fit, {below} have a lower bound above it"
    if plan.open:
        text += f"; {len(plan.open)} were not predicted and could be faster"
    return text


def plan_text(plan: Plan) -> str:
    """What a terminal shows."""
    model, cluster, work = plan.model, plan.cluster, plan.work
    what = {Mode.TRAIN: "training", Mode.PREFILL: "prefill", Mode.DECODE: "decode"}[work.mode]
    lines = [
        f"{model.name} ({model.parameters / 1e9:.2f} billion parameters) on {cluster.nodes} x "
        f"{cluster.instance} ({cluster.cores} cores of {bytes_text(cluster.core_bytes)}), {what}, "
        f"batch {work.batch}, sequence {work.sequence}, {work.precision.value}",
        "",
        *_table(plan),
        "",
        why(plan),
    ]
    best = plan.best
    if best is not None and best.step is not None:
        lines += [
            "",
            f"step {time_text(best.seconds)}{range_text(_range(plan, best))}; most of it "
            f"{bound(best)}",
            *_bars({_WORDS[k]: v for k, v in best.step.parts.items()}, best.seconds, time_text),
            "",
            f"memory of a core {bytes_text(best.memory.total)} of {bytes_text(cluster.core_bytes)}",
            *_bars(_memory_parts(best), cluster.core_bytes, bytes_text),
        ]
    lines += ["", band_text(cluster.chip.target), "Collectives and estimated kernels have no band."]
    return "\n".join(lines)


def _memory_parts(choice: Choice) -> dict[str, float]:
    parts = choice.memory.to_dict()
    return {name.replace("_", " "): float(v) for name, v in parts.items() if name != "total"}


def _bars(parts: dict[str, float], whole: float, text: Any) -> list[str]:
    """A line for each part that is there: its name, a bar, its size."""
    width = max(map(len, parts))
    return [
        f"  {name.ljust(width)}  {'#' * round(_BAR * value / whole):<{_BAR}}  {text(value)}"
        for name, value in parts.items()
        if value
    ]


def _table(plan: Plan) -> list[str]:
    rows = [("mesh", "memory", "step", "tokens/s", "MFU", "cost/M tokens", "")]
    for choice in plan.choices[:_SHOWN]:
        cost = plan.cost(choice)
        rows.append(
            (
                str(choice.mesh),
                bytes_text(choice.memory.total),
                ("" if choice.step else "> ") + time_text(choice.seconds),
                ("" if choice.step else "< ") + f"{plan.tokens_per_second(choice):,.0f}",
                ("" if choice.step else "< ") + f"{plan.mfu(choice):.1%}",
                "" if cost is None else f"{'' if choice.step else '> '}{cost:.3g}",
                _note(plan, choice),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    left = len(plan.choices) - _SHOWN
    return [*lines, f"and {left} more; --json has all"] if left > 0 else lines


def _note(plan: Plan, choice: Choice) -> str:
    if not choice.fits:
        return f"does not fit by {bytes_text(choice.memory.total - plan.cluster.core_bytes)}"
    return f"mostly {bound(choice)}" if choice.step else "lower bound"
