"""Kernel ridge regression, solved afresh: on all pairs, or on centres chosen among them.

With K the Gram matrix of n stored inputs, k_x the kernels between x and them, and a ridge lam:

    mean(x) = k_x^T (K + lam I)^-1 y,        std(x)^2 = k(x, x) - k_x^T (K + lam I)^-1 k_x.

std is the width of Algorithm 1 times the square root of lam. On centres, a pivoted Cholesky
factorisation gives features F with F F^T <= K (`span`). With M = F^T F + lam I
(`ridge_on_features`) and the features f of x:

    mean(x) = f^T M^-1 F^T y,        std(x)^2 = k(x, x) - |f|^2 + lam f^T M^-1 f.

k(x, x) - |f|^2 is the residual at x: what the centres do not span counts as not known. Blocks of
pivots and of rows are loops of lengths known at run time, so the cost follows the kernel's rank.

Use float64: float32 cannot factor Gram matrices of kernels this smooth. A factorisation that fails
gives numbers that are not finite. Under vmap an accelerator factors all seeds in one batched call
and a CPU one after the other, because with two CPU devices LAPACK's batched calls block each other
in jax 0.10.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from kqljax._arrays import dot

Array = jax.Array


def _one_by_one_on_cpu(operation: Callable[..., Array]) -> Callable[..., Array]:
    """The operation; under vmap one batched call on accelerators and a loop on a CPU."""
    single = jax.custom_batching.custom_vmap(operation)

    @single.def_vmap
    def rule(axis_size: int, in_batched: Any, *args: Any) -> tuple[Array, bool]:
        args = tuple(
            arg if batched else jnp.broadcast_to(arg, (axis_size, *arg.shape))
            for arg, batched in zip(args, in_batched, strict=True)
        )
        result = lax.platform_dependent(
            *args,
            cpu=lambda *args: lax.map(lambda each: single(*each), args),
            default=lambda *args: jax.vmap(operation)(*args),
        )
        return result, True

    return single


@_one_by_one_on_cpu
def cholesky(matrix: Array) -> Array:
    """Lower Cholesky factor `[n, n]`; not finite where the matrix is not positive definite."""
    return jnp.linalg.cholesky(matrix, symmetrize_input=False)


@_one_by_one_on_cpu
def solve_lower(lower: Array, right: Array) -> Array:
    """lower^-1 right for a lower triangular matrix `[n, n]` and `[n, c]`."""
    return lax.linalg.triangular_solve(lower, right, left_side=True, lower=True)


@_one_by_one_on_cpu
def solve_lower_transposed(lower: Array, right: Array) -> Array:
    """lower^-T right for a lower triangular matrix `[n, n]` and `[n, c]`."""
    return lax.linalg.triangular_solve(lower, right, left_side=True, lower=True, transpose_a=True)


def solve_factored(lower: Array, right: Array) -> Array:
    """(lower lower^T)^-1 right, for `right` `[n, c]`."""
    return solve_lower_transposed(lower, solve_lower(lower, right))


@jax.custom_batching.custom_vmap
def largest(number: Array) -> Array:
    """`number` `[]`; under vmap the largest of the batch, the same for all and no longer batched.

    Loops that run this many times, and a switch on it, stay one loop and one switch under vmap.
    """
    return number


@largest.def_vmap
def _(axis_size: int, in_batched: Any, number: Array) -> tuple[Array, bool]:
    # Again `largest`: there may be a second vmap around this one.
    return largest(jnp.max(number)), False


class Factor(NamedTuple):
    """Cholesky factor `[n, n]` of K + ridge I, `[n]` rows that count, `[]` whether it worked.

    Rows that do not count are those of the identity.
    """

    lower: Array
    mask: Array
    is_finite: Array


def factor(gram: Array, ridge: Any, mask: Array | None = None) -> Factor:
    """Factors K + ridge I, of K `[n, n]` padded in the rows that `mask` `[n]` does not count.

    Examples:
      >>> from kqljax import regression
      >>> x = jnp.linspace(-1.0, 1.0, 5)
      >>> gram = jnp.exp(-((x[:, None] - x) ** 2))
      >>> fitted = regression.factor(gram, 1e-6)
      >>> weights = regression.solve(fitted, jnp.sin(x))
      >>> bool(jnp.allclose(gram @ weights, jnp.sin(x), atol=1e-4)), bool(fitted.is_finite)
      (True, True)
    """
    n = len(gram)
    if gram.shape != (n, n):
        raise ValueError(f"gram must be square, the kernels of n inputs, got shape {gram.shape}.")
    mask = jnp.ones(n, bool) if mask is None else mask
    if mask.shape != (n,):
        raise ValueError(f"mask must have one entry for each of the {n} rows, got {mask.shape}.")
    diagonal = jnp.diag(jnp.where(mask, ridge, 1.0).astype(gram.dtype))
    lower = cholesky(jnp.where(mask[:, None] & mask, gram, 0.0) + diagonal)
    return Factor(lower, mask, jnp.all(jnp.isfinite(lower)))


def whiten(fitted: Factor, columns: Array) -> Array:
    """lower^-1 columns, `[n, c]`; rows that are masked out are 0."""
    return solve_lower(fitted.lower, jnp.where(fitted.mask[:, None], columns, 0.0))


def solve(fitted: Factor, targets: Array) -> Array:
    """(K + ridge I)^-1 targets, for `[n]` or `[n, c]`."""
    columns = jnp.where(fitted.mask[:, None], targets.reshape(len(targets), -1), 0.0)
    return solve_factored(fitted.lower, columns).reshape(targets.shape)


def std(fitted: Factor, cross: Array, prior: Any = 1.0) -> Array:
    """std `[q]` at q inputs with kernels `cross` `[n, q]` to the stored ones, k(x, x) = `prior`."""
    return jnp.sqrt(jnp.maximum(prior - jnp.sum(whiten(fitted, cross) ** 2, axis=0), 0.0))


def log_evidence(fitted: Factor, targets: Array) -> Array:
    """Log marginal likelihood `[]` of `[n, c]` targets, up to a constant.

    Each column is a Gaussian process with its most likely amplitude: with z = lower^-1 targets
    -n/2 sum_c log mean(z_c^2) - c sum log diag(lower).
    """
    count = jnp.sum(fitted.mask)
    power = jnp.sum(whiten(fitted, targets) ** 2, axis=0) / count
    is_diagonal = jnp.eye(fitted.mask.size, dtype=bool)
    volume = jnp.sum(jnp.log(jnp.sum(jnp.where(is_diagonal, fitted.lower, 0.0), axis=1)))
    return -0.5 * count * jnp.sum(jnp.log(jnp.maximum(power, 1e-18))) - targets.shape[1] * volume


class Rows(NamedTuple):
    """Inputs in R `blocks`, each of `size` stored ones and groups - 1 times as many others.

    `stored` `[]` is the number n of stored inputs, which come first; the rest is static.
    """

    stored: Array
    blocks: int
    size: int
    groups: int

    @property
    def in_use(self) -> Array:
        """Blocks that hold a stored input; under vmap of any seed, so that loops stay loops."""
        return (largest(self.stored) + self.size - 1) // self.size

    def is_stored(self, blocks: int) -> Array:
        """`[blocks, size]` bool, the places of the first blocks that hold a stored input."""
        return (jnp.arange(blocks * self.size) < self.stored).reshape(blocks, self.size)


class Span(NamedTuple):
    """Features of a kernel on at most m centres, H = groups * size rows in a block.

    Attributes:
      pivot: `[m]` int32, the stored inputs that are centres.
      is_used: `[m]` bool; False where a place was not needed.
      lower: `[m, m]` Cholesky factor of the kernel between centres; the identity where unused.
      features: `[R, H, m]` f = lower^-1 k_centres(x), written below `blocks` and `Rows.in_use`.
      residual: `[R, H]` k(x, x) - |f|^2.
      blocks: `[]` int32, blocks of centres that were needed.
    """

    pivot: Array
    is_used: Array
    lower: Array
    features: Array
    residual: Array
    blocks: Array


def _running_sum(blocks: Array) -> Array:
    """Running sum `[R size]` over `[R, size]`; `jnp.cumsum` would become dozens of kernels."""
    count, size = blocks.shape
    within = dot(blocks, jnp.triu(jnp.ones((size, size), blocks.dtype)))
    before = dot(jnp.tril(jnp.ones((count, count), blocks.dtype), -1), within[:, -1:])
    return (within + before).reshape(-1)


def empty_span(rows: Rows, most: int, dtype: Any) -> Span:
    """No centres yet."""
    height = rows.groups * rows.size
    return Span(
        pivot=jnp.zeros(most, jnp.int32),
        is_used=jnp.zeros(most, bool),
        lower=jnp.eye(most, dtype=dtype),
        features=jnp.zeros((rows.blocks, height, most), dtype),
        residual=jnp.zeros((rows.blocks, height), dtype),
        blocks=jnp.int32(0),
    )


def span(
    kernel: Callable[[Array, Array], Array],
    between: Callable[[Array], Array],
    rows: Rows,
    *,
    most: int,
    block: int,
    tolerance: Any,
    jitter: Any = 1e-7,
    prior: Any = 1.0,
    most_blocks: Any = None,
    pivots: tuple[Array, Array] | None = None,
    is_free: Any = False,
    work: Array | None = None,
) -> Span:
    """Chooses centres by pivoted Cholesky factorisation, `block` of them at a time.

    The pivots of a block are taken at equal shares of the residual, summed over the stored inputs:
    where much is left to explain, many are taken.

    Args:
      kernel: kernel(r, index) -> `[H, b]` between the rows of block r and stored inputs `[b]`.
      between: between(index) -> `[b, b]` among stored inputs.
      most: m, static, a multiple of `block`.
      tolerance: `[]` it ends when no stored input has a residual above.
      jitter: `[]` added to the diagonal of a block before it is factored.
      prior: k(x, x), the same for all x.
      most_blocks: `[]` int32, fewer blocks than m / block.
      pivots: index `[m]` and is_used `[m]` of another span, whose centres are taken as far as they
        are needed, unless `is_free` `[]` says to choose after all.
      work: features of another span of the same size, whose memory can be used again.

    Examples:
      >>> from kqljax import regression
      >>> x = jnp.linspace(-1.0, 1.0, 64)
      >>> gram = jnp.exp(-((x[:, None] - x) ** 2))
      >>> rows = regression.Rows(jnp.int32(64), blocks=1, size=64, groups=1)
      >>> kernels = lambda r, index: gram[:, index], lambda index: gram[index][:, index]
      >>> found = regression.span(*kernels, rows, most=32, block=8, tolerance=1e-6)
      >>> f, _ = regression.dense(found, rows, rows.blocks, 32)
      >>> bool(jnp.abs(f @ f.T - gram).max() < 1e-6), int(found.blocks)
      (True, 2)
    """
    if most % block:
        raise ValueError(
            f"most={most} centres are taken in blocks of {block}: make it a multiple of that."
        )
    height = rows.groups * rows.size
    dtype = jnp.result_type(tolerance, jnp.zeros(()))
    limit = most // block if most_blocks is None else jnp.minimum(most_blocks, most // block)
    is_stored, in_use = rows.is_stored(rows.blocks), rows.in_use

    def at(*start: Any) -> tuple[Array, ...]:
        return tuple(jnp.asarray(each, jnp.int32) for each in start)

    def put(array: Array, value: Array, *start: Any) -> Array:
        start += (0,) * (array.ndim - len(start))
        return lax.dynamic_update_slice(array, value.astype(array.dtype), at(*start))

    def left(found: Span) -> Array:
        return jnp.where(is_stored, found.residual[:, : rows.size], 0.0)

    def one_block(found: Span) -> Span:
        j, residual = found.blocks, left(found)
        # Pivots `[b]` of block j, and which of them count.
        total = _running_sum(residual)
        share = (jnp.arange(block, dtype=dtype) + 0.5) / block * total[-1]
        index = jnp.sum(total[:, None] < share, axis=0).astype(jnp.int32)
        index = jnp.minimum(index, rows.stored - 1)
        is_new = jnp.concatenate([jnp.ones(1, bool), index[1:] != index[:-1]])
        if pivots is not None:
            given = [lax.dynamic_slice_in_dim(each, j * block, block) for each in pivots]
            index = jnp.where(is_free, index, given[0])
            is_new = jnp.where(is_free, is_new, given[1])
        is_new = is_new & (residual.reshape(-1)[index] > tolerance)
        index = jnp.where(is_new, index, 0)
        # Features that the pivots have so far, [b, m]; columns from j * b on were not written yet.
        at_pivots = found.features[index // rows.size, index % rows.size]
        at_pivots = jnp.where((jnp.arange(most) < j * block) & is_new[:, None], at_pivots, 0.0)
        gram = between(index) - dot(at_pivots, at_pivots.T)
        gram = jnp.where(is_new[:, None] & is_new, gram, 0.0)
        lower = cholesky(gram + jnp.diag(jnp.where(is_new, jitter, 1.0).astype(dtype)))
        inverse = solve_lower(lower, jnp.eye(block, dtype=dtype))

        def one_row_block(r: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            features, residual = carry

            def subtract(k: Array, cross: Array) -> Array:
                known = lax.dynamic_slice(features, at(r, 0, k * block), (1, height, block))[0]
                theirs = lax.dynamic_slice_in_dim(at_pivots, k * block, block, 1)
                return cross - dot(known, theirs.T)

            cross = lax.fori_loop(0, j, subtract, jnp.where(is_new, kernel(r, index), 0.0))
            new = dot(cross, inverse.T)
            remaining = jnp.maximum(residual[r] - jnp.sum(new**2, axis=1), 0.0)
            return put(features, new[None], r, 0, j * block), put(residual, remaining[None], r)

        before = found.features, found.residual
        features, residual = lax.fori_loop(0, in_use, one_row_block, before)
        return Span(
            pivot=put(found.pivot, index, j * block),
            is_used=put(found.is_used, is_new, j * block),
            lower=put(found.lower, put(at_pivots, lower, 0, j * block), j * block),
            features=features,
            residual=residual,
            blocks=j + 1,
        )

    def is_going(found: Span) -> Array:
        return (found.blocks < limit) & (largest(jnp.max(left(found))) > tolerance)

    start = empty_span(rows, most, dtype)
    features = start.features if work is None else work
    residual = jnp.full_like(start.residual, prior)
    start = start._replace(features=features, residual=residual)
    return lax.while_loop(is_going, one_block, start)


def dense(found: Span, rows: Rows, row_blocks: int, width: int) -> tuple[Array, Array]:
    """Features of the first row blocks and centres, 0 where nothing was written.

    Of stored inputs `[row_blocks * size, width]`, of others `[row_blocks, H - size, width]`.
    """
    part = found.features[:row_blocks, :, :width]
    is_stored = jnp.tile(rows.is_stored(row_blocks), (1, rows.groups))
    part = jnp.where(is_stored[:, :, None] & found.is_used[:width], part, 0.0)
    return part[:, : rows.size].reshape(-1, width), part[:, rows.size :]


class FeatureRidge(NamedTuple):
    """L^-1 `[m, m]` of the Cholesky factor L of M = F^T F + ridge I, features F `[n, m]`."""

    inverse: Array

    def operator(self, features: Array) -> Array:
        """G `[m, n]` = M^-1 F^T, which takes targets to weights."""
        return dot(dot(self.inverse.T, self.inverse), features.T)

    def leverage(self, features: Array) -> Array:
        """f^T M^-1 f of rows `[q, m]`, in their dtype: `[q]`."""
        return jnp.sum(dot(features, self.inverse.T.astype(features.dtype)) ** 2, axis=-1)


def products(features: Array) -> Array:
    """F^T F `[m, m]`."""
    # The barrier writes F^T down. A CPU multiplies by a matrix it has to turn at half the speed.
    return dot(lax.optimization_barrier(features.T), features)


def ridge_on_features(features: Array, ridge: Any) -> FeatureRidge:
    """Factors F^T F + ridge I."""
    identity = jnp.eye(features.shape[1], dtype=features.dtype)
    return FeatureRidge(solve_lower(cholesky(products(features) + ridge * identity), identity))


def shares(whole: int) -> list[int]:
    """An eighth, a quarter, half and all of `whole`, rounded up: lengths to compile for."""
    return sorted({-(-whole // share) for share in (8, 4, 2, 1)})


def at_size(
    counts: tuple[Array, ...], sizes: tuple[tuple[int, ...], ...], branch: Callable[..., Any]
) -> Any:
    """branch(*size) for the first of the static sizes that holds the counts, else the last one."""
    if len(sizes) == 1:
        return branch(*sizes[0])
    holds = [jnp.all(jnp.stack(counts) <= jnp.array(size)) for size in sizes[:-1]]
    which = jnp.argmax(jnp.stack([*holds, jnp.array(True)]))
    return lax.switch(which, [functools.partial(branch, *size) for size in sizes])
