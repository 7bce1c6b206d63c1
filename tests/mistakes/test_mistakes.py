"""Typical mistakes end in a sentence with the remedy."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from bayescore.cli import main
from mistakes import FURTHER, MISTAKES, SETUP, Mistake


def told(typed: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a user is told: an error, or the verdict of what the last line returned."""
    namespace: dict = {}
    exec(SETUP, namespace)
    if typed.startswith("bayescore "):
        with pytest.raises(SystemExit) as leaving:
            main(shlex.split(typed)[1:])
        assert leaving.value.code == 2
        return capsys.readouterr().err
    *lines, last = ast.parse(typed).body
    assert isinstance(last, ast.Expr)
    try:
        exec(compile(ast.Module(lines, []), "typed", "exec"), namespace)
        return eval(compile(ast.Expression(last.value), "typed", "eval"), namespace).verdict
    except (AttributeError, FileNotFoundError, TypeError, ValueError) as error:
        return str(error)


CASES = [pytest.param(each, id=each.name.replace(" ", "-")) for each in (*MISTAKES, *FURTHER)]


@pytest.mark.parametrize("mistake", CASES)
def test_a_typical_mistake_ends_in_a_sentence(mistake: Mistake, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    said = told(mistake.typed, capsys)
    assert re.search(mistake.sentence, said, re.S), said


def test_there_are_forty_mistakes() -> None:
    assert len({mistake.typed for mistake in MISTAKES}) == 40
