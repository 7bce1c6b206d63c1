"""A compiled program with its data: the layer's C functions as Python methods on tensors.

ctypes releases the interpreter lock during a call, so other Python threads continue.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint32, c_void_p
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CompiledModel", "Model", "Rejected"]

# What a call reports in addition to its results: how many draws were rejected, and why the first of them was.
Rejected = tuple[int, str]

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bs_text": (c_char_p, []),
    "bs_new_model": (c_void_p, [c_char_p, c_uint32]),
    "bs_free_model": (None, [c_void_p]),
    "bs_dim": (c_int64, [c_void_p]),
    "bs_names": (c_int, [c_void_p, c_int]),
    "bs_log_density": (c_int64, [c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p]),
    "bs_constrain": (c_int64, [c_void_p, c_int64, c_void_p, c_int, c_uint32, c_int64, c_int64, c_void_p]),
    "bs_unconstrain": (c_int64, [c_void_p, c_int64, c_void_p, c_int64, c_void_p]),
    "bs_seconds": (c_double, [c_void_p, c_void_p, c_int64]),
}


class Model(Protocol):
    """The interface of a Stan model, however it was compiled (see CompiledModel)."""

    dim: int

    def names(self, what: int) -> list[str]: ...

    def log_density(
        self, x: Tensor, propto: bool, jacobian: bool, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Rejected | None]: ...

    def constrain(self, x: Tensor, include: int, seed: int) -> tuple[Tensor, Rejected | None]: ...

    def unconstrain(self, rows: Tensor) -> tuple[Tensor, Rejected | None]: ...


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
        self._model: int | None = library.bs_new_model(data.encode(), seed)
        if self._model is None:
            raise ValueError(self._text())
        weakref.finalize(self, library.bs_free_model, self._model)
        self.dim: int = library.bs_dim(self._model)

    def names(self, what: int) -> list[str]:
        """Stan's names: 0 unconstrained, 1 parameters, 2 and transformed ones, 3 and generated quantities."""
        if not self.library.bs_names(self._model, what):
            raise ValueError(self._text())
        return self._text().split()

    def log_density(
        self, x: Tensor, propto: bool, jacobian: bool, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Rejected | None]:
        """Values (...), gradients (..., D) if asked for, and the rejections."""
        # The result is allocated in its final shape: a view, or a torch.Size as argument, costs microseconds.
        lead = x.shape[:-1]
        value = x.new_empty(*lead) if lead else x.new_empty(())
        grad = torch.empty_like(x) if gradient else None
        mode = propto + 2 * jacobian + 4 * self.threads
        out = None if grad is None else grad.data_ptr()
        rejected = self._evaluate(self._model, value.numel(), x.data_ptr(), mode, value.data_ptr(), out)
        return value, grad, (rejected, self._text()) if rejected else None

    def constrain(self, x: Tensor, include: int, seed: int) -> tuple[Tensor, Rejected | None]:
        """Variables (n, K) of points (n, D) in the order of names(include + 1), NaN where rejected."""
        n, size = x.shape[0], len(self.names(include + 1))
        out = torch.empty(n, size, dtype=torch.float64)
        rejected = self.library.bs_constrain(
            self._model, n, x.data_ptr(), include, seed, size, self.threads, out.data_ptr()
        )
        return out, (rejected, self._text()) if rejected else None

    def unconstrain(self, rows: Tensor) -> tuple[Tensor, Rejected | None]:
        """Points (n, D) from parameters (n, K)."""
        n, size = rows.shape
        out = torch.empty(n, self.dim, dtype=torch.float64)
        rejected = self.library.bs_unconstrain(self._model, n, rows.data_ptr(), size, out.data_ptr())
        return out, (rejected, self._text()) if rejected else None

    def seconds(self, x: Tensor, times: int) -> float:
        """Seconds that `times` gradients at x (D,) take in a C++ loop."""
        return float(self.library.bs_seconds(self._model, x.data_ptr(), times))

    def _text(self) -> str:
        """The layer's last message to this thread."""
        text: bytes = self.library.bs_text()
        return text.decode(errors="replace").strip()
