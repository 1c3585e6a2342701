"""Learning in rounds as slow, plain NumPy in float64: an oracle for the library's `rounds`.

Written from DESIGN.md, section 3 (the six points of "Rounds: to be built"), not from the library:
nothing here imports kqljax, kernels are exact on all pairs, linear systems are solved afresh.

Data, n transitions of length l with num_actions actions (A in shapes):
S [n, l] states, A [n] actions, R [n] rewards in [0, 1], S2 [n, l] successors, ended [n] whether the
episode terminated there (a time limit is no end), v the raw reward 0 in these units, so that what
follows an end is worth v * cap with cap = 1 / (1 - gamma). w [l] are the fitted widths and
d [A, l] the displacements. d_w^2(x, y) = sum_i w_i (x_i - y_i)^2.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

# Kernels and ridge regression


def squared_distances(X, Y, w):
    """d_w^2(x, y) [p, q] between the rows of X [p, l] and Y [q, l], from differences."""
    total = np.zeros((len(X), len(Y)))
    for i, width in enumerate(w):
        total += width * np.subtract.outer(X[:, i], Y[:, i]) ** 2
    return total


def action_factor(a, b, coupling):
    """[p, q]: 1 where the actions a [p] and b [q] are the same, `coupling` elsewhere."""
    return np.where(np.asarray(a)[:, None] == np.asarray(b)[None, :], 1.0, coupling)


def pair_kernel(P, a, Q, b, w, coupling):
    """exp(-d_w^2(p, q)) times 1 or `coupling`, [p, q], for displaced states P, Q and actions."""
    return np.exp(-squared_distances(P, Q, w)) * action_factor(a, b, coupling)


def ridge_factor(K, ridge):
    """The Cholesky factor of K + ridge I, for `cho_solve`."""
    return cho_factor(K + ridge * np.eye(len(K)), lower=True)


def every_action(obs, d):
    """Each state with each action: displaced states [q A, l] and actions [q A], by state first."""
    obs = np.atleast_2d(obs)
    num_actions = len(d)
    points = (obs[:, None, :] + d[None, :, :]).reshape(-1, obs.shape[1])
    return points, np.tile(np.arange(num_actions), len(obs))


def backup_targets(R, ended, V, v, gamma):
    """y [n] = R + gamma V(s'), with v * cap in place of V(s') where the episode ended."""
    return R + gamma * np.where(ended, v / (1 - gamma), V)


# 1. Widths


def rows_for_widths(ended, most=500):
    """Indices of the rows that widths and displacements are fitted on.

    At most `most` rows spread evenly over all n, index_i = floor(i (n - 1) / (most - 1)); of these
    the rows that did not end an episode.
    """
    ended = np.asarray(ended, bool)
    n = len(ended)
    rows = np.arange(n) if n <= most else np.arange(most) * (n - 1) // max(most - 1, 1)
    return rows[~ended[rows]]


def spreads(S, least=0.3):
    """max(sqrt(standard deviation * half range), least) [l], or 1 where S did not move."""
    half_range = (S.max(axis=0) - S.min(axis=0)) / 2
    spread = np.sqrt(S.std(axis=0) * half_range)
    return np.where(spread > 1e-9, np.maximum(spread, least), 1.0)


def scaled_moves(S, S2, spread):
    """(s' - s) / spread [n, l], centred, then each coordinate scaled to root mean square 1.

    A coordinate that moves by the same amount in every row stays 0.
    """
    y = (S2 - S) / spread
    y = y - y.mean(axis=0)
    size = np.sqrt((y**2).mean(axis=0))
    return y / np.where(size > 1e-9, size, 1.0)


def evidence(S, A, S2, ended, eta, coupling=0.99, noise=1e-4, least=0.3, most=500):
    """How well a Gaussian process of width eta explains the moves s' - s; a higher score is better.

    K = exp(-eta |(s - t) / spread|^2) times 1 or `coupling`, plus noise I = L L^T; z = L^-1 y;
    score = -n/2 sum_i ln(mean z_i^2) - l sum ln diag L. The spread is that of all rows of S,
    K and y are of the rows for widths only.
    """
    spread = spreads(S, least)
    rows = rows_for_widths(ended, most)
    y = scaled_moves(S[rows], S2[rows], spread)
    n, length = y.shape
    K = pair_kernel(S[rows], A[rows], S[rows], A[rows], eta / spread**2, coupling)
    L = cholesky(K + noise * np.eye(n), lower=True)
    z = solve_triangular(L, y, lower=True)
    mean_square = np.maximum((z**2).mean(axis=0), 1e-18)
    return -0.5 * n * np.log(mean_square).sum() - length * np.log(np.diag(L)).sum()


def fit_widths(
    S,
    A,
    S2,
    ended,
    etas=(0.005, 0.015, 0.05, 0.15, 0.5),
    coupling=0.99,
    noise=1e-4,
    least=0.3,
    most=500,
):
    """w [l] = eta / spread^2 and eta, the one of highest evidence (the first in ties)."""
    scores = [evidence(S, A, S2, ended, eta, coupling, noise, least, most) for eta in etas]
    eta = etas[int(np.argmax(scores))]
    return eta / spreads(S, least) ** 2, eta


# 2. Displacements


def displacements(S, A, S2, ended, w, num_actions, noise=1e-4, most=500):
    """d [A, l]: by how much each action moves the state, against the mean of all actions taken.

    y = s' - s centred, K = exp(-d_w^2(s, t)) + [a = b] + noise I, e = T^T K^-1 y with T one-hot;
    d = e - the mean of e over the actions taken; 0 for actions not taken.
    """
    rows = rows_for_widths(ended, most)
    y = S2[rows] - S[rows]
    y = y - y.mean(axis=0)
    same_action = action_factor(A[rows], A[rows], 0.0)
    K = np.exp(-squared_distances(S[rows], S[rows], w)) + same_action
    one_hot = np.eye(num_actions)[A[rows]]
    effect = one_hot.T @ cho_solve(ridge_factor(K, noise), y)
    taken = np.isin(np.arange(num_actions), A[rows])
    d = np.zeros_like(effect)
    d[taken] = effect[taken] - effect[taken].mean(axis=0)
    return d


# 3. The learner of a round


class LearnerRound:
    """Optimistic values from all stored pairs; `learner_round` says how they are computed.

    V [n]: values of the successors after the backups; backups: how many were done.
    """

    def __init__(self, pairs, actions, w, d, gamma, ridge, coupling, bonus):
        self.pairs, self.actions = pairs, actions
        self.w, self.d = w, d
        self.ridge, self.coupling, self.bonus = ridge, coupling, bonus
        self.cap = 1 / (1 - gamma)
        self.num_fitted = len(pairs)
        self.factor_fitted = self.factor = self._factorise()

    def _factorise(self):
        K = pair_kernel(self.pairs, self.actions, self.pairs, self.actions, self.w, self.coupling)
        return ridge_factor(K, self.ridge)

    def _cross(self, obs):
        """Kernel [q A, pairs] of each observation with each action against the pairs."""
        points, a = every_action(obs, self.d)
        return pair_kernel(points, a, self.pairs, self.actions, self.w, self.coupling)

    def _mean(self, cross, targets):
        """k^T K^-1 y [q, A]: the fitted pairs only, not the appended ones."""
        alpha = cho_solve(self.factor_fitted, targets)
        return (cross[:, : self.num_fitted] @ alpha).reshape(-1, len(self.d))

    def _std(self, cross):
        """sqrt(1 - k^T K^-1 k) [q, A], from the appended pairs too."""
        explained = (cross * cho_solve(self.factor, cross.T).T).sum(axis=1)
        return np.sqrt(np.maximum(1 - explained, 0)).reshape(-1, len(self.d))

    def back_up(self, R, S2, ended, V, v, gamma, backups, tolerance):
        """V(s') <- max_a clip(mean + cap bonus std, 0, cap), at most `backups` times.

        Ends with the first change below tolerance * cap; the targets are those of the last V.
        """
        cross = self._cross(S2)
        bonus = self.cap * self.bonus * self._std(cross)
        self.V, self.backups = np.array(V, float), 0
        for _ in range(backups):
            mean = self._mean(cross, backup_targets(R, ended, self.V, v, gamma))
            new = np.clip(mean + bonus, 0, self.cap).max(axis=1)
            change = np.abs(new - self.V).max()
            self.V, self.backups = new, self.backups + 1
            if change < tolerance * self.cap:
                break
        self.targets = backup_targets(R, ended, self.V, v, gamma)

    def mean_and_std(self, obs):
        """Mean and standard deviation, each [q, A], at obs [q, l]; nothing is clipped."""
        cross = self._cross(obs)
        return self._mean(cross, self.targets), self._std(cross)

    def values(self, obs):
        """mean + cap bonus std [q, A], not clipped."""
        mean, std = self.mean_and_std(obs)
        return mean + self.cap * self.bonus * std

    def append(self, obs, action):
        """Add a pair that narrows std at once; the mean waits for the next round."""
        pair = np.asarray(obs, float).reshape(1, -1) + self.d[int(action)]
        self.pairs = np.concatenate([self.pairs, pair])
        self.actions = np.append(self.actions, int(action))
        self.factor = self._factorise()


def learner_round(
    S,
    A,
    R,
    S2,
    ended,
    V,
    w,
    d,
    num_actions,
    v,
    gamma=0.97,
    ridge=1e-4,
    coupling=0.99,
    narrower=0.2,
    bonus=1.0,
    backups=100,
    tolerance=1e-3,
):
    """A round's learner, from the values V [n] of the round before (cap for new rows).

    Kernel exp(-narrower d_w^2(p, p')) times 1 or `coupling`, p = s + d_a; w are the fitted widths,
    `narrower` is applied here. V is not written to.
    """
    assert len(d) == num_actions
    learner = LearnerRound(S + d[A], np.array(A), narrower * w, d, gamma, ridge, coupling, bonus)
    learner.back_up(R, S2, ended, V, v, gamma, backups, tolerance)
    return learner


# 4. The finished policy


class FinishedMembers:
    """Ridge regressions of several widths on the same pairs; weights [members, n]."""

    def __init__(self, pairs, actions, w, d, widths, coupling, gamma):
        self.pairs, self.actions = pairs, actions
        self.w, self.d, self.widths, self.coupling = w, d, widths, coupling
        self.cap = 1 / (1 - gamma)

    def cross(self, obs, scale):
        """Kernel [q A, n] of each observation with each action against the pairs."""
        points, a = every_action(obs, self.d)
        return pair_kernel(points, a, self.pairs, self.actions, scale * self.w, self.coupling)

    def member_values(self, cross, weights):
        """clip(k^T weights, 0, cap) [q, A] of one member."""
        return np.clip((cross @ weights).reshape(-1, len(self.d)), 0, self.cap)

    def fit_member(self, scale, R, S2, ended, v, gamma, ridge, backups, tolerance):
        """One member's weights [n], values V [n] and number of backups, without a bonus, from 0.

        V(s') <- max_a clip(Q(s', a), 0, cap), ended by the first change below `tolerance`.
        """
        w = scale * self.w
        K = pair_kernel(self.pairs, self.actions, self.pairs, self.actions, w, self.coupling)
        factor = ridge_factor(K, ridge)
        cross = self.cross(S2, scale)
        V, count = np.zeros(len(R)), 0
        for _ in range(backups):
            weights = cho_solve(factor, backup_targets(R, ended, V, v, gamma))
            new = self.member_values(cross, weights).max(axis=1)
            change = np.abs(new - V).max()
            V, count = new, count + 1
            if change < tolerance:
                break
        return cho_solve(factor, backup_targets(R, ended, V, v, gamma)), V, count

    def fit(self, *args):
        """Fit every member, each with its own values: weights, V [members, n], backups."""
        fitted = [self.fit_member(scale, *args) for scale in self.widths]
        self.weights, self.V, self.backups = (np.array(part) for part in zip(*fitted, strict=True))

    def members(self, obs):
        """Clipped values [members, q, A] at obs [q, l]."""
        fitted = zip(self.widths, self.weights, strict=True)
        return np.stack([self.member_values(self.cross(obs, c), alpha) for c, alpha in fitted])

    def values(self, obs):
        """The mean of the clipped members [q, A]."""
        return self.members(obs).mean(axis=0)


def finished_members(
    S,
    A,
    R,
    S2,
    ended,
    w,
    d,
    num_actions,
    v,
    gamma=0.99,
    ridge=3e-4,
    coupling=0.996,
    widths=(1 / 27, 1 / 9, 1 / 3, 1, 3),
    backups=300,
    tolerance=1e-3,
):
    """The finished policy's ensemble, by exact ridge regression on all pairs.

    Member i has the kernel exp(-widths_i d_w^2(p, p')) times 1 or `coupling`, p = s + d_a.
    """
    assert len(d) == num_actions
    finished = FinishedMembers(S + d[A], np.array(A), w, d, widths, coupling, gamma)
    finished.fit(R, S2, ended, v, gamma, ridge, backups, tolerance)
    return finished


# 5. Looking ahead where it is unclear


def held_steps(S, S2, ended, w, stride=0.5, most=4):
    """For how many steps a plan holds an action: round(stride / mean |s' - s|_w) in 1..most.

    The mean is over the rows that did not end; 1 without such rows, `most` if nothing moved.
    """
    keep = ~np.asarray(ended, bool)
    if not keep.any():
        return 1
    moved = np.sqrt((w * (S2 - S)[keep] ** 2).sum(axis=1)).mean()
    return most if moved == 0 else int(np.clip(np.rint(stride / moved), 1, most))


class Model:
    """Kernel ridge regression of s' - s, R (both centred) and the end (not centred) on (s, a)."""

    def __init__(self, S, A, R, S2, ended, w, coupling, share, narrow, ridge, ridge_ends):
        self.S, self.A, self.w = S, np.array(A), w
        self.coupling, self.share, self.narrow = coupling, share, narrow
        K = self.kernel(S, A)
        outputs = np.column_stack([S2 - S, R])
        self.mean = outputs.mean(axis=0)
        self.weights = cho_solve(ridge_factor(K, ridge), outputs - self.mean)
        self.weights_end = cho_solve(ridge_factor(K, ridge_ends), np.asarray(ended, float))

    def kernel(self, obs, action):
        """(exp(-d_w^2) + share exp(-narrow d_w^2)) times 1 or `coupling`, [q, n]."""
        distance = squared_distances(obs, self.S, self.w)
        of_states = np.exp(-distance) + self.share * np.exp(-self.narrow * distance)
        return of_states * action_factor(action, self.A, self.coupling)

    def step(self, obs, action):
        """Next state [q, l], reward [q] and share of an end [q], the last two clipped to [0, 1]."""
        k = self.kernel(obs, action)
        outputs = k @ self.weights + self.mean
        end = np.clip(k @ self.weights_end, 0, 1)
        return obs + outputs[:, :-1], np.clip(outputs[:, -1], 0, 1), end


def model(
    S,
    A,
    R,
    S2,
    ended,
    w,
    num_actions,
    coupling=0.9,
    share=0.01,
    narrow=27.0,
    ridge=1e-4,
    ridge_ends=1e-2,
):
    """The model of the environment that plans use: on states as they are, not displaced."""
    assert np.all((np.asarray(A) >= 0) & (np.asarray(A) < num_actions))
    return Model(S, A, R, S2, ended, w, coupling, share, narrow, ridge, ridge_ends)


def hold(model, obs, action, total, weight, held, gamma, v):
    """Hold the actions [q] for `held` steps: where that leads [q, l], total [q] and weight [q].

    weight = gamma^t o_t, o_t the share not ended before step t; a step adds
    weight * (r + gamma e v cap) to the total.
    """
    for _ in range(held):
        obs, reward, end = model.step(obs, action)
        total = total + weight * (reward + gamma * end * v / (1 - gamma))
        weight = weight * gamma * (1 - end)
    return obs, total, weight


def plan_values(members, model, obs, held, gamma, v, num_actions):
    """[q, A]: the value of the best plan of two actions, each held, by its first action.

    sum_t gamma^t o_t (r_t + gamma e_t v cap) + gamma^T o_T max_a mean of members(s_T, a);
    `members` is an object as `finished_members` returns it, of which `values` is used.
    """
    obs = np.atleast_2d(obs)
    q = len(obs)
    best = np.full((q, num_actions), -np.inf)
    for first in range(num_actions):
        start = hold(model, obs, np.full(q, first), np.zeros(q), np.ones(q), held, gamma, v)
        for second in range(num_actions):
            end, total, weight = hold(
                model, start[0], np.full(q, second), *start[1:], held, gamma, v
            )
            value = total + weight * members.values(end).max(axis=1)
            best[:, first] = np.maximum(best[:, first], value)
    return best


def is_unclear(member_values, k):
    """[q] whether the gap between the mean's two best actions is below k standard deviations.

    member_values [members, q, A]; mean and (population) standard deviation are over the members.
    """
    order = np.argsort(-member_values.mean(axis=0), axis=1, kind="stable")
    rows = np.arange(len(order))
    gap = member_values[:, rows, order[:, 0]] - member_values[:, rows, order[:, 1]]
    return gap.mean(axis=0) < k * gap.std(axis=0)


def act(members, model, obs, held, k=1.0, *, v, gamma=0.99):
    """Actions [q]: the best of the members' mean; where that is unclear, of the plans.

    The lowest action in ties. Plans only where held > 1.
    """
    obs = np.atleast_2d(obs)
    values = members.members(obs)
    num_actions = values.shape[2]
    actions = values.mean(axis=0).argmax(axis=1)
    if held > 1 and num_actions > 1:
        rows = np.flatnonzero(is_unclear(values, k))
        if len(rows):
            plans = plan_values(members, model, obs[rows], held, gamma, v, num_actions)
            actions[rows] = plans.argmax(axis=1)
    return actions


# 6. Acting by the finished policy while learning


def optimism_gap(V, S2, ended, members, gamma_learn=0.97, gamma_finish=0.99):
    """Mean of (1 - gamma_learn) V - (1 - gamma_finish) max_a Q(s', a) over rows that did not end.

    V [n] are the learner's values, Q the members' mean. There must be a row that did not end.
    """
    keep = ~np.asarray(ended, bool)
    finished = members.values(S2[keep]).max(axis=1)
    return np.mean((1 - gamma_learn) * V[keep] - (1 - gamma_finish) * finished)
