"""Independent fits on a Ray cluster, one task each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["call_on_ray"]

TRIES = 3  # of a fit whose worker was lost, after the first


def call_on_ray(
    function: Callable[..., Any], calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> list[Any]:
    """The results of calls of a function with these arguments, in their order.

    They run on the cluster to which `ray.init` has connected, or else on one of this machine's cores, which
    is started and ended here. If the worker of a call is lost, it is made again on another one.
    """
    try:
        import ray
    except ImportError as error:
        raise ModuleNotFoundError("engine='ray' needs Ray: pip install 'bayescore[ray]'") from error
    began = not ray.is_initialized()
    if began:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}, **quiet)
    try:
        task = ray.remote(num_cpus=1, max_retries=TRIES)(function)
        found: list[Any] = ray.get([task.remote(*args, **named) for args, named in calls])
        return found
    finally:
        if began:
            ray.shutdown()
