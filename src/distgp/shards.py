"""A shard: the rows that one expert sees. A data set is a shard that holds all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Shard:
    """Inputs X (*batch, n, d), targets y (*batch, n), and which rows of the data set they are.

    Leading batch dimensions hold several shards of equal shape. Ragged shards are padded by
    `stack`; `mask` is then False on the padding, which changes no result. `rows` are the row
    numbers in the whole data set (-1 on padding): random draws are tied to them, so that they do
    not depend on the order of the shards.
    """

    travels_as: ClassVar[str] = "rows"
    X: Tensor
    y: Tensor
    rows: Tensor
    mask: Tensor | None = None

    @staticmethod
    def of(X: Tensor | np.ndarray, y: Tensor | np.ndarray, rows: Tensor | None = None) -> Shard:
        """Build one shard, checked; rows default to 0 … n-1."""
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
        """Rows of the tensors, padding included."""
        return self.X.shape[-2]

    @property
    def d(self) -> int:
        """Number of input columns."""
        return self.X.shape[-1]

    @property
    def batch(self) -> torch.Size:
        """The leading batch dimensions."""
        return self.X.shape[:-2]

    @property
    def sizes(self) -> Tensor:
        """n_i: the number of real rows of each shard, in the dtype of the data."""
        if self.mask is None:
            return self.y.new_full(self.batch, self.n)
        return self.mask.sum(-1).to(self.y.dtype)

    def __getitem__(self, index: int) -> Shard:
        """Shard `index` of a batch, still padded."""
        mask = None if self.mask is None else self.mask[index]
        return Shard(self.X[index], self.y[index], self.rows[index], mask)

    def without_padding(self) -> Shard:
        """One shard's real rows alone."""
        return self if self.mask is None else replace(self.take(self.mask), mask=None)

    def flatten(self) -> Shard:
        """All rows of a batch as one shard, padding included."""
        mask = None if self.mask is None else self.mask.reshape(-1)
        X = self.X.reshape(-1, self.d)
        return Shard(X, self.y.reshape(-1), self.rows.reshape(-1), mask)

    def take_batch(self, which: slice | Tensor) -> Shard:
        """The chosen shards of a batch, as a batch."""
        mask = None if self.mask is None else self.mask[which]
        return Shard(self.X[which], self.y[which], self.rows[which], mask)

    def join(self, batch: Shard) -> Shard:
        """A batch whose shards each begin with the rows of this one."""
        M = batch.batch[0]
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
        mask = None if self.mask is None else self.mask[..., which]
        return Shard(self.X[..., which, :], self.y[..., which], self.rows[..., which], mask)

    def chunks(self, size: int) -> Iterator[Shard]:
        """Consecutive views of at most `size` rows."""
        return (self.take(slice(start, start + size)) for start in range(0, self.n, size))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Shard:
        """The same shard elsewhere."""
        mask = None if self.mask is None else self.mask.to(device)
        X, y = self.X.to(device=device, dtype=dtype), self.y.to(device=device, dtype=dtype)
        return replace(self, X=X, y=y, rows=self.rows.to(device), mask=mask)


def stack(shards: Sequence[Shard]) -> Shard:
    """One batch from shards of any lengths: padded at the end, masked where lengths differ."""
    if not shards:
        raise ValueError("expected at least one shard, got none")
    lengths = [shard.n for shard in shards]
    n = max(lengths)
    mask = None
    if min(lengths) < n or any(shard.mask is not None for shard in shards):
        mask = torch.stack([_padded_mask(shard, n) for shard in shards])
    return Shard(
        X=torch.stack([_pad_rows(shard.X, n) for shard in shards]),
        y=torch.stack([_pad_last(shard.y, n, 0.0) for shard in shards]),
        rows=torch.stack([_pad_last(shard.rows, n, -1) for shard in shards]),
        mask=mask,
    )


def unstack(batch: Shard) -> list[Shard]:
    """The shards of a batch, without their padding: the inverse of `stack`."""
    if len(batch.batch) != 1:
        raise ValueError(f"expected a batch of shards, got batch dimensions {tuple(batch.batch)}")
    return [batch[i].without_padding() for i in range(batch.batch[0])]


def concatenate(shards: Sequence[Shard]) -> Shard:
    """One shard with the rows of all, in order."""
    shards = [shard.without_padding() for shard in shards]
    return Shard(
        torch.cat([s.X for s in shards], -2),
        torch.cat([s.y for s in shards], -1),
        torch.cat([s.rows for s in shards], -1),
    )


def _all_finite(values: Tensor) -> bool:
    # A finite sum needs no second look, nor the memory for one.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def _pad_rows(X: Tensor, n: int) -> Tensor:
    # Repeats a real row: any kernel is defined there, and its values are masked out.
    return torch.cat([X, X[..., :1, :].expand(*X.shape[:-2], n - X.shape[-2], X.shape[-1])], -2)


def _pad_last(values: Tensor, n: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, n - values.shape[-1]), value=fill)


def _padded_mask(shard: Shard, n: int) -> Tensor:
    mask = shard.mask
    if mask is None:
        mask = torch.ones(shard.n, dtype=torch.bool, device=shard.X.device)
    return _pad_last(mask, n, False)
