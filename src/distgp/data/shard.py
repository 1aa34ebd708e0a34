"""A shard: the rows that one expert sees. A whole data set is a shard that holds all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Shard:
    """Rows and their targets, of one expert or of a batch of experts.

    Parameters
    ----------
    X : Tensor of shape (*batch, n, d)
        The inputs. Leading batch dimensions hold several shards of equal length.
    y : Tensor of shape (*batch, n) or (*batch, n, T)
        The targets. Before one target is chosen with `target`, a shard may hold T of them.
    rows : Tensor of shape (*batch, n)
        The number of each row in the whole data set, -1 on padding. Random draws are tied to these
        numbers, so that they do not depend on how rows are divided or ordered.
    mask : Tensor of shape (*batch, n), optional
        False on padding. Shards of different lengths are padded by `stack`; padding changes no
        result.

    Examples
    --------
    >>> import torch
    >>> shard = Shard.of(torch.zeros(5, 2), torch.ones(5))
    >>> shard.n, shard.d
    (5, 2)
    """

    travels_as: ClassVar[str] = "rows"
    X: Tensor
    y: Tensor
    rows: Tensor
    mask: Tensor | None = None

    @staticmethod
    def of(X: Tensor | np.ndarray, y: Tensor | np.ndarray, rows: Tensor | None = None) -> Shard:
        """Build one shard from inputs (n, d) and targets (n,), checked.

        Parameters
        ----------
        X, y : Tensor or ndarray
            Finite floating-point values of one dtype on one device.
        rows : Tensor, optional
            The rows' numbers in the whole data set, 0 … n − 1 by default.

        Returns
        -------
        Shard
        """
        X, y = torch.as_tensor(X), torch.as_tensor(y)
        if X.ndim != 2 or y.shape != X.shape[:-1]:
            raise ValueError(
                f"expected X of shape (n, d) and y of shape (n,), got {tuple(X.shape)} and "
                f"{tuple(y.shape)}"
            )
        if X.numel() == 0:
            raise ValueError(f"a shard needs at least one row and one column, got {tuple(X.shape)}")
        if X.dtype != y.dtype or X.device != y.device or not X.is_floating_point():
            raise ValueError(
                "X and y must be floating-point tensors of one dtype on one device, got "
                f"{X.dtype} on {X.device} and {y.dtype} on {y.device}"
            )
        if not (_all_finite(X) and _all_finite(y)):
            raise ValueError(
                "X and y must be finite, found NaN or infinity: drop or fill those rows"
            )
        if rows is None:
            rows = torch.arange(len(y), device=X.device)
        return Shard(X, y, rows)

    @property
    def n(self) -> int:
        """The number of rows of the tensors, padding included."""
        return self.X.shape[-2]

    @property
    def d(self) -> int:
        """The number of input columns."""
        return self.X.shape[-1]

    @property
    def batch(self) -> torch.Size:
        """The leading batch dimensions."""
        return self.X.shape[:-2]

    @property
    def count(self) -> int:
        """The number of shards in a batch with one leading dimension."""
        return self.batch[0]

    @property
    def sizes(self) -> Tensor:
        """The number n_i of real rows of each shard, in the dtype of the data."""
        if self.mask is None:
            return self.X.new_full(self.batch, self.n)
        return self.mask.sum(-1).to(self.X.dtype)

    def rows_held(self) -> Shard:
        """Return the shard itself: what `distgp.data.sample` draws rows from."""
        return self

    def target(self, column: int) -> Shard:
        """The same rows with one of several targets as their y; a shard with a single one as it is."""
        if self.y.ndim < self.X.ndim:
            return self
        return replace(self, y=self.y[..., column].contiguous())

    def __getitem__(self, index: int | slice | Tensor) -> Shard:
        """Shards of a batch, by their place in it, with their padding."""
        mask = None if self.mask is None else self.mask[index]
        return Shard(self.X[index], self.y[index], self.rows[index], mask)

    def without_padding(self) -> Shard:
        """One shard's real rows alone."""
        return self if self.mask is None else replace(self.take(self.mask), mask=None)

    def flatten(self) -> Shard:
        """All rows of a batch as one shard, padding included."""
        k = len(self.batch)

        def merged(values: Tensor) -> Tensor:
            return values.flatten(0, k) if k else values

        mask = None if self.mask is None else merged(self.mask)
        return Shard(merged(self.X), merged(self.y), merged(self.rows), mask)

    def join(self, batch: Shard) -> Shard:
        """A batch whose shards each begin with the rows of this one."""
        M = batch.count
        mask = None
        if batch.mask is not None:
            real = torch.ones(M, self.n, dtype=torch.bool, device=self.X.device)
            mask = torch.cat([real, batch.mask], -1)
        return Shard(
            torch.cat([self.X.expand(M, *self.X.shape), batch.X], -2),
            torch.cat([self.y.expand(M, -1), batch.y], -1),
            torch.cat([self.rows.expand(M, -1), batch.rows], -1),
            mask,
        )

    def take(self, which: Tensor | slice) -> Shard:
        """The chosen rows, as a shard."""
        at = (*(slice(None) for _ in self.batch), which)
        mask = None if self.mask is None else self.mask[at]
        return Shard(self.X[at], self.y[at], self.rows[at], mask)

    def chunks(self, size: int) -> Iterator[Shard]:
        """Consecutive views of at most `size` rows."""
        return (self.take(slice(start, start + size)) for start in range(0, self.n, size))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Shard:
        """The same shard on another device or in another dtype."""
        mask = None if self.mask is None else self.mask.to(device)
        X, y = self.X.to(device=device, dtype=dtype), self.y.to(device=device, dtype=dtype)
        return replace(self, X=X, y=y, rows=self.rows.to(device), mask=mask)


