"""From a kernel to its Program: `nki` as kernels import it, the recorder, entry points."""
