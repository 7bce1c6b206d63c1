"""The command: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import warnings

import arviz
import pytest
import torch

import bayescore as bs
from bayescore import cli
from bayescore.cli import main, names, terminal, train
from bayescore.families import FAMILIES
from bayescore.inference.result import Outcome
from bayescore.methods import METHODS
from bayescore.targets import NAMED

MODEL = """
import torch

def log_density(x):
    return -0.5 * (x[:, 0] ** 2 + 4 * (x[:, 1] - x[:, 0]) ** 2)

def broken(x):
    return x @ torch.ones(5, dtype=x.dtype)

def nowhere(x):
    return x.sum(-1) * torch.nan
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; gives its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    def call(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main(line.split())
        printed = capsys.readouterr()
        return leaving.value.code, printed.out, printed.err

    return call


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fit bannana", "did you mean 'banana'"),
        ("fit banana --family ful", "did you mean 'full'"),
        ("fit banana --method bma", "did you mean 'bam'"),
        ("fit banana --famly full", "--family"),
        ("fit banana --method descent --set inner_step=3", "did you mean 'inner_steps'"),
        ("fit banana --method descent --set clip", "key=value; got 'clip'"),
        ("fit banana --method descent --set clip=far", "clip takes a number or none; got 'far'"),
        ("fit banana --method descent --set reset=maybe", "reset takes true or false; got 'maybe'"),
        ("fit banana --method descent --draws 3 --set draws=4", "draws is given twice"),
        ("fit banana --set clip=2", "--set belongs to one method, and auto chooses its own"),
        ("fit banana --draws 3", "--draws belongs to one method"),
        ("fit banana --data data.json", "--data belongs to a Stan program; the target here is banana"),
        ("fit banana --program model.stan", "--program belongs to posteriordb:NAME"),
        ("fit model.stan --dim 3", "--dim belongs to a function or a ready-made target"),
        ("fit banana --method gsm --lr 1", "GSM has no learning rate"),
        ("fit banana --method bam --family mixture", "BaM cannot fit a GaussianMixture"),
        ("fit banana --method fisher --noise 1", "Fisher differentiates the score"),
        ("fit banana --rank 2", "--rank belongs to --family low-rank or spiked"),
        ("fit banana --steps -1", "--steps must be at least 1; got -1"),
        ("fit banana --dim 0", "--dim must be at least 1; got 0"),
        ("fit banana --steps many", "'many'"),
        ("fit banana --scale=wide", "'wide'"),
        ("fit banana --scale 0", "scale must be positive; got 0"),
        ("fit banana --noise -1", "not negative; got -1"),
        ("fit banana --output-draws 10", "--output fit.nc"),
        ("fit banana --resample", "--output fit.nc"),
        ("fit banana --output fit.csv", "must end in .nc or .safetensors; got 'fit.csv'"),
        ("fit banana --output fit.safetensors --output-draws 9", "--output-draws goes with"),
        ("fit banana --output nowhere/fit.nc", "there is no folder nowhere"),
        ("fit banana --output model.py/fit.nc", "there is no folder model.py"),
        ("fit banana --plot .", "is a folder"),
        ("fit banana --plot " + "x" * 300 + ".png", "cannot be written: File name too long"),
        ("fit banana --steps 99999999999", "--steps must be at most 1,000,000,000; got 99999999999"),
        ("fit banana --draws 99999999999", "--draws must be at most 100,000,000"),
        ("fit banana --family zuko --layers 99999999999", "--layers must be at most 10,000"),
        ("fit banana --plot fit.gif", "must end in .png or .pdf or .svg; got 'fit.gif'"),
        ("fit model.py --dim 2", "path/to/file.py:function"),
        ("fit model.py:log_density", "--dim"),
        ("fit missing.py:log_density --dim 2", "there is no file missing.py"),
        ("fit model.py:log_densty --dim 2", "did you mean 'log_density'"),
        ("fit model.py:broken --dim 2", "line 8, RuntimeError"),
        ("fit model.py:nowhere --dim 2", "not finite at any of 101 points"),
        ("fit", "TARGET"),
        ("list familes", "did you mean 'families'"),
        ("lst", "list"),
        ("fit banana --learning-rate 1", "--lr"),
        ("train table.csv --max-epochs 3", "--epochs"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, line, words):
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_fit_says_how_it_ended_and_how_far_to_trust_it(run):
    code, out, err = run("fit banana --family full --method bam --steps 200")
    assert (code, err) == (0, "")
    for words in ("status", "score calls 400", "seconds", "ELBO", "k-hat", "mean", "sd", "5%", "50%", "95%"):
        assert words in out
    assert "theta[1]" in out


def test_the_table_has_every_coordinate_up_to_five_hundred(run):
    _, out, _ = run("fit gaussian --dim 25 --family diagonal --method bam --steps 20")
    assert all(f"theta[{i}]" in out for i in range(1, 26))
    assert "the first" not in out
    _, out, _ = run("fit gaussian --dim 501 --family diagonal --method bam --steps 2")
    assert "theta[500]" in out
    assert "theta[501]" not in out
    assert "the first 500 of 501; fit.marginals() has all" in out


def test_a_function_in_a_file_is_fitted(run):
    code, out, _ = run("fit model.py:log_density --dim 2 --method bam --steps 50")
    assert code == 0
    assert "agree" in out or "good" in out


def test_a_file_may_import_its_neighbours(run, tmp_path):
    (tmp_path / "outer.py").write_text("from model import log_density\n")
    assert run("fit outer.py:log_density --dim 2 --method bam --steps 5 -q")[0] == 0


def test_a_file_that_does_not_import_is_told_with_its_line(run, tmp_path):
    (tmp_path / "bad.py").write_text("import torch\n1 / 0\n")
    code, _, err = run("fit bad.py:f --dim 2")
    assert code == 2
    assert "bad.py cannot be imported: line 2, ZeroDivisionError" in err


def test_the_shell_gives_the_numbers_of_the_library(run):
    settings = "--method descent --draws 2 --set inner_steps=4 --set alpha=0.5"
    run(f"fit gaussian --dim 2 --steps 30 --seed 3 {settings} --output a.safetensors")
    method = bs.methods.ProximalDescent(inner_steps=4, draws=2, alpha=0.5)
    target = bs.targets.by_name("gaussian", 2)
    own = bs.fit(target, bs.families.FullGaussian.init(2), method, steps=30, seed=3)
    saved = bs.Fit.load("a.safetensors")
    assert saved.method == method
    assert torch.equal(saved.family.flat(), own.family.flat())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_named(run, family):
    code, out, _ = run(f"fit gaussian --family {family} --method descent --steps 2 --set inner_steps=1")
    assert code in (0, 1)  # two steps may make things worse
    assert FAMILIES[family].__name__ in out


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_named(run, method):
    family = next(name for name, kind in FAMILIES.items() if kind.__name__ in METHODS[method].serves)
    draws, calls = ("--set pairs=2", 50) if method == "curvature" else ("--draws 4", 20)
    code, out, _ = run(f"fit gaussian --family {family} --method {method} {draws} --steps 5")
    assert code in (0, 1)
    assert f"score calls {calls}" in out


@pytest.mark.parametrize("target", [name for name in NAMED if name != "ill-conditioned"])
def test_every_target_can_be_named_with_its_dimension(run, target):
    assert f"{target} in 4 dimensions" in run(f"fit {target} --dim 4 --method bam --steps 2")[1]


def test_draws_are_written_for_arviz(run):
    code, out, _ = run("fit gaussian --dim 2 --method bam --steps 30 --output fit.nc --output-draws 123")
    assert code == 0
    assert "wrote fit.nc" in out
    assert arviz.from_netcdf("fit.nc").posterior["theta"].shape == (1, 123, 2)


@pytest.mark.parametrize(("target", "dim"), [("skewed", 1), ("gaussian", 2), ("skewed", 3), ("gaussian", 5)])
def test_pictures_are_drawn_in_any_dimension(run, tmp_path, target, dim):
    code, _, err = run(f"fit {target} --dim {dim} --method bam --steps 20 --quiet --plot fit.png")
    assert (code, err) == (0, "")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_quiet_prints_nothing(run):
    assert run("fit gaussian --method bam --steps 30 --quiet") == (0, "", "")


def test_a_fit_that_got_worse_exits_with_1(run):
    line = "fit gaussian --dim 30 --noise 5 --method gsm --steps 200"
    code, out, err = run(line)
    assert (code, err) == (1, "")
    assert "got worse" in out
    code, out, err = run(f"{line} --quiet")
    assert (code, out) == (1, "")
    assert err.startswith("error: the fit got worse")


def test_an_interrupted_fit_is_shown_written_and_exits_with_130(run, tmp_path, monkeypatch):
    fit = bs.fit

    def interrupted(*arguments, **options):
        done = fit(*arguments, **options)
        return dataclasses.replace(done, outcome=Outcome.INTERRUPTED, status="interrupted at step 5 of 9")

    monkeypatch.setattr(bs, "fit", interrupted)
    code, out, _ = run("fit banana --method bam --steps 9 --output fit.safetensors")
    assert code == 130
    assert "interrupted at step 5" in out
    assert (tmp_path / "fit.safetensors").exists()


def test_a_factorisation_that_fails_is_a_failed_fit(run, monkeypatch):
    def broken(*arguments, **options):
        raise torch.linalg.LinAlgError("the factorisation did not converge")

    monkeypatch.setattr(bs, "fit", broken)
    code, out, err = run("fit banana")
    assert (code, out) == (1, "")
    assert err == "error: the fit failed: the factorisation did not converge\n"


def test_files_are_checked_before_the_fit_starts(run, monkeypatch):
    monkeypatch.setattr(bs, "fit", lambda *a, **k: pytest.fail("the fit was started"))
    for option in ("--output nowhere/fit.nc", "--plot nowhere/fit.png"):
        assert run(f"fit banana {option}")[0] == 2


def test_nothing_half_written_is_left_behind(run, tmp_path, monkeypatch):
    def half(self, path):
        path_of = str(path)
        with open(path_of, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device", path_of)

    monkeypatch.setattr(arviz.InferenceData, "to_netcdf", half)
    (tmp_path / "fit.nc").write_text("old")
    code, _, err = run("fit banana --method bam --steps 5 --output fit.nc")
    assert code == 2
    assert "No space left on device" in err
    assert (tmp_path / "fit.nc").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"fit.nc", "model.py"}


def test_memory_that_is_not_there_is_a_sentence(run, monkeypatch):
    monkeypatch.setattr("bayescore.checks.available_memory", lambda: 1000)
    code, _, err = run("fit gaussian --dim 30 --method bam")
    assert code == 2
    assert "GB are free" in err


def test_warnings_are_sentences_whatever_their_kind(capsys):
    with terminal.warnings_as_sentences():
        warnings.warn("this needs 2 GB", ResourceWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: this needs 2 GB\n"


def test_list_names_everything_with_a_sentence(run):
    code, out, _ = run("list")
    assert code == 0
    for name in [*NAMED, *FAMILIES, "auto", *METHODS]:
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]][:1]
        assert len(line.split()) > 3
    only = run("list methods")[1]
    assert "bam" in only
    assert "banana" not in only


