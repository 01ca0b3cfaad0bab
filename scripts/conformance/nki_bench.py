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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Case:
    """A kernel, with the file of its operator's inputs and reference."""

    name: str
    operator: str
    kernel: Path
    reference: Path


def cases(checkouts: Path) -> Iterator[Case]:
    """All kernels in `checkouts` whose operator has a reference."""
    references = {
        _operator(path): path for path in sorted(checkouts.glob("*/NKIBench/reference/*.py"))
    }
    found = [(_operator(path), path) for path in checkouts.glob("*/NKIBench/kernels/*.py")]
    found += [(path.parts[-3], path) for path in checkouts.glob("*/workspaces/*/runs/*.py")]
    for operator, path in sorted(found):
        if operator in references and _KERNEL.search(path.read_text(errors="replace")):
            yield Case(path.stem, operator, path, references[operator])


def _operator(path: Path) -> str:
    """`rope_single_freq_apply_B1_H64_0.py` -> rope_single_freq_apply."""
    return re.split(r"_[A-Z]+\d", path.name)[0]


def write_cases(checkouts: Path, folder: Path) -> None:
    """Write a file to `folder` for each case, which compares its values."""
    for case in cases(checkouts):
        compared = _COMPARED.format(tolerance=_TOLERANCE.get(case.operator, 2e-5))
        texts = (path.read_text(errors="replace") for path in (case.reference, case.kernel))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{case.name}.py").write_text("\n".join((*texts, compared)))
