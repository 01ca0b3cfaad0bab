"""`trnx cache`: what compilation has kept on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from trnx.arguments import (
    AsCompiledOption,
    ExampleArgument,
    FallbackOption,
    JsonOption,
    SelectOption,
    given,
)

app = typer.Typer(
    no_args_is_help=True,
    help="The compile cache: what it holds, why something missed, moving it to other machines.",
)

ArchiveArgument = Annotated[Path, typer.Argument(help="The archive: one file.")]


def _print(answer: Any, as_json: bool) -> None:
    print(json.dumps(answer.to_dict()) if as_json else answer)


@app.command()
def stats(as_json: JsonOption = False) -> None:
    """Folder, bound, entries and bytes by kind."""
    from trnx.backend.cache.commands import stats as answer
    from trnx.backend.cache.current import required

    _print(answer(required()), as_json)


@app.command()
def explain(
    example: ExampleArgument,
    target: AsCompiledOption = None,
    fallback: FallbackOption = None,
    select: SelectOption = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for symbolic sizes.")] = False,
    inference: Annotated[
        bool, typer.Option("--inference", help="Without gradients: no backward graphs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What of a model's compilation is in the cache, and which part of the key differs of what is
    not. Nothing is run, and nothing is written."""
    import torch

    import trnx
    from trnx.backend.cache.explain import explain_cache
    from trnx.backend.example import load_example

    model, args, kwargs = load_example(example)
    options = given(target=target, fallback=fallback, select=select)
    if dynamic:
        model = torch.compile(model, backend="trnx", dynamic=True)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference):
        found = explain_cache(lambda: str(trnx.explain(model, *args, options=options, **kwargs)))
    _print(found, as_json)


@app.command()
def verify(
    remove: Annotated[bool, typer.Option("--remove", help="Remove damaged entries.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read all entries and recompute their checksums. Status 1 for a damaged one."""
    from trnx.backend.cache.commands import verify as answer
    from trnx.backend.cache.current import required

    found = answer(required(), remove=remove)
    _print(found, as_json)
    raise typer.Exit(0 if found.is_well else 1)


@app.command()
def gc(
    megabytes: Annotated[
        int | None, typer.Option(min=0, help="Shrink to so many; else to TRNX_CACHE_SIZE.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the entries that were not used for longest, where there are too many bytes."""
    from trnx.backend.cache.commands import collect
    from trnx.backend.cache.current import required

    _print(collect(required(), megabytes), as_json)


@app.command("export")
def export_archive(file: ArchiveArgument, as_json: JsonOption = False) -> None:
    """Write all entries but code to one file, for `trnx cache import`."""
    from trnx.backend.cache.commands import export_to
    from trnx.backend.cache.current import required

    _print(export_to(required(), file), as_json)


@app.command("import")
def import_archive(file: ArchiveArgument, as_json: JsonOption = False) -> None:
    """Take in the entries of a file that `trnx cache export` wrote."""
    from trnx.backend.cache.commands import import_from
    from trnx.backend.cache.current import required

    _print(import_from(required(), file), as_json)
