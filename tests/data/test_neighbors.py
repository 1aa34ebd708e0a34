"""Exact search: every way of searching finds what a sorted list of all distances has."""

import pytest
import torch
from helpers import FLOAT, close, inputs

from distgp.data import boxes, neighbors, scan
from distgp.data.neighbors import CorrelationNeighbors, Neighbors, without_ties
from distgp.data.shard import row_priority


def naive(X, queries, before, k):
    """Sorted distances of all rows allowed, padded with infinity and -1."""
    square = (queries[:, None, :] - X[None, :, :]).square().sum(-1)
    late = torch.arange(len(X))[None, :] >= before[:, None]
    square = square.masked_fill(late, torch.inf)
    square = torch.nn.functional.pad(square, (0, k), value=torch.inf)
    value, index = square.sort(-1)
    value, index = value[:, :k], index[:, :k]
    return value, torch.where(torch.isfinite(value), index, -1)


def same_distances(square, wanted):
    """Infinite in the same places, and the same elsewhere."""
    found = torch.isfinite(wanted)
    assert torch.equal(found, torch.isfinite(square))
    close(square[found], wanted[found])


@pytest.mark.parametrize("by_tree", [True, False])
@pytest.mark.parametrize(("n", "d", "k"), [(900, 3, 20), (300, 6, 40), (30, 2, 50), (1, 1, 3)])
def test_neighbours_before_every_row_are_those_of_a_sorted_list(monkeypatch, by_tree, n, d, k):
    monkeypatch.setattr(neighbors, "TREE_COLUMNS", 16 if by_tree else 0)
    monkeypatch.setattr(neighbors, "SCANNED_ROWS", 0)
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 7 * n)
    X = inputs(n, d)
    place = torch.arange(n)
    square, index = Neighbors(X).nearest_before(X, place, k)
    wanted, where = naive(X, X, place, k)
    assert torch.equal(index, where)
    same_distances(square, wanted)


@pytest.mark.parametrize("by_tree", [True, False])
def test_neighbours_of_new_points_are_those_of_a_sorted_list(monkeypatch, by_tree):
    monkeypatch.setattr(neighbors, "TREE_COLUMNS", 16 if by_tree else 0)
    monkeypatch.setattr(neighbors, "SCANNED_ROWS", 0)
    X, queries = inputs(700, 4), 1.5 * inputs(50, 4, 1)
    square, index = Neighbors(X).nearest(queries, 25)
    wanted, where = naive(X, queries, torch.full((50,), 700), 25)
    assert torch.equal(index, where)
    close(square, wanted)


@pytest.mark.parametrize(("n", "d", "k"), [(3000, 2, 20), (1500, 6, 40), (700, 1, 5), (600, 3, 90)])
@pytest.mark.parametrize("far", [0.0, 1e4])
def test_boxes_find_what_a_sorted_list_has(monkeypatch, n, d, k, far):
    """Rows in two groups, near each other or far apart; every row is asked for those before it."""
    monkeypatch.setattr(boxes, "BOX", 16)
    monkeypatch.setattr(boxes, "FIRST_BOXES", 2)
    monkeypatch.setattr(boxes, "BOXES_AT_ONCE", 5)
    monkeypatch.setitem(boxes.PAIRS_AT_ONCE, "cpu", 7)
    monkeypatch.setattr(neighbors, "BOXED_ROWS", 128)
    X = inputs(n, d) + far * (torch.arange(n) % 3 == 0)[:, None]
    place = torch.arange(n)
    square, index = Neighbors(X)._box_search(X, place, k)
    wanted, where = naive(X, X, place, k)
    assert torch.equal(index, where)
    same_distances(square, wanted)


