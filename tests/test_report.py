"""`kqljax report`: one page with everything inside, looked at in a real browser."""

import base64
import dataclasses
import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import gymnasium
import pytest
from chromium import open_browser

from kqljax import KQL, cli, experiment, rounds
from kqljax.report.agent_page import make_agent_page
from kqljax.report.table_page import reproduce_command

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "table1.json"
TASKS, ALGORITHMS = ["MountainCar-v0", "CartPole-v0"], ["kql-rbf", "random"]
PARTS = ["table", "figures", "seeds", "settings", "reproduce"]


@pytest.fixture(scope="module")
def document():
    """A part of the committed results, small enough to be drawn quickly."""
    whole = json.loads(RESULTS.read_text())
    keep = {"tasks": TASKS, "algorithms": ALGORITHMS}
    part = whole | {"settings": whole["settings"] | keep}
    for name in ("results", "curves"):
        part[name] = [each for each in whole[name] if each["task"] in TASKS and each["algorithm"] in ALGORITHMS]
    part["summary"] = experiment.summarise_document(part)
    return part


@pytest.fixture(scope="module")
def path(document, tmp_path_factory):
    directory = tmp_path_factory.mktemp("results")
    (directory / "table1.json").write_text(json.dumps(document))
    assert cli.main(["report", str(directory)]) == 0
    return directory / "report.html"


@pytest.fixture(scope="module")
def text(path):
    return path.read_text()


def test_the_table_has_the_figures(text, document):
    for task in TASKS:
        for algorithm in ALGORITHMS:
            cell = document["summary"][task][algorithm]
            assert f"<b>{cell['iqm']:.1f}</b> [{cell['low']:.1f}, {cell['high']:.1f}]" in text
    assert "paper -132.55 ± 17.02" in text


def test_the_data_are_inside(text, document):
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(inside) == document
    saved = re.search(r'href="data:application/json;base64,([^"]*)"', text)[1]
    assert json.loads(base64.b64decode(saved)) == document


def test_nothing_is_fetched(text):
    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            for name, value in attributes:
                if name in ("src", "href", "srcset"):
                    assert value.startswith(("data:", "#")), f"{tag} {name}={value[:60]}"

    Links().feed(text)
    assert not re.search(r"url\(|@import|<script(?! type=.application/json)", text)


def test_the_command_makes_the_same_settings(document):
    words = reproduce_command(document["settings"]).replace("\\\n", " ").split()
    options = cli.make_parser().parse_args(words[1:])
    for name in ("seeds", "first_seed", "steps", "episodes", "curve_points", "curve_seeds", "algorithms", "tasks"):
        assert getattr(options, name) == document["settings"][name], name


def test_words_cannot_become_markup(document, tmp_path):
    changed = json.loads(json.dumps(document).replace("CartPole-v0", "<img src=x onerror=alert(1)></script>"))
    (tmp_path / "table1.json").write_text(json.dumps(changed))
    assert cli.main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in text.split('<script type="application/json"')[0]
    assert text.count("</script>") == 1


def test_an_interrupted_run_has_a_report_that_says_so(document, tmp_path, capsys):
    lost = document["results"][:-3]
    (tmp_path / "table1.json").write_text(json.dumps(document | {"results": lost, "summary": {}}))
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "a.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(tmp_path / "a.html")
    task, algorithm = (document["results"][-1][name] for name in ("task", "algorithm"))
    assert f"{algorithm} on {task}: 27 of 30 seeds are done" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: path / "nothing", "is not there. Give a directory of kqljax table1"),
        (lambda path: path, "has no table1.json: make one with kqljax table1"),
    ],
)
def test_nothing_to_report_on(tmp_path, capsys, make, words):
    assert cli.main(["report", str(make(tmp_path))]) == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_no_agent(tmp_path, capsys):
    (tmp_path / "a.npz").write_text("no")
    assert cli.main(["report", str(tmp_path / "a.npz")]) == 2
    assert "not a file that kqljax saved" in capsys.readouterr().err


