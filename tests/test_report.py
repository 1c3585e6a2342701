"""The page of an agent: everything inside, true, and looked at in a real browser."""

import base64
import dataclasses
import importlib.util
import json
import re
from html.parser import HTMLParser

import gymnasium
import numpy as np
import pytest
from chromium import open_browser

from kqljax import KQL, cli, rounds
from kqljax.report.agent_page import make_agent_page


@pytest.fixture(scope="module")
def agent():
    return KQL("MountainCar-v0", seed=3).learn(220)


@pytest.fixture(scope="module")
def text(agent):
    return make_agent_page(agent, num_episodes=3)


def test_the_page_says_what_the_agent_did(text, agent):
    found = agent.evaluate(3)
    for words in (
        "KQL in MountainCar-v0",
        f"220 steps of learning, 1 episodes ended. Then, without learning: {found}.",
        'id="maps"',
        "Value, spread and policy",
        "<td>recipe</td><td>kqljax.rounds.DEFAULT</td>",
        "<td>etas</td><td>0.005, 0.015, 0.05, 0.15, 0.5</td>",
        "<td>transitions</td><td>220, 220 of them kept</td>",
        "<td>rewards</td><td>-1 to 0</td>",
    ):
        assert words in text
    if importlib.util.find_spec("pygame"):
        assert 'id="episode"' in text and "data:image/gif" in text


def test_the_data_are_inside(text, agent):
    data = {"env": "MountainCar-v0", "steps": 220, "seed": 3}
    data["training_episodes"] = agent.episode_returns
    data["evaluation"] = agent.evaluate(3).returns.tolist()
    script = r'<script type="application/json" id="data">(.*?)</script>'
    assert json.loads(re.search(script, text, re.DOTALL)[1]) == data
    saved = re.search(r'href="data:application/json;base64,([^"]*)"', text)[1]
    assert json.loads(base64.b64decode(saved)) == data


def test_nothing_is_fetched(text):
    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            for name, value in attributes:
                if name in ("src", "href", "srcset"):
                    assert value.startswith(("data:", "#")), f"{tag} {name}={value[:60]}"

    Links().feed(text)
    assert not re.search(r"url\(|@import|<script(?! type=.application/json)", text)


def test_the_page_of_other_numbers():
    other = dataclasses.replace(rounds.DEFAULT, bonus=0.5, gamma=0.95)
    page = make_agent_page(KQL("MountainCar-v0", recipe=other, seed=0).learn(40), num_episodes=1)
    assert "<td>kqljax.rounds.DEFAULT, but gamma = 0.95, bonus = 0.5</td>" in page
    assert "No episode has ended while learning." in page


def test_the_command_makes_the_page_of_a_file(tmp_path, capsys):
    path = tmp_path / "car.npz"
    KQL("MountainCar-v0", recipe="paper", seed=0).learn(40).save(path)
    assert cli.main(["report", str(path), "--axes", "1", "0"]) == 0
    page = path.with_suffix(".html").read_text()
    for words in ("Algorithm 1", "<td>RBF(eta=0.02)</td>", "<td>lam</td><td>0.0025</td>"):
        assert words in page
    path.write_text("no")
    assert cli.main(["report", str(path)]) == 2
    assert "not a file that kqljax saved" in capsys.readouterr().err


class Corridor(gymnasium.Env):
    """Two rooms with names; one of three doors leads on, and that is the end."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action == 2), float(action == 2), bool(action == 2), False, {}


class Tagged(Corridor):
    """A name that would be markup."""


Tagged.__name__ = "<img src=x></script>"


def test_pages_without_maps_or_films_and_without_markup_in_names():
    page = make_agent_page(KQL(Tagged(), seed=0).learn(60), num_episodes=2)
    assert "KQL in &lt;img src=x&gt;&lt;/script&gt;" in page
    assert 'id="learning"' in page and 'id="maps"' not in page and 'id="episode"' not in page
    assert "<img src=x" not in page.split('<script type="application/json"')[0]
    assert page.count("</script>") == 1


SHOWN = """[...document.querySelectorAll('section')].map(part => {
  const box = part.getBoundingClientRect();
  const style = getComputedStyle(part);
  return [part.id, box.width > 100 && box.height > 30 && style.visibility === 'visible'];
})"""
DRAWN = "[...document.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width])"
BRIGHTNESS = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


def test_in_a_browser(text, tmp_path):
    file, wide = tmp_path / "page.html", {}
    file.write_text(text)
    with open_browser() as page:
        for width, dark in ((1200, False), (1200, True), (390, True)):
            page.requests.clear()
            page.open(file, width, dark)
            parts = dict(page.ask(SHOWN))
            assert all(parts.values()) and list(parts)[:2] == ["learning", "maps"], parts
            images = page.ask(DRAWN)
            assert len(images) >= 2
            for natural, shown in images:
                assert natural > 100 and 100 < shown <= width
            assert page.ask("document.documentElement.scrollWidth") <= width
            background = np.max(page.ask(BRIGHTNESS))
            assert background < 60 if dark else background > 220
            assert not page.messages, page.messages
            fetched = [url for url in page.requests if not url.startswith("data:")]
            assert fetched == [file.resolve().as_uri()]
            wide[width] = images[1][0]
    assert wide[390] < wide[1200]  # on a narrow screen the maps come in one column
