"""`trnx migrate`: kernel files of older NKI rewritten for NKI 0.6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trnx.arguments import JsonOption


def migrate(
    files: Annotated[list[Path], typer.Argument(help="Python files with kernels.", exists=True)],
    write: Annotated[bool, typer.Option("--write", help="Change the files.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; status 1 for a file to be changed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rewrite kernels of NKI 0.1 to 0.5 and `neuronxcc.nki` for NKI 0.6, and show the diff.

    What an author must decide gets a comment `# trnx migrate: ...` above the line.
    """
    from trnx.migration.migrate import migrate as rewrite

    if write and check:
        raise typer.BadParameter("--write and --check exclude each other")
    found = {file: rewrite(file.read_text(encoding="utf-8"), str(file)) for file in files}
    changed = {file: one for file, one in found.items() if one.new != one.old}
    if write:
        for file, one in changed.items():
            file.write_text(one.new, encoding="utf-8")
    if as_json:
        listed = [
            {
                "file": str(file),
                "changed": file in changed,
                "notes": [{"line": line, "note": note} for line, note in one.notes],
                "diff": one.diff(str(file)),
            }
            for file, one in found.items()
        ]
        print(json.dumps({"files": listed, "written": write}))
    else:
        for file, one in found.items():
            if not write:
                print(one.diff(str(file)), end="")
            for line, note in one.notes:
                print(f"{file}:{line}: {note}")
        verb = "changed" if write else "to be changed"
        left = sum(len(one.notes) for one in found.values())
        print(f"{len(changed)} of {len(found)} files {verb}, {left} places left to their author")
    raise typer.Exit(1 if check and changed else 0)
