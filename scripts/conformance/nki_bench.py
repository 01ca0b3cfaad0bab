"""NKIBench's kernels as files that run: each with its operator's inputs and NumPy reference.

NKIBench (`NKIBench/` of zhang677/AccelOpt) keeps operators in `reference/OPERATOR_SIZES_numpy_N.py`
(`get_inputs`, `forward`, and the layouts in between) apart from kernels, which are functions
`kernel`: its own `kernels/OPERATOR_SIZES_N.py`, and those of Jerry2423/kda-for-trainium in
`workspaces/OPERATOR/runs/`. A kernel is right where its results are within a relative L2 norm of
2e-5 of the reference (3e-5 for mamba), as AccelOpt's `kernel_wrapper.py` and `eval_numpy.py` say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_KERNEL = re.compile(r"^def kernel\(", re.MULTILINE)
_TOLERANCE = {"mamba": 3e-5}
_COMPARED = """
np.random.seed(42)
_inputs = get_inputs()
_wanted = forward(*_inputs)
_wanted = _wanted if isinstance(_wanted, tuple) else (_wanted,)
_found = transform_nki_outputs(kernel(*transform_to_nki_inputs(_inputs)), _wanted)
_errors = [
    np.linalg.norm(np.asarray(_value, np.float32) - _right) / np.linalg.norm(_right)
    for _right, _value in zip(_wanted, _found, strict=True)
]
assert np.max(_errors) < {tolerance}, _errors
"""


def write_cases(checkouts: Path, folder: Path) -> None:
    """Write a file to `folder` for each kernel in `checkouts` whose operator has a reference."""
    references = {
        re.split(r"_[A-Z]+\d", path.name)[0]: path
        for path in sorted(checkouts.glob("*/NKIBench/reference/*.py"))
    }
    for name, operator, kernel in _kernels(checkouts):
        text = kernel.read_text(errors="replace")
        if operator in references and _KERNEL.search(text):
            compared = _COMPARED.format(tolerance=_TOLERANCE.get(operator, 2e-5))
            parts = (references[operator].read_text(errors="replace"), text, compared)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text("\n".join(parts))


def _kernels(checkouts: Path) -> Iterator[tuple[str, str, Path]]:
    """Name of the case, operator and file of every kernel."""
    for path in sorted(checkouts.glob("*/NKIBench/kernels/*.py")):
        yield path.stem, re.split(r"_[A-Z]+\d", path.name)[0], path
    for path in sorted(checkouts.glob("*/workspaces/*/runs/*.py")):
        yield path.stem, path.parts[-3], path