def test_names_are_read_from_the_source_as_the_library_registers_them():
    assert names.targets() == {name: line for name, (line, _) in NAMED.items()}
    for found, registry in ((names.families(), FAMILIES), (names.methods(), {"auto": None, **METHODS})):
        assert list(found) == list(registry)
        for name, kind in registry.items():
            if kind is not None:
                text = sys.modules[kind.__module__].__doc__.strip()
                assert found[name] == " ".join(text.split("\n\n")[0].split())


def shell(words, **environment):
    """The command in a process of its own, which says on standard error what it has imported."""
    code = f"""
import sys
for name in ("arviz", "zuko"):
    sys.modules[name] = None
from bayescore.cli import main
try:
    main({words!r})
finally:
    slow = ("torch", "numpy", "scipy", "matplotlib", "safetensors", "bayescore_lab")
    print("imported:", *(name for name in slow if name in sys.modules), file=sys.stderr)
"""
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: bayescore"),
        (["--help"], "reproduce"),
        (["--version"], bs.__version__),
        (["list"], "banana"),
        (["list", "methods"], "bam"),
        (["cite"], "2602.05873"),
        (["fit", "--help"], "low-rank"),
        (["train", "--help"], "--fraction"),
    ],
    ids=" ".join,
)
def test_words_alone_wait_for_neither_torch_nor_the_lab(words, said):
    done = shell(words)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stderr == "imported:\n"


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        (
            "bayescore ",
            [
                "fit",
                "calibrate",
                "train",
                "forecast",
                "predict",
                "list",
                "doctor",
                "cite",
                "reproduce",
                "report",
                "bench",
            ],
        ),
        ("bayescore forecast data.csv --calibration ", ["conformal", "noise", "single"]),
        ("bayescore fit ", list(NAMED)),
        ("bayescore fit ba", ["banana"]),
        ("bayescore fit model.s", []),  # nothing of ours: the shell completes file names
        ("bayescore fit banana --family ", list(FAMILIES)),
        ("bayescore fit banana --method ", ["auto", *METHODS]),
        ("bayescore fit banana --fam", ["--family"]),
        ("bayescore train di", ["digits"]),
        ("bayescore list ", ["targets", "families", "methods"]),
        ("bayescore bench ", []),
    ],
)
def test_completion_waits_for_neither_torch_nor_the_lab(line, completed):
    words = line.split(" ")
    request = {"_BAYESCORE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = shell([], **request)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == completed
    assert done.stderr == "imported:\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the PATH")
