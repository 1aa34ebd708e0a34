"""Index sets, coefficients and points, against closed formulas and plain enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch

from distgp.sparsegrid import (
    Box,
    SparseGrid,
    axis,
    axis_size,
    combination_coefficients,
    grid,
    index_set,
    number_of_grids,
    number_of_points,
    sparse_grid,
)

SIZES = [(level, d) for d in range(1, 7) for level in range(1, 9)]


@pytest.mark.parametrize(("level", "d"), SIZES)
def test_index_set_and_coefficients(level, d):
    levels = index_set(level, d)
    b = sum(math.comb(level + d - 2 - q, d - 1) for q in range(d) if level + d - 2 - q >= 0)
    assert len(levels) == b == number_of_grids(level, d)
    if d <= 4:  # by going through all
        every = itertools.product(range(1, level + d), repeat=d)
        wanted = {l for l in every if level <= sum(l) <= level + d - 1}
        assert set(map(tuple, levels.tolist())) == wanted
    coefficients = combination_coefficients(levels, level)
    assert float(coefficients.sum()) == 1.0


@pytest.mark.parametrize("boundary", [False, True])
def test_axis(boundary):
    for level in range(1, 6):
        points = axis(level, boundary)
        low, high = (0, 2**level + 1) if boundary else (1, 2**level)
        assert sorted(points.tolist()) == [i / 2**level for i in range(low, high)]
        assert len(points) == axis_size(level, boundary)
        if level > 1:  # lower levels come first
            below = axis(level - 1, boundary)
            assert torch.equal(points[: len(below)], below)


@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize(("level", "d"), [(1, 1), (4, 1), (1, 3), (3, 2), (5, 2), (3, 3), (2, 5)])
def test_points(level, d, boundary):
    box = Box.of([(-1.0 - j, 2.0 * (j + 1)) for j in range(d)], d)
    made = SparseGrid.of(level, d, boundary)
    points = made.points(box)
    if not boundary:
        formula = sum(2**i * math.comb(d - 1 + i, d - 1) for i in range(level))
        assert len(points) == formula
    assert len(points) == number_of_points(level, d, boundary) == len(torch.unique(points, dim=0))
    assert torch.equal(points, sparse_grid(level, box, boundary))
    union = torch.cat([grid(l, box, boundary) for l in made.levels.tolist()])
    assert torch.equal(torch.unique(union, dim=0), torch.unique(points, dim=0))
    for l, own in zip(made.levels.tolist(), made.members, strict=True):
        wanted = torch.unique(grid(l, box, boundary), dim=0)
        assert torch.equal(torch.unique(points[own], dim=0), wanted) and len(own) == len(wanted)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="level ≥ 1"):
        index_set(0, 2)
    with pytest.raises(ValueError, match="lower < upper"):
        Box.of((1.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        Box.of([(0, 1)], 3)
    with pytest.raises(ValueError, match="needs 2 levels"):
        grid((1, 2, 3), Box.of((0, 1), 2))


def test_the_sparse_grid_as_one_grid_stays_where_it_is():
    moved = SparseGrid.of(3, 2).to("meta").whole()
    tensors = (moved.positions, moved.levels, moved.coefficients, *moved.members)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    here = SparseGrid.of(3, 2).whole()
    assert here.coefficients.tolist() == [1.0] and here.levels.tolist() == [[0, 0]]
    assert here.members[0].tolist() == list(range(len(here.positions)))


def test_a_box_around_rows_is_their_range_and_never_flat():
    X = np.array([[1.0, 7.0], [3.0, 7.0], [-2.0, 7.0]], dtype=np.float32)
    box = Box.around(X)
    assert box.lower.tolist() == [-2.0, 6.5] and box.upper.tolist() == [3.0, 7.5]
    assert box.lower.dtype == box.upper.dtype == torch.float64
