"""A compiled program with its data: the layer's C functions as Python methods on tensors.

ctypes lets go of the interpreter lock during a call, so other Python threads go on.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint32, c_void_p
from typing import Any

import torch
from torch import Tensor

__all__ = ["CompiledModel", "Rejected"]

# What a call reports beside its numbers: how many draws were rejected, and why the first of them was.
Rejected = tuple[int, str]

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bs_free_text": (None, [c_void_p]),
    "bs_free_model": (None, [c_void_p]),
    "bs_new_model": (c_void_p, [c_char_p, c_uint32, POINTER(c_void_p)]),
    "bs_dim": (c_int64, [c_void_p]),
    "bs_names": (c_void_p, [c_void_p, c_int, POINTER(c_void_p)]),
    "bs_log_density": (
        c_int64,
        [c_void_p, c_int64, c_void_p, c_int, c_int, c_int, c_void_p, c_void_p, POINTER(c_void_p)],
    ),
    "bs_constrain": (
        c_int64,
        [c_void_p, c_int64, c_void_p, c_int, c_uint32, c_int64, c_int, c_void_p, POINTER(c_void_p)],
    ),
    "bs_unconstrain": (c_int64, [c_void_p, c_int64, c_void_p, c_int64, c_void_p, POINTER(c_void_p)]),
    "bs_seconds": (c_double, [c_void_p, c_void_p, c_int64]),
}


class CompiledModel:
    """A Stan model in this process. Points are contiguous float64 tensors (..., D) on the CPU.

    Arguments:
        library: what `build` returned.
        data: JSON text.
        seed: of the random numbers in transformed data.
        threads: the most threads one call may use.
    """

    def __init__(self, library: ctypes.CDLL, data: str, seed: int, threads: int) -> None:
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.library, self.threads = library, threads
        self._evaluate = library.bs_log_density
        handle = c_void_p()
        self._raise(library.bs_new_model(data.encode(), seed, handle))
        self._model = handle.value
        weakref.finalize(self, library.bs_free_model, self._model)
        self.dim: int = library.bs_dim(self._model)

    def names(self, what: int) -> list[str]:
        """Stan's names: 0 unconstrained, 1 parameters, 2 and transformed ones, 3 and generated quantities."""
        text = c_void_p()
        self._raise(self.library.bs_names(self._model, what, text))
        return self._text(text.value).split()

    def log_density(
        self, x: Tensor, propto: bool, jacobian: bool, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Rejected | None]:
        """Values (...), gradients (..., D) if asked for, and the rejections."""
        value = x.new_empty(x.shape[:-1])  # no view anywhere: each would cost as much as the gradient
        grad = torch.empty_like(x) if gradient else None
        message = c_void_p()
        rejected = self._evaluate(
            self._model,
            value.numel(),
            x.data_ptr(),
            propto,
            jacobian,
            self.threads,
            value.data_ptr(),
            None if grad is None else grad.data_ptr(),
            message,
        )
        return value, grad, (rejected, self._text(message.value)) if rejected else None

    def constrain(self, x: Tensor, include: int, seed: int) -> tuple[Tensor, Rejected | None]:
        """Variables (n, K) in the order of names(include + 1), NaN where they were rejected."""
        size = len(self.names(include + 1))
        out = torch.empty(x.shape[0], size, dtype=torch.float64)
        message = c_void_p()
        rejected = self.library.bs_constrain(
            self._model, x.shape[0], x.data_ptr(), include, seed, size, self.threads, out.data_ptr(), message
        )
        return out, (rejected, self._text(message.value)) if rejected else None

    def unconstrain(self, rows: Tensor) -> tuple[Tensor, Rejected | None]:
        """Points (n, D) from parameters (n, K)."""
        out = torch.full((rows.shape[0], self.dim), torch.nan, dtype=torch.float64)
        message = c_void_p()
        rejected = self.library.bs_unconstrain(
            self._model, rows.shape[0], rows.data_ptr(), rows.shape[1], out.data_ptr(), message
        )
        return out, (rejected, self._text(message.value)) if rejected else None

    def seconds(self, x: Tensor, times: int) -> float:
        """Seconds that `times` gradients at x (D,) take in a C++ loop."""
        return float(self.library.bs_seconds(self._model, x.data_ptr(), times))

    def _text(self, address: int | None) -> str:
        """A text of the layer, which is freed."""
        if address is None:
            return ""
        text = ctypes.string_at(address).decode(errors="replace")
        self.library.bs_free_text(address)
        return text

    def _raise(self, error: int | None) -> None:
        if error is not None:
            raise ValueError(self._text(error).strip())
