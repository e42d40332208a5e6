"""Loads the compiled kernels, a plain C library, and says why where it cannot.

Rules: torch is imported first, so that its OpenMP runtime is the one the library binds to;
nothing is loaded before the first use; a missing or unfit library is a recorded reason, never an
exception.
"""

from leanconv._native._library import Problem, Separable, library, why_unavailable

__all__ = ["Problem", "Separable", "library", "why_unavailable"]
