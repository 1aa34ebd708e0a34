"""Dense linear algebra: the only package that factorises. Everything is batched.

Jitter policy, for all of distgp: a matrix is factorised as it is; only where that fails is a
multiple of the identity added, relative to the mean of the matrix's diagonal, starting at 10·ε and
growing by tens up to `LARGEST_JITTER`. Jitter above the matrix's own rounding error, 10·n·ε but at
most `SILENT_JITTER`, is reported by a `JitterWarning`; beyond the limit a
`NotPositiveDefiniteError` says what to change.
"""

from distgp.linalg.factors import (
    LARGEST_JITTER,
    SILENT_JITTER,
    JitterWarning,
    NotPositiveDefiniteError,
    add_diagonal,
    broadcast,
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    clear_cholesky,
    gram,
    half_cholesky,
    half_inverse,
    log_det,
    many_cholesky,
    minus_gram,
    pivoted_cholesky,
    rounding_of,
    solve_lower,
    solve_upper,
)
from distgp.linalg.lapack import product
from distgp.linalg.large import cholesky_, invert_
from distgp.linalg.singular import least_squares, triangle, truncated_solve

__all__ = [
    "LARGEST_JITTER", "SILENT_JITTER", "JitterWarning", "NotPositiveDefiniteError", "add_diagonal",
    "broadcast", "cholesky", "cholesky_", "cholesky_inverse", "cholesky_solve", "clear_cholesky", "gram",
    "half_cholesky", "half_inverse", "invert_", "least_squares", "log_det", "many_cholesky",
    "minus_gram",
    "pivoted_cholesky", "product", "rounding_of", "solve_lower", "solve_upper", "triangle",
    "truncated_solve",
]  # fmt: skip