def test_completion_can_be_shown_and_installed(tmp_path):
    def in_bash(option):
        code = f"from bayescore.cli import main; main([{option!r}])"
        line = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}; exit $?"  # bash stays the parent
        home = {**os.environ, "HOME": str(tmp_path)}
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=home)

    shown, installed = in_bash("--show-completion"), in_bash("--install-completion")
    assert (shown.returncode, installed.returncode) == (0, 0)
    assert "complete -o default -F _bayescore_completion bayescore" in shown.stdout
    script = tmp_path / ".bash_completions" / "bayescore.sh"
    assert script.read_text().strip() == shown.stdout.strip()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def test_words_of_the_help_of_train_are_those_of_the_library():
    assert set(train.DATA_SETS) == set(bs.data.PICTURE_SETS)
    assert set(train.METHODS) == set(bs.finetune.METHODS)


@pytest.mark.parametrize("command", ["reproduce", "report", "bench"])
@pytest.mark.parametrize("words", [[], ["--help"], ["fit"]])
def test_a_command_of_the_lab_without_the_lab_says_what_to_install(command, words):
    code = f"""
import sys
sys.modules["bayescore_lab"] = None
from bayescore.cli import main
main({[command, *words]!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: `bayescore {command}` comes with the package bayescore-lab")
    assert done.stderr.endswith("pip install ./lab\n")
    assert done.stderr.count("\n") == 1


def test_help_without_the_lab_still_lists_its_commands():
    code = """
