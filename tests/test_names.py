"""No public name hides a module: what `import` finds under a dotted name is what the tree shows."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import bayescore


def packages(root: ModuleType) -> Iterator[ModuleType]:
    """A package and all packages below it."""
    yield root
    for found in pkgutil.iter_modules(root.__path__):
        if found.ispkg:
            yield from packages(importlib.import_module(f"{root.__name__}.{found.name}"))


@pytest.mark.parametrize("package", [*packages(bayescore)], ids=lambda package: package.__name__)
def test_no_public_name_of_a_package_is_that_of_one_of_its_modules(package: ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        assert getattr(package, found.name) is module, f"{module.__name__} is hidden by what it exports"


@pytest.mark.parametrize("package", [*packages(bayescore)], ids=lambda package: package.__name__)
def test_no_public_function_bears_the_name_of_a_module_beside_it(package: ModuleType) -> None:
    modules = {
        found.name: importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    }
    for module in modules.values():
        for name in getattr(module, "__all__", ()):
            if name in modules:
                assert getattr(module, name) is modules[name], f"{module.__name__}.{name} is also a module"
