"""Networks that the experiments need and no library has, and classifiers of other libraries by name."""

from bayescore.models.adapters import add_adapters
from bayescore.models.convolutional import small_cnn
from bayescore.models.encoders import TextClassifier, text_classifier
from bayescore.models.koopa import Koopa
from bayescore.models.members import MLPMembers
from bayescore.models.networks import Classifier, classifier, image_classifier, replace_head
from bayescore.models.perceptron import mlp
from bayescore.models.stages import FrozenStages
from bayescore.models.weights import read_weights

__all__ = [
    "Classifier",
    "FrozenStages",
    "Koopa",
    "MLPMembers",
    "TextClassifier",
    "add_adapters",
    "classifier",
    "image_classifier",
    "mlp",
    "read_weights",
    "replace_head",
    "small_cnn",
    "text_classifier",
]
