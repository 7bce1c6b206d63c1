"""The other side of a worker process: start it, ask it with patience, say how it ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["MethodError", "Worker", "WorkerError", "cache_variables"]


class WorkerError(RuntimeError):
    """A worker was killed, fell silent or ran out of memory: another time it may do better."""


class MethodError(RuntimeError):
    """The method cannot run this network, in its own words."""


def cache_variables(folder: Path) -> dict[str, str]:
    """Environment variables that make a process keep what it compiles in `folder`."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME")
    return {name: str(folder / name.lower()) for name in names}


class Worker:
    """A process of bench/step_worker.py; use it in a `with` statement.

    Arguments:
        patience: seconds without an answer after which the process counts as hung.
        environment: variables of the process, beside those of this one.
    """

    command = (sys.executable, "-m", "bayescore_lab.bench.step_worker")

    def __init__(self, patience: float, environment: Mapping[str, str] | None = None) -> None:
        self.patience = patience
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """End the process; harmless to repeat."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                with suppress(OSError):  # a pipe whose reader is gone cannot be flushed, and need not be
                    stream.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; WorkerError where there is none, MethodError where it is an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line()
        except OSError as problem:
            raise WorkerError(self._ending()) from problem
        if not line:
            raise WorkerError(self._ending())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = WorkerError if answer["error"].startswith("out of memory") else MethodError
            raise kind(answer["error"])
        return answer

    def _line(self) -> bytes:
        """The next line of the process, or nothing where it has ended."""
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if not selector.select(self.patience):
                self.end()
                raise WorkerError(f"stopped: no answer within {self.patience:g} s")
        return out.readline()

    def _ending(self) -> str:
        """How the process ended, in words."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "killed by the system, as happens when memory runs out"
        if code < 0:
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with exit code {code}: {lines[-1] if lines else 'no message'}"
