"""Kernels for the device: the file of a kernel executed with the `nki` that is installed.

The registry holds twins of kernel files, whose `nki` is the simulator. Here the same file is
executed once more, as AWS's compiler wants to see it: a plain function in a file on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from trnx.nki_kernels.errors import DuplicateKernelError

_modules: dict[Path, ModuleType] = {}
_lock = threading.RLock()


def native_kernel(kernel: Any) -> Any:
    """The kernel of the same name, from the same file, with the `nki` that is installed.

    Raises what importing the file with that package raises.
    """
    function = inspect.unwrap(getattr(kernel, "function", kernel))
    file = Path(function.__code__.co_filename)
    with _lock:
        if file not in _modules:
            _modules[file] = executed(file)
        return getattr(_modules[file], function.__name__)


def executed(file: Path) -> ModuleType:
    """The file as a module, with the `nki` that is installed."""
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    name = f"trnx_on_device_{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the kernel compiler finds sources by module
    try:
        # Registering is a kernel file's last statement; its twin holds the name already.
        with contextlib.suppress(DuplicateKernelError):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
