"""The `trnx` command. Every command is a thin call into the rooms; `--json` prints one object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from trnx.arguments import (
    Against,
    AsCompiledOption,
    Dtype,
    ExampleArgument,
    FallbackOption,
    HtmlOption,
    JsonOption,
    Runner,
    ScriptArguments,
    SelectOption,
    Target,
    TargetOption,
    given,
)
from trnx.cache_cli import app as cache_app
from trnx.migrate_cli import migrate
from trnx.plan_cli import plan
from trnx.simulator.errors import TrnxError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cache_app, name="cache")
app.command()(plan)
app.command()(migrate)


class ArgumentOrderError(TrnxError):
    """An option of trnx behind the script, where it would be the script's."""


def _script_arguments(
    context: typer.Context, script: str, arguments: list[str] | None
) -> list[str]:
    """What the script gets. Raises ArgumentOrderError for an option of trnx behind the script."""
    given = arguments or []
    if given[:1] == ["--"]:
        return given[1:]
    takes_value = {
        flag: not getattr(option, "is_flag", False)
        for option in context.command.params
        for flag in option.opts
        if flag.startswith("-")
    }
    for index, argument in enumerate(given):
        if argument == "--":
            break
        flag, equals, _ = argument.partition("=")
        if flag in takes_value:
            end = index + (2 if takes_value[flag] and not equals else 1)
            command = f"trnx {context.command.name}"
            ours, rest = given[index:end], given[:index] + given[end:]
            raise ArgumentOrderError(
                f"{argument} stands behind {script}, where it would be an argument of the script. "
                f"If it is for trnx: {' '.join([command, *ours, script, *rest])}\n"
                f"If it is for the script: {' '.join([command, script, '--', *given])}"
            )
    return given


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"trnx {version('trnx')}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the versions."),
    ] = False,
) -> None:
    """torch.compile for AWS Trainium, with an NKI simulator for machines without one."""


@app.command()
def demo(
    dtype: Annotated[Dtype, typer.Option(help="The model's dtype.")] = Dtype.FP32,
    target: TargetOption = Target.TRN2,
    runner: Annotated[Runner, typer.Option(help="What runs NKI regions.")] = Runner.SIMULATOR,
    as_json: JsonOption = False,
) -> None:
    """Compile a real pretrained sentence-embedding model, run it, and compare it with eager."""
    from trnx.backend import demo as demo_module
    from trnx.backend.demo_view import render

    result = demo_module.run(dtype.value, target.value, runner.value)
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        render(result)


