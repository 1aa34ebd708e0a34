"""Numbers of grids and points, and what they cost, against plain enumeration."""

import math

import pytest

from distgp.sparsegrid import Cost, SparseGrid, highest_level, number_of_grids, number_of_points


def test_cost_needs_no_enumeration():
    cost = Cost.of(1000, 3, 4, "opticom")
    made = SparseGrid.of(4, 3)
    sizes = [len(own) for own in made.members]
    assert cost.grids == len(sizes) and cost.largest == max(sizes)
    assert list(cost.points.values()) == sizes and cost.union == len(made.positions)
    work = 2 * 1000 * sum(m**2 for m in sizes)
    assert work <= cost.flops <= 3 * work
    huge = Cost.of(10**9, 20, 15, "opticom")
    assert huge.grids == number_of_grids(15, 20) > 10**8
    with pytest.raises(MemoryError, match="lower the level"):
        huge.refuse_above(2**40)
    with pytest.raises(ValueError, match="too many to list"):
        _ = huge.points


@pytest.mark.parametrize(("level", "d"), [(1, 2000), (600, 2), (40, 60)])
def test_sizes_beyond_all_measure_are_told_at_once(level, d):
    cost = Cost.of(100, d, level, "opticom")
    assert f"level {level} in {d} columns" in str(cost)
    assert cost.union == sum(2**i * math.comb(d - 1 + i, d - 1) for i in range(level))
    if level > 1:
        with pytest.raises(MemoryError, match=r"10\^\d+ GiB"):
            cost.refuse_above(2**40)


@pytest.mark.parametrize("boundary", [False, True])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_highest_level_is_the_last_that_fits(d, boundary):
    for points in (1, 17, 1024):
        level = highest_level(points, d, boundary)
        assert level == 1 or number_of_points(level, d, boundary) <= points
        assert number_of_points(level + 1, d, boundary) > points
