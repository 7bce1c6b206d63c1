"""The words: their code runs as it stands, their tables and trees match the library."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bayescore.cli import main
from bayescore.families import FAMILIES
from bayescore.methods import METHODS
from bayescore.operators import declare_vision_operators

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BESIDE = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "lab" / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    """The fenced code of one language on a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Runs the Python of a page from top to bottom in one namespace, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(page: str) -> dict:
        namespace: dict = {"__name__": page}
        for code in blocks(page, "python"):
            exec(compile(code, page, "exec"), namespace)
        return namespace

    return run


def test_readme_runs_as_it_stands(run_page):
    assert run_page("README.md")["fit"].family.dim == 3


def test_front_page_runs_as_it_stands(run_page):
    assert run_page("docs/index.md")["fit"].family.dim == 3


def test_five_minutes_end_in_what_they_promise(run_page):
    page = run_page("docs/five-minutes.md")
    assert 0.75 < ((page["low"] <= page["y_new"]) & (page["y_new"] <= page["high"])).mean() <= 1
    inside, border, _ = page["prediction"].entropy
    assert border > inside
    assert page["draws"].shape == (1000, 2)
    assert page["scores"]["nll"] < 0.5


def test_page_on_foreign_inputs_recognises_them(run_page):
    page = run_page("docs/out-of-distribution.md")
    assert page["auroc"](page["inside"].entropy, page["outside"].entropy) > 0.88


def test_page_on_sequences_runs_and_learns(run_page):
    page = run_page("docs/sequences.md")
    right = page["fit"].predict(page["waves"].unsqueeze(2)).probs.argmax(1) == page["label"]
    assert right.double().mean() > 0.8
    assert page["tagger"].predict(page["words"][:2]).probs.shape == (2, 2, 12)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_density_tutorial_runs_and_finds_what_it_says(run_page):
    page = run_page("docs/tutorials/density.md")
    diagonal, full, mixture = page["diagonal"], page["full"], page["mixture"]
    assert diagonal.khat.value > 0.7
    assert full.elbo.value > diagonal.elbo.value + 0.5
    wide, narrow = full.family.covariance.diagonal().sqrt(), diagonal.family.sd
    assert (wide[2:] > 2 * narrow[2:]).all()
    assert mixture.khat.value < diagonal.khat.value
    assert page["stopped"].outcome.name == "CONVERGED"
    assert page["stopped"].state.step < 1000


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # about one process, and about views
def test_many_devices_page_runs_on_one_process(run_page):
    page = run_page("docs/distributed.md")
    assert page["probabilities"].shape == (10, 2)
    assert page["again"].param_groups[0]["updates"] == page["opt"].param_groups[0]["updates"] == 4


@pytest.mark.slow
def test_many_devices_page_runs_on_two_processes(tmp_path):
    (tmp_path / "train.py").write_text("\n".join(blocks("docs/distributed.md", "python")))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoints" / "100" / ".metadata").exists()
    assert (tmp_path / "checkpoints" / "posterior.safetensors").exists()


def test_photo_tutorial_goes_from_a_folder_to_a_contact_sheet(run_page, tmp_path):
    pytest.importorskip("PIL")
    page = run_page("docs/tutorials/photos.md")
    assert page["model"].scores["error"] < 0.4  # a guess has 2/3
    assert (tmp_path / "sheet.png").stat().st_size > 20_000
    assert (page["prediction"].classes == 1).double().mean() > 0.7


@pytest.mark.slow
def test_tutorial_on_texts_finds_those_that_say_two_things(run_page):
    for package in ("tokenizers", "transformers"):
        pytest.importorskip(package)
    declare_vision_operators()  # transformers imports torchvision if it is there
    page = run_page("docs/tutorials/texts.md")
    assert page["model"].scores["nll"] < 0.5  # a guess has 0.69
    says = ["but" in page["parts"].test.texts[i] for i in page["order"]]
    assert all(says[:3])
    assert not any(says[-3:])
    clear, both = page["prediction"].entropy
    assert clear < both


def test_page_on_images_runs_as_it_stands(run_page):
    assert run_page("docs/images-and-text.md")["net"].head == "11"


def test_page_on_tables_runs_as_it_stands(run_page, tmp_path):
    pytest.importorskip("sklearn")
    page = run_page("docs/tables.md")
    assert page["quantiles"].shape == (len(page["X_test"]), 3)
    assert 0.7 < page["scores"]["coverage_90"] <= 1
    assert (tmp_path / "calibration.png").stat().st_size > 1000
    assert page["price"].mean.shape == (150, 1)


def test_page_on_uses_runs_and_finds_what_it_says(run_page):
    page = run_page("docs/uses.md")
    assert (len(page["known_y"]), len(page["pool"])) == (40, 176)
    assert page["head"].posterior.names == ["2.weight", "2.bias"]
    assert (page["probs"] - page["fit"].predict(page["x"][:7], 10).probs).abs().max() < 1e-5
    first, later, joined, small = (
        page[name].predict(page["test_x"]).log_prob(page["test_y"]).mean()
        for name in ("fit", "later", "joined", "small")
    )
    assert later > first
    assert joined > first
    assert small > first - 0.2


