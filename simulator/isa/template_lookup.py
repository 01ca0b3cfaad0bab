"""Where the templates of a trace are found: by the line of a kernel, and by what is alike in calls.

Arguments are alike where they are equal and never change, and tensors where they have one form:
dtype, shape, strides, layout, address, first partition, in PSUM the columns, in HBM the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from trnx.simulator.isa.templates import Template, is_plain, template_of
from trnx.simulator.kernel_lines import Line
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import has_overlap
from trnx.simulator.memory.pool import Buffer
from trnx.simulator.memory.storage import MemoryRegion, Slot, Storage
from trnx.simulator.program.specification import InstructionSpec

if TYPE_CHECKING:
    from trnx.simulator.isa.recorder import Recorder
    from trnx.simulator.isa.recording import Recording

# How many instructions of a line may find no template before nobody looks there any more; each
# that finds one allows for another. What can have no template uses up more.
_PATIENCE = 32
_IN_VAIN = 8
# Templates of equal calls, which differ in temporaries or in where products lie.
_VARIANTS = 4


def _is_integers(value: Any) -> bool:
    return type(value) is tuple and all(type(item) is int for item in value)


def _relation(a: NkiTensor, b: NkiTensor) -> str:
    """How the elements of two operands lie to each other: where they overlap, by where they start,
    as both may have the same view in the shape of an instruction.
    """
    if _memory(a.storage) is not _memory(b.storage):
        return "apart"
    is_one = a.storage is b.storage
    if is_one and (a is b or a.same_elements(b)):
        return "same"
    if is_one and not has_overlap(a, b):
        return "beside"
    return f"{is_one} {a.offset} {b.offset}"


def _memory(storage: Storage) -> Buffer | Slot | None:
    """Tensors of one address share it."""
    return storage.memory or storage.slot


class Site:
    """A line of a kernel: its templates by what calls have in common; () for a call that was seen
    once. Holds the line's code, by whose identity it is found.
    """

    __slots__ = ("code", "known", "patience")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.known: dict[tuple[Any, ...], tuple[Template, ...]] = {}
        self.patience = _PATIENCE


class Call(NamedTuple):
    """A call of an instruction that may have templates, and the tensors among its arguments."""

    site: Site
    key: tuple[Any, ...]
    tensors: list[NkiTensor]


class Templates:
    """Those of one trace."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, int], Site] = {}
        # Numbers of what operands are alike in.
        self._forms: dict[tuple[Any, ...], int] = {}

    def call(
        self,
        spec: InstructionSpec,
        line: Line,
        core: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Call | None:
        """The call with these arguments; None where it has no templates."""
        place = (id(line[0]), line[1])
        site = self._sites.get(place)
        if site is None:
            site = self._sites[place] = Site(line[0])
        elif site.patience <= 0:
            return None
        tensors: list[NkiTensor] = []
        memories: list[Buffer | Slot | None] = []
        key: list[Any] = [spec, core, *kwargs]
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind: type = type(value)
            if kind is not NkiTensor:
                if not (is_plain(kind) or _is_integers(value)):
                    return None
                # 0.0 equals -0.0, and 1 equals True.
                key += (kind, value or str(value))
                continue
            form = value.form_number or self._form(value)
            if form < 0:
                return None
            key.append(form)
            memory = _memory(value.storage)
            if memory in memories:
                key += [_relation(other, value) for other in tensors]
            tensors.append(value)
            memories.append(memory)
        return Call(site, tuple(key), tensors)

    def _form(self, tensor: NkiTensor) -> int:
        """The number of a tensor's form; negative where instructions on it have no template."""
        storage, number = tensor.storage, -1
        if tensor.indirection is None and type(storage) is Storage:
            start: tuple[Any, ...] = ()
            if storage.layout is not None:
                span = tensor.span()
                start = span if storage.buffer is MemoryRegion.psum else span[2:3]
            layout = storage.layout or storage.index
            form = (tensor.dtype, tensor.shape, tensor.strides, layout, storage.place, *start)
            number = self._forms.setdefault(form, len(self._forms) + 1)
        tensor.form_number = number
        return number

    def forget(self) -> None:
        """Let go of the memory that steps hold."""
        self._sites.clear()
        self._forms.clear()


def repeat(call: Call, recorder: Recorder, spec: InstructionSpec, line: Line) -> int | None:
    """Record the call by a template; the index of the instruction, None where no template fits."""
    site, key, tensors = call
    site.patience -= 1
    for template in site.known.get(key, ()):
        if template.fits(recorder, tensors):
            site.patience += 2
            return template.record(recorder, spec, line, tensors)
    return None


def remember(call: Call, made: Recording) -> None:
    """An instruction was recorded without a template: make one, if its call was seen before."""
    site, key, tensors = call
    templates = site.known.get(key)
    if templates is None:
        site.known[key] = ()
    elif len(templates) < _VARIANTS and (template := template_of(made, tensors)) is not None:
        site.known[key] = (*templates, template)
    else:
        site.patience -= _IN_VAIN
