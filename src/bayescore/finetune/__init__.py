"""Pretrained networks become Bayesian by fine-tuning: from pictures or texts to a model folder and back."""

from bayescore.finetune.images import load_images, train_images
from bayescore.finetune.texts import load_texts, train_texts
from bayescore.finetune.training import METHODS, FineTuning, TrainedModel, fine_tune

__all__ = [
    "METHODS",
    "FineTuning",
    "TrainedModel",
    "fine_tune",
    "load_images",
    "load_texts",
    "train_images",
    "train_texts",
]
