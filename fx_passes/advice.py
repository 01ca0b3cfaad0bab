"""What a user can do about a refusal, by the class of its reason.

`docs/user_guide.md` explains each.
"""

from __future__ import annotations

OWN_KERNEL = "register a kernel of your own for it"
GENERATED = "rewrite the line with other operators or dtypes, or register a kernel of your own"
LIMIT = "change what the kernel names, or register a kernel of your own"
HIDDEN = "use the inner value once, or let the bigger kernel return it"
PROFIT = "select='legal' takes the kernel all the same"
SELECT = "set select to 'profit' or 'legal'"
RANDOM = "leave random numbers out where they are not needed: model.eval(), dropout of 0"
DATA = "keep sizes fixed: torch.where with a mask in place of indexing by it"
NUMBER = "pass the number as a tensor"
EAGER_ERROR = "correct the call: PyTorch refuses it too"
SIZES = "pad inputs to few sizes"
TIE = "narrow the pattern of one of the two"
INSTALL = "install trnx[xla]"
WORKERS = "start workers with 'spawn' or 'forkserver'"
REPORT = "report it with this message; eager gives the same values"
FAILED = "run the kernel by itself with its reference; mend it, or report it with this message"
TRANSFORM = "compile the function that transforms, torch.compile(torch.vmap(f))"
MEMORY = "pass views of one tensor, or clone one of the arguments"
