"""Memory of this process that stands for SBUF, PSUM and HBM, and how values lie in it."""