import sys
sys.modules["bayescore_lab"] = None
from bayescore.cli import main
main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    for command in ("reproduce", "report", "bench"):
        (line,) = [line for line in done.stdout.splitlines() if line.strip("│ ").split()[:1] == [command]]
        assert len(line.split()) > 5


@pytest.mark.parametrize("command", ["reproduce", "report", "bench"])
def test_help_says_of_the_lab_what_the_lab_says_of_itself(run, command):
    ours, theirs = (
        " ".join(run(words)[1].replace("│", " ").split()) for words in ("--help", f"{command} --help")
    )
    line = cli._LAB[command][0]
    assert line in ours
    assert line in theirs


def test_cite_gives_the_paper_and_this_version(run):
    code, out, _ = run("cite")
    assert code == 0
    assert "2602.05873" in out
    assert "@software{bayescore" in out
    assert bs.__version__ in out
    assert out.count("{") == out.count("}")


def test_version_is_that_of_the_package(run):
    assert run("--version") == (0, f"bayescore {bs.__version__}\n", "")


def test_python_runs_the_package_as_the_command():
    done = subprocess.run([sys.executable, "-m", "bayescore", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"bayescore {bs.__version__}\n", "")


def test_help_names_every_command(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in (
        "fit",
        "calibrate",
        "train",
        "forecast",
        "predict",
        "list",
        "cite",
        "bench",
        "reproduce",
        "report",
    ):
        assert command in out


def test_commands_of_other_packages_are_reached(run):
    assert run("reproduce list")[0] == 0
    assert "--repeats" in run("bench fit --help")[1]
    code, _, err = run("reproduce nothing-like-it")
    assert code == 2
    assert "there is no experiment called 'nothing-like-it'" in err