def stack(shards: Sequence[Shard]) -> Shard:
    """Make one batch of shards of any lengths, padded at the end and masked where they differ.

    Parameters
    ----------
    shards : sequence of Shard
        Shards without batch dimensions.

    Returns
    -------
    Shard
        A batch with one leading dimension; `unstack` is the inverse.
    """
    if not shards:
        raise ValueError("expected at least one shard, got none")
    lengths = [shard.n for shard in shards]
    n = max(lengths)
    mask = None
    if min(lengths) < n or any(shard.mask is not None for shard in shards):
        mask = torch.stack([_padded_mask(shard, n) for shard in shards])
    return Shard(
        X=torch.stack([_repeat_first(shard.X, n) for shard in shards]),
        y=torch.stack([_padded(shard.y, n, 0.0) for shard in shards]),
        rows=torch.stack([_padded(shard.rows, n, -1) for shard in shards]),
        mask=mask,
    )


def unstack(batch: Shard) -> list[Shard]:
    """The shards of a batch, without their padding: the inverse of `stack`."""
    if len(batch.batch) != 1:
        raise ValueError(f"expected a batch of shards, got batch dimensions {tuple(batch.batch)}")
    return [batch[i].without_padding() for i in range(batch.count)]


def concatenate(shards: Sequence[Shard]) -> Shard:
    """One shard with the rows of all, in order."""
    shards = [shard.without_padding() for shard in shards]
    return Shard(
        torch.cat([s.X for s in shards]),
        torch.cat([s.y for s in shards]),
        torch.cat([s.rows for s in shards]),
    )


def _all_finite(values: Tensor) -> bool:
    # A finite sum needs no second look, nor the memory for one.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def _repeat_first(X: Tensor, n: int) -> Tensor:
    # Padding repeats a real row: any kernel is defined there, and its values are masked out.
    return torch.cat([X, X[:1].expand(n - len(X), -1)])


def _padded(values: Tensor, n: int, fill: float) -> Tensor:
    """The values with `fill` appended along their first dimension, up to n."""
    if len(values) == n:
        return values
    return torch.cat([values, values.new_full((n - len(values), *values.shape[1:]), fill)])


def _padded_mask(shard: Shard, n: int) -> Tensor:
    mask = shard.mask
    if mask is None:
        mask = torch.ones(shard.n, dtype=torch.bool, device=shard.X.device)
    return _padded(mask, n, False)