@pytest.mark.parametrize(("n", "d", "k"), [(3000, 2, 20), (1500, 6, 40), (700, 1, 5), (600, 3, 90)])
@pytest.mark.parametrize("far", [0.0, 1e4, 1e20])
@pytest.mark.parametrize("again", [2**20, 500])
def test_a_scan_finds_what_a_sorted_list_has(monkeypatch, n, d, k, far, again):
    """A third of the rows may be so far away that float32 cannot tell them apart, or hold them."""
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 50 * n)
    monkeypatch.setattr(scan, "MOST_AGAIN", again)
    X = inputs(n, d) + far * (torch.arange(n) % 3 == 0)[:, None]
    place = torch.arange(n)
    square, index = Neighbors(X)._scan_search(X, place, k)
    wanted, where = naive(X, X, place, k)
    if far < 1e20:  # else rows coincide in float64 too
        assert torch.equal(index, where)
    same_distances(square, wanted)


@pytest.mark.parametrize(("n", "d", "k"), [(900, 2, 20), (600, 12, 40), (700, 1, 5), (90, 3, 85)])
@pytest.mark.parametrize("far", [0.0, 1e3, 1e5, 1e20])
def test_blocks_in_float32_find_what_a_sorted_list_has(monkeypatch, n, d, k, far):
    """A third of the rows may be so far away that float32 cannot tell them apart, or hold them."""
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 50 * n)
    X = inputs(n, d) + far * (torch.arange(n) % 3 == 0)[:, None]
    place = torch.arange(n)
    square, index = Neighbors(X)._block_search(X, place, k, torch.float32)
    wanted, where = naive(X, X, place, k)
    if far < 1e20:  # else rows coincide in float64 too
        assert torch.equal(index, where)
    same_distances(square, wanted)


def test_of_rows_well_apart_hardly_any_is_searched_again_in_float64(monkeypatch):
    X, asked = inputs(3000, 8), []
    search = Neighbors._block_search

    def noted(self, queries, before, k, dtype=torch.float64):
        asked.append((len(queries), dtype))
        return search(self, queries, before, k, dtype)

    monkeypatch.setattr(Neighbors, "_block_search", noted)
    Neighbors(X)._block_search(X, torch.arange(3000), 30, torch.float32)
    assert asked[0] == (3000, torch.float32)
    assert sum(count for count, dtype in asked if dtype == torch.float64) < 30


def test_where_float32_cannot_tell_most_rows_apart_the_other_blocks_are_of_float64(monkeypatch):
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 10_000)
    X, found, hidden = inputs(2000, 1), [], neighbors._hidden
    X += 1e5 * (torch.arange(2000) % 2)[:, None]
    monkeypatch.setattr(neighbors, "_hidden", lambda *of: found.append(hidden(*of)) or found[-1])
    limit = torch.full((200,), 2000)
    points = X[1:400:2]  # far from the rows' middle
    _, index = Neighbors(X)._block_search(points, limit, 20, torch.float32)
    assert torch.equal(index, naive(X, points, limit, 20)[1])
    assert all(of.all() for of in found)
    assert 1 <= len(found) <= 4, "of 20 blocks, some at the same time"


def test_a_scan_gives_up_where_very_many_rows_are_as_near(monkeypatch):
    X, limit = without_ties(inputs(5, 3).repeat(400, 1), row_priority(torch.arange(2000), 0)), 2000
    found = scan.Scan.of(X).nearest(X[:10], torch.full((10,), limit), 7)
    assert found is not None and torch.equal(
        found[1], naive(X, X[:10], torch.full((10,), limit), 7)[1]
    )
    monkeypatch.setattr(scan, "MOST_AGAIN", 8 * 400 * 3 - 1)
    assert scan.Scan.of(X).nearest(X[:10], torch.full((10,), limit), 7) is None


@pytest.mark.parametrize("scale", [1e-19, 1e-20, 1e-22, 1e-30])
@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_a_scan_finds_rows_that_are_too_near_for_float32(scale, beside):
    """Their squares are nothing in float32; so they are where others are far away too."""
    X, limit = scale * inputs(400, 3), torch.full((20,), 400)
    X[20:100] += beside
    square, index = Neighbors(X)._scan_search(X[:20], limit, 6)
    wanted, where = naive(X, X[:20], limit, 6)
    assert torch.equal(index, where)
    close(square / scale**2, wanted / scale**2)


