"""The ctypes view of csrc/leanconv.h."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch  # noqa: F401  the library must find torch's libgomp already mapped, and share its threads

ABI_VERSION = 3
_NAMES = ("libleanconv_kernels.so", "libleanconv_kernels.dylib")


class Problem(ctypes.Structure):
    """`leanconv_problem`: sizes are always of three spatial dimensions, ones in front."""

    _fields_ = [
        ("batch", ctypes.c_int64),
        ("channels_in", ctypes.c_int64),
        ("channels_out", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("in_size", ctypes.c_int64 * 3),
        ("out_size", ctypes.c_int64 * 3),
        ("kernel", ctypes.c_int64 * 3),
        ("stride", ctypes.c_int64 * 3),
        ("dilation", ctypes.c_int64 * 3),
        ("padding", ctypes.c_int64 * 3),
        ("dtype", ctypes.c_int32),
        ("layout", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Separable(ctypes.Structure):
    """`leanconv_separable`."""

    _fields_ = [
        ("depthwise", Problem),
        ("channels_out", ctypes.c_int64),
        ("activation", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    # An editable install spans two directories: the sources and the built files.
    from leanconv import _native

    files = [Path(folder) / name for folder in _native.__path__ for name in _NAMES]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        return None, "this installation was built without a C++ compiler"
    try:
        lib = ctypes.CDLL(str(found))
    except OSError as error:
        return None, f"{found.name} does not load: {error}"
    lib.leanconv_abi_version.restype = ctypes.c_int
    version = lib.leanconv_abi_version()
    if version != ABI_VERSION:
        return (
            None,
            f"{found.name} has interface version {version}, this package needs {ABI_VERSION}",
        )
    pointer, problem = ctypes.c_void_p, ctypes.POINTER(Problem)
    separable = ctypes.POINTER(Separable)
    sentences = ("leanconv_isa", "leanconv_isas", "leanconv_why_not", "leanconv_separable_why_not")
    for name in sentences:
        getattr(lib, name).restype = ctypes.c_char_p
    lib.leanconv_set_isa.argtypes = [ctypes.c_char_p]
    lib.leanconv_fma_peak.argtypes = [ctypes.c_int, ctypes.c_int64]
    lib.leanconv_fma_peak.restype = ctypes.c_double
    lib.leanconv_why_not.argtypes = [problem, ctypes.c_int]
    lib.leanconv_forward.argtypes = [problem, pointer, pointer, pointer, pointer]
    lib.leanconv_grad_input.argtypes = [problem, pointer, pointer, pointer]
    lib.leanconv_grad_weight.argtypes = [problem, pointer, pointer, pointer, pointer]
    lib.leanconv_separable_why_not.argtypes = [problem]
    lib.leanconv_separable_forward.argtypes = [separable, *[pointer] * 6]
    lib.leanconv_separable_backward.argtypes = [separable, *[pointer] * 8]
    return lib, ""


def library() -> ctypes.CDLL | None:
    """The loaded library, or None where there is none (`why_unavailable` tells)."""
    return _load()[0]


def why_unavailable() -> str:
    """Why the compiled kernels are not here, in a sentence; empty where they are."""
    return _load()[1]
