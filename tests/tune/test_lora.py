import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra tune)")

from tinykit.tune.lora import LoraLinear  # noqa: E402


def sample(rows=(6, 4), tokens=5, inputs=7, rank=3):
    torch.manual_seed(0)
    x = torch.randn(tokens, inputs, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(sum(rows), inputs, dtype=torch.float64)
    pairs = []
    for count in rows:
        pairs.append(torch.randn(rank, inputs, dtype=torch.float64, requires_grad=True))
        pairs.append(torch.randn(count, rank, dtype=torch.float64, requires_grad=True))
    return x, weight, pairs


def plain(x, weight, scale, *pairs):
    """The textbook formula, for autograd to differentiate."""
    low_rank = [scale * (x @ a.T) @ b.T for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    return x @ weight.T + torch.cat(low_rank, 1)


@pytest.mark.parametrize("rows", [(6,), (6, 4), (3, 2, 2)], ids=str)
def test_output_and_gradients_are_those_of_the_plain_formula(rows):
    x, weight, pairs = sample(rows)
    ours, theirs = LoraLinear.apply(x, weight, 0.7, *pairs), plain(x, weight, 0.7, *pairs)
    torch.testing.assert_close(ours, theirs)
    mix = torch.randn_like(ours)
    wanted = [x, *pairs]
    for got, expected in zip(
        torch.autograd.grad((ours * mix).sum(), wanted),
        torch.autograd.grad((theirs * mix).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_gradient_of_the_input_is_left_out_where_nobody_wants_it():
    x, weight, pairs = sample()
    y = LoraLinear.apply(x.detach(), weight, 2.0, *pairs)
    gradients = torch.autograd.grad(y.sum(), pairs)
    expected = torch.autograd.grad(plain(x.detach(), weight, 2.0, *pairs).sum(), pairs)
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_numeric_gradient():
    x, weight, pairs = sample()
    assert torch.autograd.gradcheck(
        lambda *tensors: LoraLinear.apply(tensors[0], weight, 0.5, *tensors[1:]), (x, *pairs)
    )