@pytest.mark.parametrize("d", [3, 17])
def test_after_a_crowded_block_a_tree_searches_the_others(monkeypatch, d):
    """Not every block is scanned in vain; where there are too many columns for a tree, they are."""
    priority = row_priority(torch.arange(2000), 0)
    X, limit = without_ties(inputs(5, d).repeat(400, 1), priority), torch.full((2000,), 2000)
    monkeypatch.setattr(scan, "MOST_AGAIN", 8 * 400 * d - 1)
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 10 * 2000)
    scans, nearest = [], scan.Scan.nearest
    monkeypatch.setattr(scan.Scan, "nearest", lambda *given: scans.append(None) or nearest(*given))
    square, _ = Neighbors(X)._scan_search(X, limit, 7)
    close(square, naive(X, X, limit, 7)[0], atol=1e-13)
    assert len(scans) <= torch.get_num_threads() if d == 3 else len(scans) >= 100


@pytest.mark.parametrize(("n", "d", "k"), [(1000, 20, 128), (2000, 100, 30)])
def test_a_scan_of_wide_tables_does_not_give_up(monkeypatch, n, d, k):
    monkeypatch.setattr(Neighbors, "_block_search", None)
    X = inputs(n, d)
    square, _ = Neighbors(X).nearest(X, k)
    wanted, _ = naive(X, X[:100], torch.full((100,), n), k)
    close(square[:100], wanted)


def test_a_scan_of_a_wide_table_reads_it_for_many_queries_at_a_time(monkeypatch):
    """It looks again at the rows of fewer at a time."""
    X, scans, again = inputs(600, 100), [], []
    nearest, look = scan.Scan.nearest, scan.Scan._again
    monkeypatch.setattr(
        scan.Scan, "nearest", lambda *given: scans.append(len(given[1])) or nearest(*given)
    )
    monkeypatch.setattr(
        scan.Scan, "_again", lambda *given: again.append(len(given[1])) or look(*given)
    )
    monkeypatch.setattr(scan, "MOST_AGAIN", 2**17)
    limit = torch.full((300,), 600)
    square, _ = Neighbors(X)._scan_search(X[:300], limit, 30)
    close(square, naive(X, X[:300], limit, 30)[0])
    assert max(scans) == 300
    assert max(again) <= 2**17 // (2 * 30 * 100)
    assert sum(again) == 300


def test_a_scan_of_few_rows_is_preferred_to_a_tree(monkeypatch):
    X = inputs(1200, 3)
    for name in ("_tree_search", "_block_search"):
        monkeypatch.setattr(Neighbors, name, None)
    assert Neighbors(X).nearest(X, 10)[1].shape == (1200, 10)
    with pytest.raises(TypeError):
        Neighbors(X).nearest(X, 9)


