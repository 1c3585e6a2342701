"""Figures: what they show, and that they show something."""

import io

import gymnasium
import jax
import numpy as np
import pytest
from matplotlib import image

from kqljax import KQL
from kqljax.agent import episodes
from kqljax.report import gif, maps, style, summarise
from kqljax.report.curves import draw_curves


@pytest.fixture(scope="module")
def car():
    return KQL("MountainCar-v0", seed=3).learn(60)


@pytest.fixture(scope="module")
def paper_car():
    return KQL("MountainCar-v0", recipe="paper", seed=3).learn(60)


def is_drawn(figure):
    pixels = image.imread(io.BytesIO(style.png(figure)))[..., :3]
    return np.mean(pixels.min(axis=-1) < 0.9) > 0.002


@pytest.mark.parametrize(
    "name, field, titles",
    [
        ("car", "mean", ["value: mean of the ensemble", "spread: standard deviation over it"]),
        ("paper_car", "optimistic", ["value: max Q̃", "spread: width of the best action"]),
    ],
)
def test_maps_show_the_agent_s_values_and_policy(request, name, field, titles):
    agent = request.getfixturevalue(name)
    (episode,) = episodes.run(agent, [gymnasium.make("MountainCar-v0")], 1, seed=5, max_steps=None)
    figure = maps.draw_maps(agent, episode=episode, points=9)
    value, spread, policy, *_ = figure.axes
    sides = np.linspace(-1.2, 0.6, 9), np.linspace(-0.07, 0.07, 9)
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    beliefs = agent.beliefs(grid)
    values = getattr(beliefs, field)

    def shown(panel):
        return np.ravel(panel.collections[0].get_array())

    best = values.argmax(axis=1)
    np.testing.assert_allclose(shown(value), values.max(axis=1))
    np.testing.assert_allclose(shown(spread), beliefs.spread[np.arange(81), best], rtol=1e-5)
    np.testing.assert_array_equal(shown(policy), agent.predict(grid)[0])
    drawn = [panel.get_title(loc="left") for panel in (value, spread, policy)]
    assert drawn == [*titles, "policy"]
    for panel in (value, spread, policy):
        np.testing.assert_allclose(panel.lines[0].get_xydata(), episode.obs)
        np.testing.assert_allclose(panel.collections[1].get_offsets(), agent.history["obs"])
        assert panel.get_xlabel() == "position"
    assert value.get_ylabel() == "velocity"
    assert is_drawn(figure)


def test_maps_over_chosen_axes(recwarn):
    pole = KQL("CartPole-v1", seed=0).learn(20)
    with jax.enable_x64(False):
        figure = maps.draw_maps(pole, axes=(2, 0), points=5, columns=1, at=[0.0, 0.5, 0.0, -0.5])
        style.png(figure)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("angle", "position")
    note = figure.legends[0].get_title().get_text()
    assert note == "20 steps of learning; velocity = 0.5, angular velocity = -0.5"
    assert not [str(each.message) for each in recwarn if "float64" in str(each.message)]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"axes": (0, 0)}, "two different indices below 2"),
        ({"axes": (0, 2)}, "two different indices below 2"),
        ({"at": [0.0]}, "at must have one number for each of the 2"),
    ],
)
def test_maps_that_cannot_be_drawn(car, options, words):
    with pytest.raises(ValueError, match=words):
        maps.draw_maps(car, **options)
    with pytest.raises(ValueError, match="call learn first"):
        maps.draw_maps(KQL("MountainCar-v0"))


def test_curves_are_seeds_and_their_iqm():
    steps = [10, 20, 30]
    returns = np.random.default_rng(0).normal(size=(5, 3))
    curves = {
        "A": {"one": (steps, returns), "other": (steps, returns + 3)},
        "B": {"one": (steps, returns)},
    }
    figure = draw_curves(curves, reference={"B": 1.5}, note="five seeds")
    first, second = figure.axes
    assert len(first.lines) == 12 and len(second.lines) == 7
    for panel, place in ((first, 5), (second, 5)):
        np.testing.assert_allclose([line.get_ydata() for line in panel.lines[:5]], returns)
        iqm = [summarise(column).iqm for column in returns.T]
        np.testing.assert_allclose(panel.lines[place].get_ydata(), iqm)
    assert list(second.lines[6].get_ydata()) == [1.5, 1.5]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["one: IQM, 95% interval", "other: IQM, 95% interval", "one seed"]
    assert is_drawn(figure)
    with pytest.raises(ValueError, match=r"A, one: returns must be \[seeds, 3\]"):
        draw_curves({"A": {"one": (steps, returns[0])}})


def test_gifs_keep_time_and_size(tmp_path):
    from PIL import Image

    frames = [np.full((20, 40, 3), shade, np.uint8) for shade in (0, 80, 160, 240, 255)]
    gif.save_gif(frames, tmp_path / "a.gif", fps=20, width=60, every=2)
    with Image.open(tmp_path / "a.gif") as film:
        assert film.size == (60, 30) and film.n_frames == 3
        assert film.info["duration"] == 100  # every second frame of 20 a second
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        gif.open_for_pictures(gymnasium.make("MountainCar-v0"))
    with pytest.raises(ValueError, match="which environment"):
        gif.open_for_pictures(None)
