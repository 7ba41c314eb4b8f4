"""Nested values are taken apart and joined so that the result is the whole batch's."""

import collections
import dataclasses

import pytest
import torch

from surefoot import _tree

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple = ()
    name: str = "x"


class ModelOutput(collections.OrderedDict):
    """As Hugging Face's: a dict with attributes."""

    __getattr__ = collections.OrderedDict.__getitem__


def nested(rows):
    return {
        "pair": Pair(rows, rows * 2),
        "list": [rows.unsqueeze(1), "text", None],
        "data": Output(rows + 1, (rows,)),
        "output": ModelOutput(last=rows),
    }


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
        return
    assert type(a) is type(b)
    a_children, b_children = _tree._children(a), _tree._children(b)
    assert [k for k, _ in a_children] == [k for k, _ in b_children]
    if not a_children:
        assert a == b
    for (_, x), (_, y) in zip(a_children, b_children):
        assert_same(x, y)


@pytest.mark.parametrize("cuts", [[0, 7], [0, 4, 7], [0, 1, 3, 5, 7]])
def test_parts_join_to_the_whole(cuts):
    whole = nested(torch.arange(7.0))
    ranges = list(zip(cuts, cuts[1:]))
    parts = [_tree.narrow(whole, 0, start, stop, 7) for start, stop in ranges]
    assert_same(_tree.join(parts, [stop - start for start, stop in ranges]), whole)


def test_a_tensor_of_another_size_is_passed_whole():
    mask = torch.ones(3, 3)
    part = _tree.narrow((torch.arange(8), mask), 0, 2, 4, 8)
    assert part[0].tolist() == [2, 3] and part[1] is mask


def test_another_dimension_is_split_and_joined():
    x = torch.arange(12).reshape(3, 4)
    parts = [_tree.narrow(x, 1, 0, 3, 4), _tree.narrow(x, 1, 3, 4, 4)]
    assert torch.equal(_tree.join(parts, [3, 1], 1), x)


def test_lists_with_an_entry_a_sample_are_joined_in_order():
    assert _tree.join([["a", "b"], ["c"]], [2, 1]) == ["a", "b", "c"]


def test_a_number_that_differs_between_parts_says_what_to_do():
    with pytest.raises(TypeError, match="combine="):
        _tree.join([torch.tensor(1.0), torch.tensor(2.0)], [4, 4])
    with pytest.raises(TypeError, match=r"\['loss'\] is a float.*combine="):
        _tree.join([{"loss": 1.0}, {"loss": 2.0}], [4, 4])
    assert _tree.join([{"classes": 10}, {"classes": 10}], [4, 4]) == {"classes": 10}


def test_samples_are_the_first_tensors():
    assert _tree.samples(("x", {"a": torch.ones(5, 2)}, torch.ones(3))) == 5
    assert _tree.samples(("x", torch.tensor(1.0))) is None
