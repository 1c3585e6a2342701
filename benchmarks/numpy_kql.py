"""Algorithm 1 in plain vectorised NumPy: the reference that the exact engine is timed against.

The inverse of K + lam I is updated in place (Sherman-Morrison, as in lines 15 to 17), every array
is a view that grows with t, and all loops over rows, actions and stored pairs are NumPy products.
It knows nothing of the library.
"""

import numpy as np


class NumpyKQL:
    """Exact KQL with an RBF kernel, O(t^2 A) a step."""

    def __init__(self, obs_dim, num_actions, horizon, eta=0.02, gamma=0.95, dtype=np.float64):
        self.num_actions, self.eta, self.gamma = num_actions, eta, gamma
        self.lam = 1 / (10 * horizon)
        self.beta = np.sqrt(self.lam) / (1 - gamma)
        self.count = 0
        self.obs = np.zeros((horizon, obs_dim), dtype)
        self.next_obs = np.zeros((horizon, obs_dim), dtype)
        self.action = np.zeros(horizon, int)
        self.reward = np.zeros(horizon, dtype)
        self.inverse = np.zeros((horizon, horizon), dtype)
        self.cross = np.zeros(
            (num_actions, horizon, horizon), dtype
        )  # (action, successor, stored pair)
        self.width_sq = np.zeros((horizon, num_actions), dtype)
        self.q_hat = np.zeros((horizon, num_actions), dtype)
        self.weights = np.zeros(horizon, dtype)

    def _kernel(self, states, obs, action):
        """`[A, N, M]` kernel between N states with every action and M pairs."""
        distance = ((states[:, None, :] - obs[None, :, :]) ** 2).sum(-1)
        differs = np.arange(self.num_actions)[:, None] != action
        return np.exp(-self.eta * (distance[None] + 2.0 * differs[:, None, :]))

    def _predict(self, state):
        t = self.count
        vectors = self._kernel(state[None], self.obs[:t], self.action[:t])[:, 0]
        whitened = vectors @ self.inverse[:t, :t]
        width_sq = np.maximum(1 - (whitened * vectors).sum(1), 0) / self.lam
        return vectors, vectors @ self.weights[:t], width_sq

    def _optimistic(self, q_hat, width_sq):
        return np.clip(q_hat + self.beta * np.sqrt(width_sq), 0, 1 / (1 - self.gamma))

    def act(self, state):
        _, q_hat, width_sq = self._predict(state)
        return int(np.argmax(self._optimistic(q_hat, width_sq)))

    def step(self, state, action, reward, next_state):
        t = self.count
        vectors, self.q_hat[t], self.width_sq[t] = self._predict(next_state)
        self.cross[:, t, :t] = vectors
        self.reward[t] = reward
        targets = reward_and_value = self.reward[: t + 1] + self.gamma * self._optimistic(
            self.q_hat[: t + 1], self.width_sq[: t + 1]
        ).max(1)

        vector = self._kernel(state[None], self.obs[:t], self.action[:t])[action, 0]
        z = self.inverse[:t, :t] @ vector
        kappa = self.lam + max(1 - vector @ z, 0)
        direction = np.append(-z, 1.0)
        self.inverse[: t + 1, : t + 1] += np.outer(direction, direction) / kappa
        self.obs[t], self.action[t], self.next_obs[t] = state, action, next_state
        self.count = t = t + 1

        self.cross[:, :t, t - 1] = self._kernel(
            self.next_obs[:t], self.obs[t - 1 : t], self.action[t - 1 : t]
        )[:, :, 0]
        self.weights[:t] = self.inverse[:t, :t] @ targets
        change = self.cross[:, :t, :t] @ direction
        self.width_sq[:t] = np.maximum(self.width_sq[:t] - (change**2).T / (self.lam * kappa), 0)
        self.q_hat[:t] = (self.cross[:, :t, :t] @ self.weights[:t]).T
        return reward_and_value
