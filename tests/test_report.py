"""`kqljax report`: one page with everything inside, looked at in a real browser."""

import dataclasses
import importlib.util
import re
from html.parser import HTMLParser

import gymnasium
import pytest
from chromium import open_browser

from kqljax import KQL, cli, rounds
from kqljax.report.agent_page import make_agent_page

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


def test_nothing_is_fetched(agent_path):
    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            for name, value in attributes:
                if name in ("src", "href", "srcset"):
                    assert value.startswith(("data:", "#")), f"{tag} {name}={value[:60]}"

    Links().feed(agent_path.read_text())
    assert not re.search(r"url\(|@import|<script(?! type=.application/json)", agent_path.read_text())


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


SHOWN = """[...document.querySelectorAll('section')].map(part => {
  const box = part.getBoundingClientRect();
  return [part.id, box.width > 100 && box.height > 30 && getComputedStyle(part).visibility === 'visible'];
})"""
DRAWN = "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width])"
BRIGHTNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


def test_in_a_browser(agent_path):
    with open_browser() as page:
        shown = {}
        for width, dark in ((1200, False), (1200, True), (390, True)):
            page.requests.clear()
            page.open(agent_path, width, dark)
            parts = dict(page.ask(SHOWN))
            assert parts and all(parts.values()), parts
            images = page.ask(DRAWN)
            assert len(images) >= 2
            for natural, drawn in images:
                assert natural > 100 and 100 < drawn <= width
            # Only a table scrolls sideways, never the page.
            assert page.ask("document.documentElement.scrollWidth") <= width
            background = max(page.ask(BRIGHTNESS))
            assert background < 60 if dark else background > 220
            assert not page.messages, page.messages
            assert [url for url in page.requests if not url.startswith("data:")] == [agent_path.resolve().as_uri()]
            shown[width] = images[0][0]
        # On a narrow screen other pictures are shown, in one column.
        assert shown[390] < shown[1200]
