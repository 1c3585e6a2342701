"""Every public name is documented, the pages' code runs as it stands, and their tables are the
committed results.
"""

import inspect
import json
import re
import tomllib
from pathlib import Path

import agent
import compiled
import headline
import kovi
import numerics
import pytest
import recipe
import scaling
import table1

import kqljax
from kqljax import rounds

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", kqljax.__all__)
def test_public_names_are_documented(name):
    thing = getattr(kqljax, name)
    assert thing.__doc__, f"{name} has no docstring"
    assert thing.__doc__.strip()
    if inspect.isclass(thing) and issubclass(thing, tuple):
        for field in thing._fields:
            assert re.search(rf"\b{field}\b", thing.__doc__), f"{name}.{field} is not documented"


def test_public_names_are_there_and_sorted():
    by_kind = sorted(kqljax.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert kqljax.__all__ == by_kind
    for name in kqljax.__all__:
        assert hasattr(kqljax, name)


def run_page(name, directory, monkeypatch):
    """The names that a page's blocks of Python leave behind, run one after another as a reader
    would paste them.
    """
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    monkeypatch.chdir(directory)  # some of them write files
    names: dict = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    return names, len(blocks)


def test_readme_code_runs(tmp_path, monkeypatch):
    names, count = run_page("README.md", tmp_path, monkeypatch)
    assert count == 1
    assert names["agent"].num_timesteps == 1000
    assert names["action"] in (0, 1, 2)


def test_tutorial_code_runs(tmp_path, monkeypatch, capsys):
    names, count = run_page("docs/tutorial.md", tmp_path, monkeypatch)
    assert count == 7
    printed = float(re.match(r"mean return (-[\d.]+)", capsys.readouterr().out)[1])
    said = float(
        re.search(r"a mean return of about (-\d+)", (ROOT / "docs" / "tutorial.md").read_text())[1]
    )
    assert abs(printed - said) <= 1, "the tutorial says what its code prints"
    assert names["found"].returns.shape == names["returns"].shape == (20,)


def test_howto_code_runs(tmp_path, monkeypatch):
    names, count = run_page("docs/howto.md", tmp_path, monkeypatch)
    assert count == 15
    assert bool(names["info"].is_stored)
    assert names["widths"].shape == (3,)
    assert names["returns"].shape == (4, 50)
    assert names["run"].state.q_hat.dtype == "float32"


@pytest.mark.parametrize(
    "page, count",
    [("faq", 5), ("features", 1), ("recipe", 1), ("scaling", 1), ("theory", 6)],
)
def test_code_of_the_page_runs(page, count, tmp_path, monkeypatch):
    assert run_page(f"docs/{page}.md", tmp_path, monkeypatch)[1] == count


def test_regret_table_is_the_committed_result():
    page = (ROOT / "docs" / "theory.md").read_text()
    committed = json.loads((ROOT / "benchmarks" / "results" / "regret.json").read_text())
    names = {
        "kql": "KQL, β of Theorem 1",
        "kql-paper": "KQL, β of section 6",
        "kql-greedy": "KQL, β = 0",
    }
    names["q-learning"] = "ε-greedy Q-learning"
    for learner, words in names.items():
        regrets = [
            f"{row['regret_iqm']:.1f}" for row in committed["rows"] if row["learner"] == learner
        ]
        exponent = f"{committed['exponents'][learner]:.2f}".replace("-", "−")  # noqa: RUF001
        assert f"| {words} | {' | '.join(regrets)} | {exponent} |" in page


def test_headline_is_the_committed_result():
    committed = json.loads((ROOT / "benchmarks" / "results" / "headline.json").read_text())
    assert headline.table(committed) in (ROOT / "docs" / "results.md").read_text()
    assert all(
        row["iqm"] >= committed["settings"]["floors"][task]
        for task, row in committed["rounds"].items()
    )
    assert committed["settings"]["recipe"] == repr(rounds.DEFAULT)


def test_costs_of_the_agent_are_the_committed_result():
    committed = json.loads((ROOT / "benchmarks" / "results" / "agent.json").read_text())
    assert agent.table(committed) in (ROOT / "docs" / "results.md").read_text()
    assert committed["ratios"]["cold_to_numpy"] <= 4
    assert committed["ratios"]["warm_to_numpy"] <= 2
    assert committed["ratios"]["late_to_early_step"] <= 1.2
    assert committed["predict"]["median_seconds"] <= 1e-3
    assert committed["long"]["max_rss_gib"] <= 2


@pytest.fixture(scope="module")
def committed_recipe():
    return json.loads((ROOT / "benchmarks" / "results" / "recipe.json").read_text())


@pytest.mark.parametrize("part", recipe.PARTS)
def test_tables_of_the_recipe_are_the_committed_results(part, committed_recipe):
    assert recipe.table(committed_recipe, part) in (ROOT / "docs" / "recipe.md").read_text()


def test_results_of_the_recipe_are_whole_and_of_the_recipe_of_now(committed_recipe):
    assert committed_recipe["recipes"] == recipe.recipe_texts(recipe.FULL)
    assert not any(entry["unsound"] for entry in committed_recipe["summary"])
    found = {(recipe.place(record), record["seed"]) for record in committed_recipe["results"]}
    assert found == {
        (cell, seed)
        for cells, seeds in recipe.todo(recipe.FULL, recipe.PARTS)
        for cell in cells
        for seed in seeds
    }


def test_readme_has_the_committed_table_of_the_recipe(committed_recipe):
    assert recipe.table(committed_recipe, "table") in (ROOT / "README.md").read_text()


def test_the_table_of_the_recipe_reaches_its_floor(committed_recipe):
    entries = {
        entry["task"]: entry for entry in committed_recipe["summary"] if entry["part"] == "table"
    }
    assert set(entries) == set(headline.FLOORS)
    for task, entry in entries.items():
        assert entry["seeds"] == 100
        assert entry["iqm"] >= headline.FLOORS[task]
    assert sum(entry["failed"] for entry in entries.values()) <= 8
    assert entries["CartPole-v0"]["worst_decile"] >= 160
    assert entries["MountainCar-v0"]["found_an_end"] >= 99


def test_table_of_the_exact_engine_is_the_committed_result():
    page = (ROOT / "docs" / "engine.md").read_text()
    for row in json.loads((ROOT / "benchmarks" / "results" / "step_time.json").read_text())["rows"]:
        seconds = f"{row['engine_seconds']:.3f} | {row['product_seconds']:.3f} | {row['numpy_seconds']:.2f} | {row['ratio']:.1f}"
        others = f"{row['compile_seconds']:.1f} | {row['bandwidth_gb_s']:.0f} | {row['share_of_bandwidth']:.0%}"
        assert f"| {row['horizon']} | {seconds} | {others} |" in page


def test_scaling_table_is_the_committed_result():
    page = (ROOT / "docs" / "features.md").read_text()
    rows = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())["rows"]
    rows = [row for row in rows if row["engine"] in scaling.KINDS]
    for row in rows:
        if row["horizon"] >= 1000 and row["horizon"] != 2000:
            times = f"{row['times_exact']:.1f}" if row["times_exact"] else ""
            seconds = f"{row['seconds']:.3f} | {row['microseconds_a_step']:.0f} | {times} | {row['compile_seconds']:.1f}"
            assert f"| {row['task']} | {row['engine']} | {row['horizon']} | {seconds} |" in page
    for task in scaling.TASKS[:2]:
        slopes = scaling.exponents([row for row in rows if row["task"] == task])
        words = ", ".join(f"{engine} {slope:.2f}" for engine, slope in slopes.items())
        assert f"- Growth exponents of a step, {task}: {words}." in page


