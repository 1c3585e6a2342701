"""Figures of an agent: what they show, and that they show something."""

import io

import gymnasium
import jax
import numpy as np
import pytest
from matplotlib import image

import kqljax
from kqljax import KQL, theory
from kqljax.agent import episodes
from kqljax.report import gif, maps, spectra, style

STEPS = 60


@pytest.fixture(scope="module")
def car():
    return KQL("MountainCar-v0", seed=3).learn(STEPS)


@pytest.fixture(scope="module")
def paper_car():
    return KQL("MountainCar-v0", recipe="paper", seed=3).learn(STEPS)


@pytest.fixture(scope="module")
def run():
    """Config and state of a run of Algorithm 1."""
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(horizon=STEPS)
    return cfg, jax.jit(lambda key: kqljax.train(task, cfg, key, stages=1).state)(jax.random.key(0))


def pixels(figure):
    return image.imread(io.BytesIO(style.png(figure)))[..., :3]


def is_drawn(figure):
    return np.mean(pixels(figure).min(axis=-1) < 0.9) > 0.002


@pytest.mark.parametrize(
    "name, field, titles",
    [
        ("car", "mean", ["value: mean of the ensemble", "spread: how far its members differ", "policy"]),
        ("paper_car", "optimistic", ["value: max Q̃", "spread: width of the best action", "policy"]),
    ],
)
def test_maps_show_what_the_agent_believes(request, name, field, titles):
    agent = request.getfixturevalue(name)
    (episode,) = episodes.run(agent, [gymnasium.make("MountainCar-v0")], 1, seed=5, max_steps=None)
    figure = maps.draw_maps(agent, episode=episode, points=9)
    value, spread, policy, *_ = figure.axes
    grid = np.stack(np.meshgrid(np.linspace(-1.2, 0.6, 9), np.linspace(-0.07, 0.07, 9)), axis=-1).reshape(-1, 2)
    believed = agent.beliefs(grid)
    values = getattr(believed, field)
    np.testing.assert_array_equal(values, agent.q_values(grid))

    def shown(panel):
        return np.ravel(panel.collections[0].get_array())

    np.testing.assert_allclose(shown(value), values.max(axis=1))
    np.testing.assert_allclose(shown(spread), believed.spread[np.arange(81), values.argmax(axis=1)], rtol=1e-5)
    np.testing.assert_array_equal(shown(policy), agent.choose(grid))
    assert [panel.get_title(loc="left") for panel in (value, spread, policy)] == titles
    for panel in (value, spread, policy):
        path = panel.lines[0].get_xydata()
        np.testing.assert_allclose(path, episode.obs)
        np.testing.assert_allclose(panel.collections[1].get_offsets(), agent.history["obs"])
        assert panel.get_xlabel() == "position"
    assert value.get_ylabel() == "velocity"
    assert is_drawn(figure)


def test_maps_over_chosen_axes():
    pole = KQL("CartPole-v1", seed=0).learn(20)
    figure = maps.draw_maps(pole, axes=(2, 0), points=5, columns=1, at=[0.0, 0.5, 0.0, -0.5])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("angle", "position")
    assert "velocity = 0.5, angular velocity = -0.5" in figure.legends[0].get_title().get_text()


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


def test_an_agent_that_knows_nothing_has_no_map():
    with pytest.raises(ValueError, match="call learn first"):
        maps.draw_maps(KQL("MountainCar-v0"))


def test_dimensions_over_time(run):
    figure = spectra.draw_dimensions(*run)
    for panel, values in zip(figure.axes, theory.dimensions_over_time(*run), strict=True):
        np.testing.assert_allclose(panel.lines[0].get_ydata(), values)
    assert is_drawn(figure)


def test_spectrum_is_that_of_the_gram_matrix(run):
    values = spectra.gram_spectrum(*run)
    assert values.shape == (STEPS,) and np.all(np.diff(values) <= 0)
    assert values.sum() == pytest.approx(STEPS)  # k(x, x) = 1
    effective = theory.state_dimensions(*run).effective
    assert np.sum(values / (values + run[0].lam)) == pytest.approx(float(effective), rel=1e-6)
    assert is_drawn(spectra.draw_spectrum(*run))


def test_figures_of_float64_states_with_jax_as_it_comes(car, run, recwarn):
    with jax.enable_x64(False):
        style.png(spectra.draw_dimensions(*run))
        style.png(spectra.draw_spectrum(*run))
        style.png(maps.draw_maps(car, points=4))
    assert not [str(each.message) for each in recwarn if "float64" in str(each.message)]


def test_features_have_no_gram_matrix():
    features = kqljax.features.taylor(kqljax.RBF(eta=0.02), 2, 3, 1e-3)
    cfg = kqljax.make_task("MountainCar-v0").config(horizon=5, features=features)
    with pytest.raises(ValueError, match="Train with features=None"):
        spectra.gram_spectrum(cfg, kqljax.kql_init(cfg, 2))


def test_gifs_keep_time_and_size(tmp_path):
    from PIL import Image

    frames = [np.full((20, 40, 3), shade, np.uint8) for shade in (0, 80, 160, 240, 255)]
    gif.save_gif(frames, tmp_path / "a.gif", fps=20, width=60, every=2)
    with Image.open(tmp_path / "a.gif") as film:
        assert film.size == (60, 30) and film.n_frames == 3
        assert film.info["duration"] == 100  # every second frame of 20 a second


def test_an_environment_that_does_not_draw(car):
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        gif.open_for_pictures(gymnasium.make("MountainCar-v0"))
    with pytest.raises(ValueError, match="which environment"):
        gif.open_for_pictures(None)
