"""Lightning: a callback that makes gradient accumulation right and leaves the posterior behind.

Lightning hands an optimizer a closure, which `step(closure)` runs under a draw of the weights. Of the
k batches that it accumulates, it runs k - 1 without the optimizer, though; the callback holds the block
open for them (nn/held_block.py). Each loss is divided by k before backward; the last batches of an epoch may
be fewer, and their gradient is scaled by k / batches, so that it is their mean.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from bayescore.nn.held_block import HeldBlock, check_accumulating
from bayescore.operators import declare_vision_operators
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.base import Posterior

__all__ = ["BayesianCallback"]


class BayesianCallback:
    """Trains the posterior of an optimizer of `bayescore.optim` with Lightning's Trainer.

    Arguments:
        likelihood: what the outputs of the LightningModule's `forward` mean, for predictions.

    After `trainer.fit`, `posterior` predicts. `accumulate_grad_batches`, clipping, schedules,
    `precision="bf16-mixed"` (without clipping) and `strategy="ddp"` work. It needs lightning:
    `pip install 'bayescore[lightning]'`.
    """

    posterior: Posterior

    def __new__(cls, *args: Any, **options: Any) -> Self:  # noqa: ARG004
        kind: Any = cls
        made: Self = object.__new__(_with_lightning(kind))
        return made

    def __init__(self, likelihood: Any = "categorical") -> None:
        super().__init__()
        self.likelihood = likelihood
        self._held = HeldBlock()
        self._hook: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the optimizer, and be asked before each of its steps."""
        optimizer = _optimizer(trainer)
        if trainer.accumulate_grad_batches > 1 and pl_module.automatic_optimization:
            check_accumulating(optimizer, "accumulate_grad_batches")
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Open the block for the batches of a step, if they are several."""
        if trainer.accumulate_grad_batches > 1 and pl_module.automatic_optimization:
            self._held.begin_batch(_optimizer(trainer))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Scale the gradient of fewer batches than usual to their mean, before it is clipped."""
        if self._held.is_open and self._held.batches < trainer.accumulate_grad_batches:
            for group in optimizer.param_groups:
                for p in (p for p in group["params"] if p.grad is not None):
                    p.grad.mul_(trainer.accumulate_grad_batches / self._held.batches)

    def _before_step(self, optimizer: Any, args: Any, options: dict[str, Any]) -> Any:
        """Run the closure of the last batch inside the open block, and let the step go without it."""
        if not self._held.is_open:
            return None
        closure = options.get("closure") or next(iter(args[1:]), None)
        if closure is not None:
            closure()
        self._held.close()
        return (optimizer,), {}

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Validation between two batches of one step would see drawn weights."""
        if self._held.is_open:
            raise ValueError(
                "validation falls between the batches of one step; make val_check_interval a multiple of "
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
            )

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Leave the mean in the module."""
        self._held.close(exception)
        self._release()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The posterior of the last step; batches without a step are left out."""
        if self._held.is_open:
            self._held.close(RuntimeError("training ended between the batches of one step"))
        self._release()
        self.posterior = _optimizer(trainer).posterior(pl_module, self.likelihood)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _optimizer(trainer: Any) -> BayesianOptimizer:
    """The trainer's one optimizer of `bayescore.optim`."""
    found = [each for each in trainer.optimizers if isinstance(each, BayesianOptimizer)]
    if len(found) != 1:
        kinds = ", ".join(type(each).__name__ for each in trainer.optimizers) or "none"
        raise TypeError(
            f"BayesianCallback needs one optimizer of bayescore.optim; configure_optimizers returned {kinds}"
        )
    return found[0]


@cache
def _with_lightning(kind: Any) -> type[Any]:
    """The class as a Lightning callback: lightning is imported when the first one is made."""
    declare_vision_operators()
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        raise ImportError("BayesianCallback needs lightning: pip install 'bayescore[lightning]'") from None
    made: type[Any] = type(kind.__name__, (kind, Callback), {})
    return made