@pytest.mark.parametrize("engine", numerics.COLUMNS)
def test_tables_of_float32_are_the_committed_results(engine):
    committed = json.loads((ROOT / "benchmarks" / "results" / "numerics.json").read_text())
    assert numerics.table(committed, engine) in (ROOT / "docs" / "numerics.md").read_text()


def test_table_of_kovi_is_the_committed_result():
    committed = json.loads((ROOT / "benchmarks" / "results" / "kovi.json").read_text())
    assert kovi.table(committed) in (ROOT / "docs" / "conventions.md").read_text()


def test_table_of_compiled_programs_is_the_committed_result():
    page = (ROOT / "docs" / "accelerators.md").read_text()
    shown = re.search(r"<!-- compiled: .*?-->\n(.*?)<!-- compiled: end -->", page, re.DOTALL)
    path = ROOT / "benchmarks" / "results" / "compiled.json"
    wanted = compiled.table(json.loads(path.read_text())["rows"]) if path.exists() else ""
    assert shown[1].strip() == wanted


def test_table_of_results_is_the_committed_result():
    results = ROOT / "benchmarks" / "results"
    times = [results / "times.json", results / "times_sb3.json"]
    document = table1.joined(
        json.loads((results / "table1.json").read_text()), [results / "sb3_dqn.json"], times
    )
    assert (
        table1.markdown_table(document, table1.TRAINING)
        in (ROOT / "docs" / "results.md").read_text()
    )


def test_links_in_documents_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


# The map of docs/concepts.md ---------------------------------------------------------------------


def test_the_map_is_the_contract_of_imports():
    """import-linter holds the code to the contract; the page shows the same rows."""
    text = (ROOT / "docs" / "concepts.md").read_text().split("## The map")[1].split("##")[0]
    rows = [
        re.findall(r"`(\w+)`", line.split("|")[1])
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    assert rows == [re.findall(r"\w+", layer) for layer in layers]
    modules = {
        path.stem
        for path in (ROOT / "kqljax").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {name for row in rows for name in row} == modules - {"__init__", "__main__"}


def test_the_walk_names_files_and_functions_that_are_there():
    text = (
        (ROOT / "docs" / "concepts.md").read_text().split("## The walk")[1].split("## The map")[0]
    )
    stops = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]*) \|", text, re.MULTILINE)
    assert len({file for file, _ in stops}) <= 8
    for file, functions in stops:
        source = (ROOT / "kqljax" / file).read_text()
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", functions):
            assert f"def {name}(" in source, f"{file} has no {name}"
