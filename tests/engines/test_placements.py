"""What holds of the placements of every engine."""

import numpy as np
import pytest
import torch
from on_workers import Numbers, fails, kept, plus, tail, total

from distgp.engines import LocalEngine, LocalPlacement


@pytest.fixture(params=["local", "ray"])
def placement(request):
    engine = LocalEngine() if request.param == "local" else request.getfixturevalue("engine")
    return engine.scatter([Numbers(0.0), Numbers(10.0)], ["shard 0", "shard 1"])


def lists(results):
    return [result.tolist() for result in results]


def test_functions_come_to_the_items_in_order(placement):
    assert len(placement) == 2
    assert lists(placement.map(plus)) == [[0, 1, 2], [10, 11, 12]]
    assert lists(placement.map(plus, 1, torch.ones(3))) == [[2, 3, 4], [12, 13, 14]]
    assert placement.on_first(plus, 5).tolist() == [5, 6, 7]


def test_each_item_gets_its_own_last_argument(placement):
    assert placement.map(tail, "all", each=["a", "b"]) == [("all", ("a",)), ("all", ("b",))]
    assert placement.map(tail, each=["a", "b"]) == [("a", ()), ("b", ())]
    assert placement.map(tail, "all", each=[(1, 2), None]) == [("all", ((1, 2),)), ("all", (None,))]
    with pytest.raises(ValueError, match="shorter"):
        placement.map(plus, each=[1])
    with pytest.raises(ValueError, match="longer"):
        placement.derive(plus, each=[1, 2, 3])


def test_what_is_derived_stays_beside_its_item(placement):
    more = placement.derive(plus, 1, each=np.array([100.0, 200.0]))
    again = more.derive(plus, each=[torch.zeros(50_000, 3), torch.ones(50_000, 3)])
    assert lists(placement.map(plus)) == [[0, 1, 2], [10, 11, 12]], "an item was changed"
    assert lists(more.map(plus)) == [[101, 102, 103], [211, 212, 213]]
    assert again.map(total) == [50_000 * 3 * 102, 50_000 * 3 * 213]
    del more
    assert again.map(total) == [50_000 * 3 * 102, 50_000 * 3 * 213]


def test_items_of_which_nothing_is_made_are_left_out(placement):
    one = placement.derive(kept, each=[False, True])
    assert len(one) == 1
    assert lists(one.map(plus, each=[1])) == [[11, 12, 13]]
    assert one.on_first(plus, 2).tolist() == [12, 13, 14]
    none = one.derive(kept, False)
    assert len(none) == 0 and none.map(plus) == [] and none.gather().items == ()


def test_gathered_items_are_in_this_process(placement):
    here = placement.derive(plus, each=[1, 2]).gather()
    assert isinstance(here, LocalPlacement)
    assert lists(here.items) == [[1, 2, 3], [12, 13, 14]]
    assert here.gather() is here


def test_errors_arrive_as_they_were_raised(placement):
    with pytest.raises(ValueError, match="no good rows"):
        placement.map(fails, "no good rows")
    with pytest.raises(ValueError, match="no good rows"):
        placement.derive(fails, "no good rows")
    assert lists(placement.map(plus)) == [[0, 1, 2], [10, 11, 12]]
