"""Kernels: the prologue and what a captured decode step needs besides matrix products; ``reference`` is the oracle."""
