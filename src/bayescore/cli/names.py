"""The targets, families and methods by name, each with one sentence, without importing torch.

A package lists its classes in a registry (FAMILIES, METHODS); a class has its name as the attribute `name`,
and the first paragraph of its module describes it. All of this is parsed from the source files, because
importing them would import torch: that takes seconds, and the help, `bayescore list` and the shell completion
must answer at once.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.resources import files

__all__ = ["AUTO", "families", "kinds", "methods", "targets"]

AUTO = "auto"


@cache
def targets() -> dict[str, str]:
    """Every ready-made target with its description."""
    named = _registry(_parse("bayescore.targets"), "NAMED")
    assert isinstance(named, ast.Dict)
    return {
        ast.literal_eval(name): ast.literal_eval(entry.elts[0])
        for name, entry in zip(named.keys, named.values, strict=True)
        if name is not None and isinstance(entry, ast.Tuple)
    }


@cache
def families() -> dict[str, str]:
    """Every family with its description."""
    return _described("bayescore.families", "FAMILIES")


@cache
def methods() -> dict[str, str]:
    """Every method with its description, "auto" first."""
    return {
        AUTO: "The default: begins near a mode, runs BaM or proximal score matching, keeps the best q.",
        **_described("bayescore.methods", "METHODS"),
    }


def kinds() -> dict[str, dict[str, str]]:
    """Targets, families and methods with their descriptions."""
    return {"targets": targets(), "families": families(), "methods": methods()}


def _described(package: str, registry: str) -> dict[str, str]:
    """Name and first paragraph for every class in a package's registry, in its order."""
    source = _parse(package)
    homes = {
        alias.name: node.module
        for node in source.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found = {}
    for node in ast.walk(_registry(source, registry)):
        if isinstance(node, ast.Name) and node.id in homes:
            module = _parse(homes[node.id])
            paragraph = (ast.get_docstring(module) or "").split("\n\n")[0]
            found[_name_attribute(module, node.id)] = " ".join(paragraph.split())
    return found


def _parse(module: str) -> ast.Module:
    *folders, last = module.split(".")[1:]
    folder = files("bayescore").joinpath(*folders)
    file = folder / f"{last}.py"
    return ast.parse((file if file.is_file() else folder / last / "__init__.py").read_text(encoding="utf-8"))


def _registry(source: ast.Module, name: str) -> ast.expr:
    """The value that a module assigns to a name."""
    value = _assigned(source.body, name)
    if value is None:
        raise LookupError(f"nothing is assigned to {name}")
    return value


def _name_attribute(source: ast.Module, class_name: str) -> str:
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            value = _assigned(node.body, "name")
            if value is not None:
                return str(ast.literal_eval(value))
    raise LookupError(f"{class_name} has no attribute `name` of its own")


def _assigned(statements: list[ast.stmt], name: str) -> ast.expr | None:
    for node in statements:
        places = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(place, ast.Name) and place.id == name for place in places):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return node.value
    return None
