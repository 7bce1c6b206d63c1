"""Hugging Face: a mixin that makes the Trainer of transformers train a posterior.

    class BayesianTrainer(TrainerMixin, transformers.Trainer): ...

The Trainer calls backward for each batch in `training_step`, which the mixin puts under a draw of the
weights. The batches of one step (`gradient_accumulation_steps`) share their draw (nn/held_block.py): the
Trainer divides their losses by the number of batches, or of tokens, of the step.
"""

from __future__ import annotations

from typing import Any

import torch

from bayescore.nn.held_block import HeldBlock, check_accumulating
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.base import Posterior

__all__ = ["TrainerMixin"]


class TrainerMixin:
    """Stands before `transformers.Trainer` in the bases of a class; pass `optimizers=(opt, None)` to it.

    `opt` is one of `bayescore.optim`. Set `max_grad_norm=0` unless you want the Trainer's clipping at norm 1.
    """

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Forward and backward under a draw of the weights, as many times as the optimizer asks for."""
        trainer: Any = super()
        optimizer = self._bayesian_optimizer()
        if self.args.gradient_accumulation_steps == 1:  # type: ignore[attr-defined]
            losses = []
            for _ in range(optimizer.param_groups[0]["draws"]):
                with optimizer.sample():
                    losses.append(trainer.training_step(model, inputs, num_items_in_batch))
            return torch.stack(losses).mean()
        check_accumulating(optimizer, "gradient_accumulation_steps")
        self._held.begin_batch(optimizer)
        loss = trainer.training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # type: ignore[attr-defined]
            self._held.close()  # the batch is the last one before the step
        return loss

    def train(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's; an exception leaves the mean of the last step in the module."""
        trainer: Any = super()
        self._held = HeldBlock()
        try:
            return trainer.train(*args, **options)
        except BaseException as error:
            self._held.close(error)
            raise

    def posterior(self, likelihood: Any = "categorical") -> Posterior:
        """The posterior over the model's weights, as it is now."""
        return self._bayesian_optimizer().posterior(self.model, likelihood)  # type: ignore[attr-defined]

    def _bayesian_optimizer(self) -> BayesianOptimizer:
        """The optimizer inside accelerate's wrapper."""
        given = self.optimizer  # type: ignore[attr-defined]
        found = getattr(given, "optimizer", given)
        if not isinstance(found, BayesianOptimizer):
            raise TypeError(
                "TrainerMixin needs an optimizer of bayescore.optim, optimizers=(opt, None); "
                f"the Trainer has {type(found).__name__}"
            )
        return found
