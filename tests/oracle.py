"""Algorithm 1 of the paper in its closed form (Fact 1), as a slow NumPy loop in float64.

Written from the paper, not from the library: nothing here imports kqljax, nothing is incremental,
and every step solves its linear systems afresh. The comments name the paper's symbols.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular


def one_hot(action, num_actions):
    return np.eye(num_actions)[np.asarray(action)]


def joined(obs, action, num_actions):
    """[s, a]: the state vectors joined with the one-hot actions, a row a pair."""
    return np.concatenate([np.atleast_2d(obs), np.atleast_2d(one_hot(action, num_actions))], axis=1)


def rbf(eta):
    def kernel(x, y, length):
        return np.exp(-eta * ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1))

    return kernel


def linear():
    def kernel(x, y, length):
        return x @ y.T / (2 * (length + 1)) + 0.5

    return kernel


def matern32(length_scale):
    def kernel(x, y, length):
        r = np.sqrt(3) * np.sqrt(((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)) / length_scale
        return (1 + r) * np.exp(-r)

    return kernel


class Oracle:
    """Kernelized Q-learning with terminal value and successor rows."""

    def __init__(self, kernel, num_actions, gamma, lam, beta, terminal_value=0.0):
        self.kernel, self.num_actions = kernel, num_actions
        self.gamma, self.lam, self.beta = gamma, lam, beta
        self.terminal_value = terminal_value
        self.obs, self.actions, self.rewards, self.next_obs, self.ends = [], [], [], [], []
        self.targets = np.zeros(0)

    def _pairs(self):
        return joined(np.array(self.obs), np.array(self.actions), self.num_actions)

    def q_hat_and_width(self, states):
        """Q-hat_t(s, a) and ||K_(s,a)||_{W_t} `[N, A]` from t - 1 pairs and the last targets."""
        states = np.atleast_2d(states)
        count, length = states.shape
        points = joined(
            np.repeat(states, self.num_actions, axis=0),
            np.tile(np.arange(self.num_actions), count),
            self.num_actions,
        )
        own = np.array([self.kernel(p[None], p[None], length)[0, 0] for p in points])
        if not self.obs:
            q_hat, squared = np.zeros(len(points)), own / self.lam
        else:
            pairs = self._pairs()
            system = self.kernel(pairs, pairs, length) + self.lam * np.eye(len(pairs))
            cross = self.kernel(pairs, points, length)
            factor = cho_factor(system, lower=True)
            q_hat = cross.T @ cho_solve(factor, self.targets)
            squared = (
                own - (solve_triangular(factor[0], cross, lower=True) ** 2).sum(0)
            ) / self.lam
        return q_hat.reshape(count, -1), np.sqrt(np.maximum(squared, 0)).reshape(count, -1)

    def q_tilde(self, states):
        q_hat, width = self.q_hat_and_width(states)
        return np.clip(q_hat + self.beta * width, 0, 1 / (1 - self.gamma))

    def act(self, obs):
        return int(np.argmax(self.q_tilde(obs)[0]))

    def step(self, obs, action, reward, next_obs, terminated):
        rewards = np.array([*self.rewards, reward])
        ends = np.array([*self.ends, terminated])
        successors = np.array([*self.next_obs, next_obs])
        # Q-tilde_t is of W_t and Q-hat_t: the new pair is not stored yet.
        value = self.q_tilde(successors).max(axis=1)
        self.obs.append(obs)
        self.actions.append(action)
        self.rewards, self.ends, self.next_obs = list(rewards), list(ends), list(successors)
        self.targets = rewards + self.gamma * np.where(ends, self.terminal_value, value)

    def tables(self):
        """Q-hat, width and Q-tilde `[t, A]` at all successors."""
        q_hat, width = self.q_hat_and_width(np.array(self.next_obs))
        return q_hat, width, np.clip(q_hat + self.beta * width, 0, 1 / (1 - self.gamma))
