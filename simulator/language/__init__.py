"""What kernels name: tensors and their views, registers, engines, operators."""
