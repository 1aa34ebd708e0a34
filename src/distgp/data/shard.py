"""A shard: the rows that one expert sees. A whole data set is a shard that holds all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

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
    weight : Tensor of shape (*batch, n), optional
        How many copies each row counts as, positive; one by default.
    noise : Tensor of shape (*batch, n), optional
        The factor of the noise variance σ² in each row, positive; one by default.

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
    weight: Tensor | None = None
    noise: Tensor | None = None

    @staticmethod
    def of(
        X: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        rows: Tensor | None = None,
        weight: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Shard:
        """Build one shard from inputs (n, d) and targets (n,), checked.

        Parameters
        ----------
        X, y : Tensor or ndarray
            Finite floating-point values of one dtype on one device.
        rows : Tensor, optional
            The rows' numbers in the whole data set, 0 … n − 1 by default.
        weight, noise : Tensor, optional
            Copies that each row counts as, and factors of σ², both positive.

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
        return Shard(X, y, rows, None, weight, noise)

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
        return _each(self, lambda values: values[index])

    def without_padding(self) -> Shard:
        """One shard's real rows alone."""
        return self if self.mask is None else replace(self.take(self.mask), mask=None)

    def flatten(self) -> Shard:
        """All rows of a batch as one shard, padding included."""
        k = len(self.batch)
        return _each(self, lambda values: values.flatten(0, k)) if k else self

    def join(self, batch: Shard) -> Shard:
        """A batch whose shards each begin with the rows of this one."""
        return _joined(
            [_each(self, lambda values: values.expand(batch.count, *values.shape)), batch], 1
        )

    def take(self, which: Tensor | slice) -> Shard:
        """The chosen rows, as a shard."""
        at = (*(slice(None) for _ in self.batch), which)
        return _each(self, lambda values: values[at])

    def chunks(self, size: int) -> Iterator[Shard]:
        """Consecutive views of at most `size` rows."""
        return (self.take(slice(start, start + size)) for start in range(0, self.n, size))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Shard:
        """The same shard on another device or in another dtype."""
        return _each(
            self, lambda values: values.to(device, dtype if values.is_floating_point() else None)
        )


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
    n, shards = max(lengths), _completed(shards, "weight", "noise")
    if min(lengths) < n or any(shard.mask is not None for shard in shards):
        shards = [replace(shard, mask=_mask_of(shard)) for shard in shards]

    def padded(name: str, fill: float) -> Any:
        parts = [getattr(shard, name) for shard in shards]
        return None if parts[0] is None else torch.stack([_padded(part, n, fill) for part in parts])

    return Shard(
        X=torch.stack([_repeat_first(shard.X, n) for shard in shards]),
        y=padded("y", 0.0),
        rows=padded("rows", -1),
        mask=padded("mask", False),
        weight=padded("weight", 1.0),
        noise=padded("noise", 1.0),
    )


def unstack(batch: Shard) -> list[Shard]:
    """The shards of a batch, without their padding: the inverse of `stack`."""
    if len(batch.batch) != 1:
        raise ValueError(f"expected a batch of shards, got batch dimensions {tuple(batch.batch)}")
    return [batch[i].without_padding() for i in range(batch.count)]


def concatenate(shards: Sequence[Shard]) -> Shard:
    """One shard with the rows of all, in order."""
    return _joined([shard.without_padding() for shard in shards], 0)


def _each(shard: Shard, change: Callable[[Tensor], Tensor]) -> Shard:
    """The same shard with every one of its tensors changed."""
    given = (getattr(shard, spec.name) for spec in fields(shard))
    return Shard(*(None if v is None else change(v) for v in given))  # pyright: ignore[reportArgumentType]


def _joined(shards: Sequence[Shard], dim: int) -> Shard:
    """Shards one after the other, with one or no leading batch dimension."""
    shards = _completed(shards, "weight", "noise")
    if any(shard.mask is not None for shard in shards):
        shards = [replace(shard, mask=_mask_of(shard)) for shard in shards]

    def cat(name: str) -> Any:
        parts = [getattr(shard, name) for shard in shards]
        return None if parts[0] is None else torch.cat(parts, dim)

    return Shard(*(cat(spec.name) for spec in fields(Shard)))


def _completed(shards: Sequence[Shard], *names: str) -> Sequence[Shard]:
    """The same shards; where one has a weight or a noise, the others get ones."""
    for name in names:
        if any(getattr(shard, name) is not None for shard in shards):
            shards = [
                shard
                if getattr(shard, name) is not None
                else replace(shard, **{name: torch.ones_like(shard.X[..., 0])})
                for shard in shards
            ]
    return shards


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


def _mask_of(shard: Shard) -> Tensor:
    if shard.mask is not None:
        return shard.mask
    return torch.ones(shard.X.shape[:-1], dtype=torch.bool, device=shard.X.device)
