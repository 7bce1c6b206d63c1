"""Which parameters are random: chosen by patterns of their names, as the last layer, or without the norms."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from bayescore.checks import nearest
from bayescore.posteriors.wrappers import bare_names

__all__ = ["last_layer_names", "select"]

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm)


def select(
    model: nn.Module, include: str | Iterable[str] = "*", exclude: str | Iterable[str] = ()
) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that match a pattern of `include` and none of `exclude`, without frozen ones.

    Patterns work as for file names ("head.*", "*.bias"). Two words are special: "last" means the last module
    that has parameters, "norms" the parameters of normalisation layers. Patterns may leave out the prefixes
    of torch.compile and DistributedDataParallel.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    >>> [name for name, _ in select(model, "last")]
    ['2.weight', '2.bias']
    >>> [name for name, _ in select(model, exclude=["norms", "*.bias"])]
    ['0.weight', '2.weight']
    """
    wanted, unwanted = _patterns(model, include), _patterns(model, exclude)
    own = dict(model.named_parameters())
    plain = dict(zip(own, bare_names(own), strict=True))

    def fits(name: str, patterns: list[str]) -> bool:
        return any(fnmatchcase(word, pattern) for pattern in patterns for word in (name, plain[name]))

    for pattern in [*wanted, *unwanted]:
        if not any(fits(name, [pattern]) for name in own):
            hint = nearest(pattern, [plain[name] for name, p in own.items() if p.requires_grad])
            guess = f"; did you mean {hint!r}?" if hint else ""
            raise ValueError(f"no parameter matches {pattern!r}{guess}")
    chosen = [
        (name, p)
        for name, p in own.items()
        if p.requires_grad and fits(name, wanted) and not fits(name, unwanted)
    ]
    if not chosen:
        raise ValueError(f"no trainable parameter is left by include={include!r}, exclude={exclude!r}")
    return chosen


def _patterns(model: nn.Module, words: str | Iterable[str]) -> list[str]:
    found = []
    for word in [words] if isinstance(words, str) else words:
        if word == "last":
            found += last_layer_names(model)
        elif word == "norms":
            found += [
                f"{module_name}.{name}".lstrip(".")
                for module_name, module in model.named_modules()
                if isinstance(module, NORMS)
                for name, _ in module.named_parameters(recurse=False)
            ]
        else:
            found.append(word)
    return found


def last_layer_names(model: nn.Module) -> list[str]:
    """Names of the parameters of the last module that has any."""
    owners = [
        [f"{module_name}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False)]
        for module_name, module in model.named_modules()
    ]
    return [names for names in owners if names][-1]
