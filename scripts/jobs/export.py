"""Write what train.py saved as Hugging Face's libraries read it.

    python scripts/jobs/export.py checkpoints model

A whole model becomes a folder of transformers' `save_pretrained` (config.json, safetensors, the
tokenizer); adapters become one of peft's (adapter_config.json, adapter_model.safetensors), or with
--merge a whole model, the adapters added to its weights. Exit status: 0, 1 for a named error, 2 for
flags that cannot be parsed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnx.jobs.adapters import save_adapters
from trnx.jobs.errors import FlagError, SaveError
from trnx.jobs.trained import find, load, merged
from trnx.simulator.errors import TrnxError


def export(source: str, target: Path, *, merge: bool) -> None:
    """Write the newest whole checkpoint of `source` to `target`, which is not there yet.

    Raises ModelError, CheckpointError, FlagError, and SaveError where it cannot be written.
    """
    if target.exists():
        raise FlagError(f"{target} is there already: name a folder that is not")
    run, folder = find(source, source)
    alone = run.get("lora") is not None and not merge
    model, tokenizer = (load if alone else merged)(run, folder)
    # A folder that looks whole is whole.
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if alone:
            save_adapters(model, run, partial)
        else:
            _save_model(model, tokenizer, partial)
        partial.rename(target)
    except OSError as error:
        raise SaveError(f"{target} cannot be written ({error.strerror or error})") from None


def _save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.config.use_cache = True  # off in training alone
    model.save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; named errors end with their message and status 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("source", help="a checkpoint of train.py, or a folder of checkpoints")
    parser.add_argument("target", type=Path, help="the folder to write, which is not there yet")
    parser.add_argument("--merge", action="store_true", help="add adapters to the weights")
    given = parser.parse_args(arguments)
    try:
        export(given.source, given.target, merge=given.merge)
    except TrnxError as error:
        print(f"export: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
