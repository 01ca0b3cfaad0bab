"""`trnx sim`: run a Python script with the simulator's `nki`, and show what its kernels do."""

from __future__ import annotations

import os
import pdb
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from trnx.simulator.errors import FindingError, TrnxError
from trnx.simulator.frontend.installation import install, uninstall
from trnx.simulator.frontend.nki_modules import unknown_import
from trnx.simulator.frontend.nki_runtime import warning_of
from trnx.simulator.hardware import hardware
from trnx.simulator.kernel_lines import is_simulator_frame
from trnx.simulator.program.observer import Observer, Recorded, observing


class ScriptError(TrnxError):
    """There is no such script, or it, or a module that it imports, is no valid Python."""


def run_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    target: str | None = None,
    trace: bool = False,
    debug: bool = False,
    warn: Sequence[str] = (),
) -> None:
    """Execute `script` (a file, or a folder with `__main__.py`) as Python's command line would.

    `target` stands for NEURON_PLATFORM_TARGET_OVERRIDE; `trace` prints every instruction when it is
    recorded; `debug` opens the debugger where a check fails; the checks in `warn` warn. Raises
    ScriptError where there is no script to run, UnknownCheckError.
    """
    if not Path(script).exists():
        raise ScriptError(f"there is no script {script}")
    with ExitStack() as stack:
        stack.enter_context(_environment(target))
        stack.enter_context(_as_main(script, arguments))
        stack.enter_context(warning_of(warn))
        if trace:
            stack.enter_context(observing(_Printer()))
        try:
            runpy.run_path(script, run_name="__main__")
        except FindingError as finding:
            if not debug:
                raise
            traceback.print_exc()
            pdb.post_mortem(_to_the_kernel(finding.__traceback__))
        except ImportError as error:
            if (unknown := unknown_import(error)) is None:
                raise
            raise unknown from error
        except SyntaxError as error:
            if not Path(error.filename or "").is_file():
                raise  # of text that the script compiles itself
            shown = "".join(traceback.format_exception_only(error)).rstrip()
            raise ScriptError(
                f"{error.filename} is no valid Python: correct line {error.lineno}\n{shown}"
            ) from None


def _to_the_kernel(found: TracebackType | None) -> TracebackType | None:
    """The traceback as far as the kernel's line: the debugger starts at its last frame."""
    entries = []
    while found is not None:
        entries.append(found)
        found = found.tb_next
    while entries and is_simulator_frame(entries[-1].tb_frame):
        entries.pop()
    shown: TracebackType | None = None
    for entry in reversed(entries):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


@contextmanager
def _environment(target: str | None) -> Iterator[None]:
    name = "NEURON_PLATFORM_TARGET_OVERRIDE"
    before = os.environ.get(name)
    if target is not None:
        os.environ[name] = hardware(target).target
    install()
    try:
        yield
    finally:
        uninstall()
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


class _Printer(Observer):
    """Prints every instruction."""

    def on_instruction(self, instruction: Recorded) -> None:
        """Engine, name, what it writes and reads, and the line."""
        written = [t.describe() for t, is_write in instruction.operands if is_write]
        read = [t.describe() for t, is_write in instruction.operands if not is_write]
        operands = f"{', '.join(written) or '-'} <- {', '.join(read) or '-'}"
        code, line = instruction.line
        print(
            f"{instruction.index:6} core {instruction.core} {instruction.engine.name:7} "
            f"{instruction.name:24} {operands}  # {code.co_filename}:{line}"
        )
