"""What laplace-torch can do with a network, said before it is asked.

Its last layer is the end of the network, and its Kronecker factors count one use of every weight in a pass:
for others it fails with a message of its own, or returns a curvature that is several times off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["check_network", "in_words"]

INSTEAD = "use weights='all', structure='diag'"


def check_network(approximation: Any, x: Tensor, weights: str, structure: str) -> None:
    """Refuse what would go wrong, after a look at a pass of the rows `x`."""
    last = weights == "last"
    whole = approximation.model.eval()  # with "last" a module that also gives the last layer's inputs
    model: nn.Module = whole.model if last else whole
    own = set((whole.last_layer if last else model).parameters())
    chosen = {name: p for name, p in model.named_parameters() if p in own and p.requires_grad}
    if last or structure == "kron":
        with torch.enable_grad():
            uses = _uses(model(x))
        for name, p in chosen.items():
            if uses[p] > 1:
                raise ValueError(
                    f"{name} is used {uses[p]} times in a pass, and weights={weights!r}, structure="
                    f"{structure!r} counts one; {INSTEAD}"
                )
    if last:
        with torch.no_grad():
            f, phi = whole.forward_with_features(x)
            end = whole.last_layer(phi)
        if end.shape != f.shape or not torch.allclose(end, f, rtol=1e-3, atol=1e-3):
            raise ValueError(
                "the network does more after its last layer, and weights='last' needs that layer's output; "
                f"leave out what follows it, or {INSTEAD}"
            )
    elif structure == "kron":
        for name, module in model.named_modules():
            if len({p.requires_grad for p in module.parameters(recurse=False)}) > 1:
                raise ValueError(
                    f"a part of {name or 'the module'} is frozen, and structure='kron' takes whole layers; "
                    "use structure='diag'"
                )
    elif structure == "full":
        for name, p in model.named_parameters(remove_duplicate=False):
            if p.requires_grad and name not in chosen:
                raise ValueError(
                    f"{name} is the second name of a parameter, which structure='full' cannot serve; "
                    "use structure='diag'"
                )


@contextmanager
def in_words(weights: str, structure: str) -> Iterator[None]:
    """What laplace-torch and its backends do not implement, as a sentence."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(
            f"weights={weights!r}, structure={structure!r} is not implemented for a layer of this network "
            f"({str(error).splitlines()[0].rstrip('.')}); use structure='diag', or weights='last'"
        ) from error


def _uses(outputs: Tensor) -> Counter[Tensor]:
    """How often every parameter enters the outputs: the edges to it in autograd's graph."""
    found: Counter[Tensor] = Counter()
    nodes: list[Any] = [outputs.grad_fn]
    seen = {None, *nodes}
    while nodes:
        node = nodes.pop()
        for other, _ in node.next_functions if node is not None else ():
            if hasattr(other, "variable"):
                found[other.variable] += 1
            elif other not in seen:
                seen.add(other)
                nodes.append(other)
    return found