@pytest.mark.parametrize("apart", [1e-3, 1e-7])
def test_boxes_with_products_of_fewer_digits(apart):
    """Rows so near each other that products of half the digits would not tell them apart."""
    X = torch.arange(3000, dtype=FLOAT)[:, None] * apart + 5.0 + inputs(3000, 1) * apart / 10
    limit = torch.full((3000,), 3000)
    wanted = naive(X, X, limit, 4)[1]
    assert torch.equal(boxes.nearest_in_boxes(X, X, limit, 4)[1], wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(boxes.nearest_in_boxes(X, X, limit, 4)[1], wanted)


def test_boxes_hold_every_row_once_and_are_small():
    X = inputs(1001, 3)
    found = boxes.Boxes.of(X)
    real = found.index[found.index >= 0]
    assert torch.equal(real.sort().values, torch.arange(1001))
    assert found.index.shape[1] <= boxes.BOX
    inside = X[found.index.clamp_min(0)]
    padded = (found.index < 0)[..., None]
    assert bool(((inside >= found.low[:, None]) | padded).all())
    assert bool(((inside <= found.high[:, None]) | padded).all())


def test_points_with_few_rows_near_them_are_told_apart():
    """The boxes looked at first hold fewer than k rows below the limit: no neighbour is named at all."""
    X = inputs(4000, 2)
    _, index = boxes.nearest_in_boxes(X, X[:10], torch.full((10,), 3), 5)
    assert bool((index == -1).all())


def test_no_rows_and_no_neighbours_are_no_trouble():
    X = inputs(5, 2)
    assert Neighbors(X).nearest(X, 0)[1].shape == (5, 0)
    assert bool((Neighbors(X[:0]).nearest(X, 3)[1] == -1).all())
    assert Neighbors(X).nearest(X[:0], 3)[1].shape == (0, 3)


def test_ties_are_decided_by_the_rows_not_by_the_search(monkeypatch):
    """On a grid with duplicates nearly all distances are tied; any division finds the same rows."""
    grid = torch.cartesian_prod(*[torch.arange(5, dtype=FLOAT)] * 2).repeat(3, 1)
    numbers = torch.arange(len(grid))
    priority = row_priority(numbers, 0)
    moved = without_ties(grid, priority)
    assert float((moved - grid).abs().max()) < 1e-6
    one = numbers[Neighbors(moved).nearest(grid, 8)[1]]
    shuffled = torch.randperm(len(grid), generator=torch.Generator().manual_seed(0))
    other = numbers[shuffled][
        Neighbors(without_ties(grid[shuffled], priority[shuffled])).nearest(grid, 8)[1]
    ]
    assert torch.equal(one, other)
    monkeypatch.setattr(neighbors, "TREE_COLUMNS", 0)
    assert torch.equal(one, numbers[Neighbors(moved).nearest(grid, 8)[1]])


def test_correlations_order_rows_where_there_are_no_coordinates():
    X = inputs(40, 2)
    corr = lambda A, B: (A @ B.mT).abs() / (A.norm(dim=-1)[:, None] * B.norm(dim=-1))  # noqa: E731
    search = CorrelationNeighbors(corr, X, row_priority(torch.arange(40), 0))
    far, index = search.nearest_before(X, torch.arange(40), 5)
    wanted = (1.0 - corr(X, X)).masked_fill(
        torch.arange(40)[None, :] >= torch.arange(40)[:, None], torch.inf
    )
    value, where = wanted.sort(-1)
    value, where = value[:, :5], where[:, :5]
    close(far[torch.isfinite(far)], value[torch.isfinite(value)], atol=1e-8)
    assert torch.equal(index, torch.where(torch.isfinite(value), where, -1))


@pytest.mark.parametrize(("n", "k"), [(1000, 7), (1003, 20), (4999, 1), (50, 40), (50, 50), (9, 0)])
def test_the_smallest_entries_are_those_of_a_sorted_row(n, k):
    values = inputs(12 * n, 1).reshape(12, n).clone()
    values[3, n // 3 :] = torch.inf
    value, place = neighbors.smallest(values, k)
    close(value.sort(-1).values, values.sort(-1).values[:, :k], rtol=0.0, atol=0.0)
    assert torch.equal(values.gather(-1, place), value)
    assert all(len(set(row)) == k for row in place.tolist())


@pytest.mark.parametrize("by_scan", [True, False])
def test_rows_after_all_of_a_block_are_not_looked_at(monkeypatch, by_scan):
    """The widest block of distances is as wide as the last of its queries' places."""
    monkeypatch.setitem(neighbors.BLOCK, "cpu", 5 * 400 if by_scan else 10 * 400)
    X, shapes = inputs(400, 3), []
    smallest, products = neighbors.smallest, scan.Scan._products

    def noted(block):
        shapes.append(tuple(block.shape))
        return block

    monkeypatch.setattr(neighbors, "smallest", lambda v, k: smallest(noted(v), k))
    monkeypatch.setattr(scan.Scan, "_products", lambda *given: noted(products(*given)))
    before = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    search = Neighbors(X)
    _, index = (search._scan_search if by_scan else search._block_search)(X, before, 5)
    assert torch.equal(index, naive(X, X, before, 5)[1])
    assert sum(rows for rows, _ in shapes) == 400
    assert max(rows * width for rows, width in shapes) <= 10 * 400
    assert sum(rows * width for rows, width in shapes) < 0.6 * 400 * 400
