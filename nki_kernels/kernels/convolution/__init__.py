"""Convolutions: `convolution` in all its forms, and the gradients of one."""