def test_noisy_tutorial_runs_and_finds_what_it_says(run_page):
    page = run_page("docs/tutorials/noisy.md")
    assert page["reference"].elbo.value > page["default"].elbo.value > page["steady"].elbo.value
    assert page["one"].abs().max() < 4
    assert page["ten"].abs().max() > 10
    for name in ("banana", "gaussian"):
        paper, limited = (min(fit.elbo.value for fit in fits) for fits in page[name])
        assert limited > paper


def test_forecasting_tutorial_runs_and_its_intervals_hold(run_page):
    page = run_page("docs/tutorials/forecasting.md")
    assert "3 missing values of 'price'" in page["forecaster"].notes[0]
    assert page["result"].mse < 0.5
    assert abs(page["result"].coverage[0.8] - 0.8) < 0.15
    assert str(page["tomorrow"].dates[0]) == "2025-02-10T00:00:00"
    assert Path("fan.png").stat().st_size > 10_000


def test_forecasting_page_runs_as_it_stands(run_page):
    assert run_page("docs/forecasting.md")["result"].origins == 24


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_shell_commands_of_the_front_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [line for code in blocks(page, "shell") for line in code.splitlines()]
    ours = [shlex.split(line, comments=True)[1:] for line in commands if line.startswith("bayescore ")]
    assert ours
    for words in ours:
        with pytest.raises(SystemExit) as leaving:
            main(words)
        assert leaving.value.code == 0, capsys.readouterr().err


def test_benchmarks_page_runs_and_names_every_method_and_option(run_page):
    import inspect

    from bayescore_lab.bench.choices import METHODS as STEP_METHODS
    from bayescore_lab.bench.commands import bench_step

    assert run_page("docs/benchmarks.md")["forecast"].total > 0
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert [name for name in STEP_METHODS if f"`{name}`" not in text] == []
    options = set(inspect.signature(bench_step).parameters) - {"latency"} | {"no-latency"}
    assert [name for name in options if f"--{name}" not in text] == []


def test_table_says_which_method_serves_which_family():
    methods = {method.__name__: method for method in METHODS.values()}
    text = (ROOT / "docs" / "choosing.md").read_text()
    text = text[text.index("| family") :]
    header, *rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(("| family", "| `"))
    ]
    assert header[1:] == list(methods)
    assert [row[0] for row in rows] == [family.__name__ for family in FAMILIES.values()]
    for family, *cells in rows:
        said = {method for method, cell in zip(header[1:], cells, strict=True) if cell == "yes"}
        assert said == {name for name, method in methods.items() if family in method.serves}


def test_design_page_names_every_module_of_the_package():
    tree = blocks("docs/design.md", "text")[0]
    named = set(re.findall(r"^  ([\w.]+)/? ", tree, re.M))
    package = ROOT / "src" / "bayescore"
    there = {path.name for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert named == there - {"__init__.py", "__main__.py", "__pycache__"}


def test_design_page_draws_the_layers_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn = [line.split("  ")[0].strip() for line in blocks("docs/design.md", "text")[1].splitlines()]
    assert drawn == next(contract["layers"] for contract in contracts if contract["type"] == "layers")


@pytest.mark.parametrize(("command", "least"), [("fit", 15), ("train", 10), ("forecast", 12)])
def test_command_page_names_every_option(command, least, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) > least
    page = (ROOT / "docs" / "api" / "cli.md").read_text()
    if command == "fit":
        options |= {f"{name}`" for name in (*FAMILIES, *METHODS)}
    assert {option for option in options if f"`{option}" not in page} == set()


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: page.name)
def test_local_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def slugs(page):
    """The anchors of a page's headings, as the site and others make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[ -]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()) for words in headings}


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: page.name)
def test_links_to_headings_lead_to_them(page):
    for link, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        if "bayescore." not in heading:  # the site checks these: they are of its reference
            assert heading in slugs(page.parent / link if link else page), (link, heading)


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: page.name)
def test_lists_and_tables_are_such_on_the_site(page):
    markdown = pytest.importorskip("markdown")
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    shown = re.sub(r"<code>.*?</code>", "", markdown.markdown(text, extensions=["tables"]), flags=re.S)
    assert re.findall(r"^ *(?:[-*] |\d+\. |\|).*", shown, re.M) == []


def test_every_page_with_python_is_run_by_a_test():
    beside = {"networks.md", "networks-reference.md", "stan.md", "evidence.md"}  # by tests of their subjects
    here = set(re.findall(r'run_page\("([^"]+)"\)', Path(__file__).read_text()))
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        if blocks(name, "python"):
            assert name in here or page.name in beside, name


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size < 200_000, picture.name


def test_a_star_of_a_docstring_is_shown_and_bold_and_code_stay():
    pytest.importorskip("griffe")
    shown = runpy.run_path(str(ROOT / "docs" / "verbatim.py"))["fenced"]
    assert shown("(*batch, S) from (*batch, D), **bold**, `a * b`") == (
        r"(\*batch, S) from (\*batch, D), **bold**, `a * b`"
    )
    assert shown("Sums:\n\n    a * b") == "Sums:\n\n```text\n    a * b\n```"
