# ruff: noqa: E402
"""Pieces and threads change nothing but the time that a step takes."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGLD, pieces
from sghmc.torch import normals as blocks
from sghmc.torch.normals import Normals
from torch_cases import REQUIRED, SAMPLERS, flat, make, network, train


@pytest.fixture
def large(monkeypatch):
    """Every network on a CPU is cut into pieces, as large ones are."""
    monkeypatch.setattr(pieces, "_MAX_CACHED_NUMBERS", 0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_pieces_of_any_size_give_the_same_step(name, monkeypatch):
    """Without noise, whose order they change; a small network is one piece."""
    found = []
    for size, most in ((1 << 16, 0), (5, 0), (1 << 16, 1 << 20)):
        monkeypatch.setattr(pieces, "_MAX_CPU_PIECE_NUMBERS", size)
        monkeypatch.setattr(pieces, "_MAX_CACHED_NUMBERS", most)
        model = network()
        sampler = make(name, model, temperature=0.0)
        train(model, sampler, 3)
        (plan,) = sampler._plans.values()
        assert (len(plan.pieces) == 1) == (size > 5)
        assert plan.pieces[0].is_fused == (most > 0)
        found.append(flat(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["pieces", "one piece"])
@pytest.mark.parametrize("size", [1, 100, 70_000, 1_000_000])
def test_pieces_cover_all_entries_once(size, most, monkeypatch):
    monkeypatch.setattr(pieces, "_MAX_CACHED_NUMBERS", most)
    positions = [torch.zeros(size), torch.zeros(3, 5), torch.zeros(0)]
    states = [{} for _ in positions]
    for piece in pieces.cut(positions, states, Normals(0)).pieces:
        assert most or sum(part.size for part in piece.parts) <= 1 << 16
        for position in piece.positions:
            position.add_(1)
    assert all(torch.all(position == 1) for position in positions)


def test_types_have_pieces_of_their_own():
    positions = [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(0)]
    first, second = pieces.cut(positions, [{}, {}, {}], Normals(0)).pieces
    assert [each.dtype for each in first.normals()] == [torch.float32] * 2
    (drawn,) = second.normals()
    assert drawn.dtype == torch.float64
    assert not torch.any(drawn.float() == drawn)  # numbers of single precision are too few


def test_steps_have_numbers_of_their_own():
    """Over several blocks, with two pieces that take turns, and one that makes the block grow."""
    normals = Normals(0)
    sizes = (torch.zeros(7, 3, dtype=torch.float64), torch.zeros(11, dtype=torch.float64))
    small, other = (pieces.cut([each], [{}], normals).pieces[0] for each in sizes)
    large = pieces.cut([torch.zeros(5_000, dtype=torch.float64)], [{}], normals).pieces[0]
    drawn = []
    for turn in range(200):
        each = (small, other, large)[turn % 3 if turn > 100 else turn % 2]
        drawn += [numbers.flatten().clone() for numbers in each.normals()]
    assert [len(numbers) for numbers in drawn[:3]] == [21, 11, 21]
    found = torch.cat(drawn)
    assert len(torch.unique(found)) == len(found)
    assert abs(found.std() - 1) < 5 / (2 * len(found)) ** 0.5


def test_a_block_that_grew_has_numbers_of_its_own(monkeypatch):
    """A piece that comes back to the start of a block sees the new one there."""
    monkeypatch.setattr(blocks, "_MAX_BLOCK_STEPS", 4)
    normals = Normals(0)
    small, large = (
        pieces.cut([torch.zeros(size, dtype=torch.float64)], [{}], normals).pieces[0]
        for size in (21, 500)
    )
    turns = [small, large, *[small] * 100]
    found = torch.cat([each.normals()[0].clone() for each in turns])
    assert len(torch.unique(found)) == len(found)


def moved(num_threads: int):
    torch.set_num_threads(num_threads)
    theta = torch.zeros(300_000, requires_grad=True)
    sampler = SGLD([theta], 0.5, prior=None, **REQUIRED)
    for _ in range(2):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
    return theta.detach()


def test_threads_change_nothing(large):
    before = torch.get_num_threads()
    try:
        one, three = moved(1), moved(3)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)
    assert len(torch.unique(one)) > 290_000  # every piece has numbers of its own


def test_an_error_in_a_thread_is_an_error(large):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    plan = pieces.cut([torch.zeros(200_000)], [{}], Normals(0))

    def work(piece):
        if piece is plan.pieces[-1]:
            raise ArithmeticError

    try:
        with pytest.raises(ArithmeticError):
            plan.run(work)
    finally:
        torch.set_num_threads(before)


def test_parameters_in_any_order_of_memory():
    """Channels last, and a transposed view: the same step, and noise for every entry."""
    weight = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        param = weight.clone(memory_format=layout).requires_grad_()
        view = torch.ones(40, 30).T.requires_grad_()
        sampler = SGLD([param, view], 0.5, temperature=0.0, prior=None, **REQUIRED)
        for each in (param, view):
            each.grad = torch.full_like(each, 0.01)
        sampler.step()
        found.append(param.detach())
        torch.testing.assert_close(view.detach(), torch.full((30, 40), 0.8))
        sampler.param_groups[0]["temperature"] = 1.0
        sampler.step()
        assert len(torch.unique(view.detach())) >= 1198  # in single precision two may be equal
    torch.testing.assert_close(*found)