@pytest.fixture(scope="module")
def agent_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("agent") / "car.npz"
    KQL("MountainCar-v0", seed=3).learn(60).save(path)
    assert cli.main(["report", str(path)]) == 0
    return path.with_suffix(".html")


def test_the_page_of_an_agent(agent_path):
    text = agent_path.read_text()
    for words in (
        "KQL in MountainCar-v0",
        "60 steps of learning, 0 episodes ended. Then, without learning: mean return -",
        'id="maps"',
        "Value, spread and policy",
        "<td>recipe</td><td>kqljax.rounds.DEFAULT</td>",
        "<td>etas</td><td>0.005, 0.015, 0.05, 0.15, 0.5</td>",
        "<td>transitions</td><td>60, 60 of them kept</td>",
    ):
        assert words in text
    if importlib.util.find_spec("pygame"):
        assert 'id="episode"' in text and "data:image/gif" in text


def test_what_the_page_says_of_other_numbers(tmp_path):
    other = dataclasses.replace(rounds.DEFAULT, bonus=0.5, gamma=0.95)
    page = make_agent_page(KQL("MountainCar-v0", recipe=other, seed=0).learn(60), num_episodes=1)
    assert "<td>kqljax.rounds.DEFAULT, but gamma = 0.95, bonus = 0.5</td>" in page
    KQL("MountainCar-v0", recipe="paper", seed=0).learn(60).save(tmp_path / "car.npz")
    page = make_agent_page(KQL.load(tmp_path / "car.npz"), num_episodes=1)
    for words in ("Algorithm 1", "<td>kernel</td><td>RBF(eta=0.02)</td>", "<td>lam</td><td>0.00166667</td>", "<td>none</td>"):
        assert words in page


def test_pages_without_maps_or_films():
    class Corridor(gymnasium.Env):
        """Two rooms with names; one of three doors leads on, and that is the end."""

        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {}

        def step(self, action):
            return int(action == 2), float(action == 2), bool(action == 2), False, {}

    page = make_agent_page(KQL(Corridor(), seed=0).learn(60), num_episodes=2)
    assert "KQL in Corridor" in page and 'id="learning"' in page
    assert 'id="maps"' not in page and 'id="episode"' not in page


def test_axes_are_of_an_agent(path, capsys):
    assert cli.main(["report", str(path.parent), "--axes", "0", "1"]) == 2
    assert "--axes are of the maps of an agent" in capsys.readouterr().err


SHOWN = """[...document.querySelectorAll('section')].map(part => {
  const box = part.getBoundingClientRect();
  return [part.id, box.width > 100 && box.height > 30 && getComputedStyle(part).visibility === 'visible'];
})"""
DRAWN = "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width])"
BRIGHTNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


def test_in_a_browser(path, agent_path):
    with open_browser() as page:
        for file, width, dark in ((path, 1200, False), (path, 1200, True), (path, 390, False), (agent_path, 390, True)):
            page.requests.clear()
            page.open(file, width, dark)
            parts = dict(page.ask(SHOWN))
            assert all(parts.values()), parts
            if file is path:
                assert list(parts) == PARTS
            images = page.ask(DRAWN)
            assert len(images) >= 2
            for natural, shown in images:
                assert natural > 100 and 100 < shown <= width
            # Only the table scrolls sideways, never the page.
            assert page.ask("document.documentElement.scrollWidth") <= width
            background = max(page.ask(BRIGHTNESS))
            assert background < 60 if dark else background > 220
            assert not page.messages, page.messages
            assert [url for url in page.requests if not url.startswith("data:")] == [file.resolve().as_uri()]
        # On a narrow screen other pictures are shown, in one column.
        page.open(path, 1200)
        wide = page.ask(DRAWN)[0][0]
        page.open(path, 390)
        assert page.ask(DRAWN)[0][0] < wide