@app.command()
def explain(
    example: ExampleArgument,
    target: AsCompiledOption = None,
    fallback: FallbackOption = None,
    select: SelectOption = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for symbolic sizes.")] = False,
    inference: Annotated[
        bool,
        typer.Option("--inference", help="Without gradients: no backward graphs."),
    ] = False,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            help="PERCENT, or KIND=PERCENT with flops, bytes, ops or seconds: exit with 1 where "
            "less of the FLOPs (or of the kind) is on NKI. May be repeated."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show, without running kernels, which op of a model goes where and why.

    Forward and backward graphs are shown where gradients are enabled and an input or a parameter
    requires them; `--inference` shows the graph without gradients.
    """
    import torch

    import trnx
    from trnx.backend.example import load_example
    from trnx.simulator.timing.outputs import check_page_path

    gates = dict(_gate(text) for text in fail_under or ())
    if html is not None:
        check_page_path(html)
    model, args, kwargs = load_example(example)
    options = given(target=target, fallback=fallback, select=select)
    if dynamic:
        model = torch.compile(model, backend="trnx", dynamic=True)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference):
        explanation = trnx.explain(model, *args, options=options, **kwargs)
    if html is not None:
        explanation.write_html(html)
    print(json.dumps(explanation.to_dict()) if as_json else explanation)
    if gates:
        explanation.fail_under(**gates)


@app.command()
def export(
    example: ExampleArgument,
    folder: Annotated[Path, typer.Argument(help="The folder to write: a new or an empty one.")],
    target: AsCompiledOption = None,
    fallback: FallbackOption = None,
    select: SelectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model's plan, for inference, to a folder that `trnx.load` runs, here or on a device.

    The folder has the graph and the weights as a torch.export archive, the kernels' sources, and
    StableHLO of the model and of what no kernel takes.
    """
    import trnx
    from trnx.backend.example import load_example

    model, args, kwargs = load_example(example)
    options = given(target=target, fallback=fallback, select=select)
    found = trnx.export(model, args, folder, kwargs=kwargs, options=options)
    print(json.dumps(found.to_dict()) if as_json else found)


def _gate(text: str) -> tuple[str, float]:
    """`95` or `bytes=80` of `--fail-under`."""
    kind, _, number = text.rpartition("=")
    try:
        if kind in ("", "flops", "bytes", "ops", "seconds"):
            return kind or "flops", float(number)
    except ValueError:
        pass
    raise typer.BadParameter(f"{text!r} is not PERCENT, or flops=, bytes=, ops= or seconds=PERCENT")


@app.command(context_settings={"allow_interspersed_args": False})
def sim(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python file, or a folder with __main__.py.")],
    arguments: ScriptArguments = None,
    target: Annotated[
        Target | None, typer.Option(help="The generation; else as the environment says.")
    ] = None,
    trace: Annotated[bool, typer.Option(help="Print every instruction of every kernel.")] = False,
    debug: Annotated[bool, typer.Option(help="Open the debugger where a check fails.")] = False,
    warn: Annotated[
        list[str] | None,
        typer.Option(
            help="A check that shall warn and not stop the kernel, or clipped-slice, which tells "
            "of slices that end behind their tensor. May be repeated."
        ),
    ] = None,
) -> None:
    """Run a script that says `import nki` with the simulator, without a device."""
    from trnx.simulator.frontend.run_script import run_script

    asked = None if target is None else target.value
    own = _script_arguments(context, script, arguments)
    run_script(script, own, target=asked, trace=trace, debug=debug, warn=warn or ())


@app.command(context_settings={"allow_interspersed_args": False})
def profile(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python file, or a folder with __main__.py.")],
    arguments: ScriptArguments = None,
    target: Annotated[
        Target | None, typer.Option(help="The generation; else as the script and environment say.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace that the Perfetto UI opens.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw roofline and memory into this folder.")
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a script, and predict what its kernels and compiled models take on the chip."""
    from trnx.backend.html.page import write
    from trnx.backend.html.reports import profile_page
    from trnx.backend.profile_script import profile_script
    from trnx.simulator.timing.outputs import check_page_path, check_plot_folder, check_trace_path

    asked = None if target is None else target.value
    own = _script_arguments(context, script, arguments)
    if trace is not None:
        check_trace_path(trace)
    if plot is not None:
        check_plot_folder(plot)
    if html is not None:
        check_page_path(html)
    found = profile_script(script, own, target=asked)
    for model in found:
        # A script that uses several targets gets files for each.
        name = f".{model.target}" if len(found) > 1 else ""
        if trace is not None:
            model.write_trace(trace.with_name(f"{trace.stem}{name}{trace.suffix}"))
        if plot is not None:
            model.plot(plot / model.target if name else plot)
        if not as_json:
            print(model)
    data = {"targets": [model.to_dict() for model in found]}
    if html is not None:
        write(html, profile_page(data))
    if as_json:
        print(json.dumps(data))


@app.command(context_settings={"allow_interspersed_args": False})
def bisect(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python file, or a folder with __main__.py.")],
    arguments: ScriptArguments = None,
    against: Annotated[Against, typer.Option(help="What regions are compared with.")] = (
        Against.FLOAT64
    ),
    rtol: Annotated[float | None, typer.Option(help="As in torch.allclose; else by dtype.")] = None,
    atol: Annotated[float | None, typer.Option(help="As in torch.allclose; else by dtype.")] = None,
    folder: Annotated[
        Path, typer.Option(help="New or empty: for the programs of regions that differ.")
    ] = Path("trnx_bisect"),
    as_json: JsonOption = False,
) -> None:
    """Run a script, and name the compiled regions whose values are wrong. Status 1 for any."""
    from trnx.backend.bisect import bisect_script

    own = _script_arguments(context, script, arguments)
    found = bisect_script(script, own, against=against.value, rtol=rtol, atol=atol, folder=folder)
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(1 if found.differences else 0)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The Python file that registers your kernels.")],
    target: Annotated[
        list[Target] | None, typer.Option(help="A generation; may be repeated. All without it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try the kernels that a file registers against their references, on every generation.

    On their samples and on what samples leave out: edges, dtypes, strides, numbers, large sizes.
    Where AWS's package nki is installed, nki.simulate runs the samples too. Status 1 for a finding.
    """
    from trnx.backend.kernel_checks.engine import TARGETS, check_file

    found = check_file(file, [one.value for one in target] if target else TARGETS)
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(1 if found.findings else 0)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """What this machine can run, what is in the way, and how to mend it. Status 1 for a problem."""
    from trnx.backend.neuron.doctor import examine

    found = examine()
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(0 if found.is_well else 1)


@app.command("check-kernels")
def check_kernels(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Kernel files; without one, all of the registry.")
    ] = None,
    target: TargetOption = Target.TRN2,
    as_json: JsonOption = False,
) -> None:
    """Run kernels on their samples with all checks, against their references. Status 1: one fails.

    On one target, and on their samples alone: made for the whole registry; `trnx check FILE` tries
    the kernels of a file harder. Where AWS's package nki is installed, nki.simulate runs them too,
    and differences are shown.
    """
    from trnx.backend.kernel_checks.samples import check_kernels as check

    found = check(target.value, files or ())
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(0 if found.ok else 1)


device = typer.Typer(no_args_is_help=True, help="The first hour on a device, as one archive.")
app.add_typer(device, name="device")


@device.command("collect")
def device_collect(
    folder: Annotated[
        Path, typer.Argument(help="Where results are kept; the archive is FOLDER.tar.gz.")
    ] = Path("trnx-device"),
    target: TargetOption = Target.TRN2,
    as_json: JsonOption = False,
) -> None:
    """Doctor, kernels, timing probes and three models on this device, in one archive to send on.

    Called again, it goes on where it ended. The archive has no secrets, names or addresses.
    """
    from trnx.device.collect import collect

    def say(line: str) -> None:
        if not as_json:
            print(line, flush=True)

    found = collect(folder, target.value, say=say)
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(0 if found.ok else 1)


@device.command("report")
def device_report(
    archive: Annotated[Path, typer.Argument(help="What `trnx device collect` wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Measured against predicted, as a page, and which constants of the timing model to change.

    Status 1: something failed, or a constant is to change.
    """
    from trnx.device.report import report

    found = report(archive)
    print(json.dumps(found.to_dict()) if as_json else found)
    raise typer.Exit(0 if found.ok else 1)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
)
def eks(context: typer.Context) -> None:
    """Trainium jobs on Amazon EKS: render, validate, submit, status, logs; `trnx eks --help`."""
    from trnx.eks.extra import run

    run(context.args)


def main() -> None:
    """Entry point: named errors end with their message and status 1, without a traceback."""
    try:
        app()
    except TrnxError as error:
        print(f"trnx: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
