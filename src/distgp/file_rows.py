"""Rows in Parquet files, as a fit takes them: a sample of them, or all of them, where workers read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from distgp.data import moments, parquet
from distgp.data import shard as sample
from distgp.data.encoding import Columns
from distgp.data.repeats import copies_among, copies_within, hashes
from distgp.data.rows import Rows, Schema
from distgp.data.scaling import MANY
from distgp.data.shard import Shard
from distgp.engines import Engine, Placement, opened
from distgp.likelihoods.transforms import Transform
from distgp.pipeline import Placed
from distgp.plan import Plan


class Sample(NamedTuple):
    """Rows of files in this process, and their numbers, in ascending order.

    `copies` tells how many rows of the files have the inputs of each, itself among them.
    """

    rows: Rows
    numbers: np.ndarray
    copies: np.ndarray

    def left_out(self, held: np.ndarray) -> parquet.LeftOut:
        """Tell which rows of the files are left out with those `held`, a mask of the sample.

        With them go their copies elsewhere in the files, but not of rows whose copies stay in the sample.
        """
        known, more = hashes(self.rows.X), self.copies - copies_within(self.rows.X)
        with_copies = held & (more > 0) & ~np.isin(known, known[~held])
        inputs, first = np.unique(known[with_copies], return_index=True)
        return parquet.LeftOut(self.numbers[held], inputs, int(more[with_copies][first].sum()))


@dataclass(frozen=True, eq=False)
class FileRows:
    """Rows in Parquet files that workers read by themselves; this process never holds them.

    `given` names the columns of what `fit` takes for each row.
    """

    files: parquet.ParquetRows
    target: str
    columns: Mapping[str, Any]
    missing: str
    given: Mapping[str, str]
    left_out: parquet.LeftOut = parquet.ALL_ROWS

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.files.n - self.left_out.total

    def sample(self, plan: Plan, size: int, last: int = 0) -> Sample:
        """Draw a sample of the rows into this process, and all of the `last` rows."""
        engine = opened(plan.engine, plan.device)
        stretches, columns = self._stretches(engine, min(engine.workers, self.files.n))
        shards = self._read(stretches, columns, plan.seed)
        some = sample.drawn(shards, size, plan.seed)
        if last:
            end = sample.drawn(shards.derive(_rows_from, self.files.n - last), last, plan.seed)
            some = sample.concatenate([some.take(some.rows < self.files.n - last), end])
        some = some.take(some.rows.argsort())
        X, y, order = (value.cpu().numpy() for value in (some.X, some.y, some.rows))
        weight, noise = (None if v is None else v.cpu().numpy() for v in (some.weight, some.noise))
        known = {"time": order if plan.validation == "last" else None}
        for kind in self.given.keys() & {"time", "groups"}:
            known[kind] = parquet.values_of(stretches, self.given[kind], order)
        rows = Rows(X, y, Schema.of(columns), weight, noise, **known)
        return Sample(rows, order, copies_among(shards, X))

    def place(self, plan: Plan, transform: Transform | None = None) -> tuple[Plan, Placed]:
        """Let every worker read its rows, and transform and standardise them there."""
        engine = opened(plan.engine, plan.device)
        M = plan.number_of_experts(self.n, engine.workers)
        stretches, columns = self._stretches(engine, M)
        raw, schema = self._read(stretches, columns, plan.seed), Schema.of(columns)
        plan = replace(plan, schema=schema).settled({})  # now that the columns are known
        if transform is not None:
            raw = raw.derive(_transformed, transform)
        linear, d = plan.mean == "linear", schema.n_features
        scaling = moments.scaling_of(raw, plan.normalize, d, schema.blocks, linear)
        positive = self.n >= MANY and moments.never_negative(raw)
        scaling = replace(scaling, latitudes=plan.latitudes, never_negative=positive)
        shards = moments.standardise(raw, scaling, plan.like)
        noise = moments.mean_noise(raw) if "noise_variance" in self.given else None
        return plan, Placed(engine, shards, schema, (scaling,), (transform,), row_noise=noise)

    def _stretches(
        self, engine: Engine, n_experts: int
    ) -> tuple[Placement[parquet.Stretch], Columns]:
        return parquet.place(engine, self.files, n_experts, self.target, **self.columns)

    def _read(
        self, stretches: Placement[parquet.Stretch], columns: Columns, seed: int
    ) -> Placement[Shard]:
        return parquet.read(stretches, columns, self.missing, seed, self.given, self.left_out)


def _rows_from(batch: Shard, number: int) -> Shard:
    """The rows of a batch that have this number or a higher one."""
    rows = batch.flatten().without_padding()
    return rows.take(rows.rows >= number)


def _transformed(batch: Shard, transform: Transform) -> Shard:
    """Transform the targets of rows where they are; those of padding stay 0."""
    real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    y, z = batch.y[real].cpu().numpy(), torch.zeros_like(batch.y)
    transform.check(y)
    z[real] = torch.as_tensor(transform.forward(y)).to(z)
    return replace(batch, y=z)
