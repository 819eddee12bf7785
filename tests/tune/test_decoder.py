import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra tune)")

from tests import tiny_models as tiny  # noqa: E402
from tinykit.convert.importer import open_source  # noqa: E402
from tinykit.tune.batches import LowerStates, batches, collate, summed_loss  # noqa: E402
from tinykit.tune.decoder import Decoder  # noqa: E402
from tinykit.tune.prompts import Example  # noqa: E402

TOKENS = [1, 40, 41, 9, 70, 33, 2, 200, 5]


def decoder_of(path, **options):
    return Decoder(open_source(path), **{"rank": 4, "alpha": 8, **options})


def all_logits(decoder, token_ids, split=3):
    """Logits after each token behind the first `split` ones, which are the prefix."""
    rest = torch.tensor([token_ids[split:]])
    with torch.no_grad():
        prefix = decoder.prefix(token_ids[:split])
        return decoder.upper(decoder.lower(rest, prefix), prefix, torch.arange(rest.shape[1])).numpy()


@pytest.mark.parametrize("first_layer", [0, 1])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_the_textbook(tmp_path, family, tied, first_layer):
    weights = tiny.random_weights(family, tied=tied)
    path = tiny.write_gguf(tmp_path / "tiny.gguf", family, weights)
    found = all_logits(decoder_of(path, first_layer=first_layer), TOKENS)
    np.testing.assert_allclose(found, tiny.reference_logits(weights, TOKENS)[3:], atol=2e-4)


def randomize(decoder, seed=0):
    """Give the adapter's zeros values, so that it changes something."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in decoder.parameters[1::2]:
            tensor.copy_(0.1 * torch.randn(tensor.shape))


def merged(weights, decoder):
    """The weights with the adapter folded in."""
    found = dict(weights)
    for name, (a, b) in decoder.adapter.items():
        found[f"{name}.weight"] = weights[f"{name}.weight"] + decoder.scale * (b @ a).detach().numpy()
    return found


@pytest.mark.parametrize("first_layer", [0, 1])
def test_adapter_changes_the_logits_as_merged_weights_do(gguf, weights, first_layer):
    decoder = decoder_of(gguf, first_layer=first_layer)
    randomize(decoder)
    assert len(decoder.adapter) == 7 * (tiny.LAYERS - first_layer)
    expected = tiny.reference_logits(merged(weights, decoder), TOKENS)[3:]
    np.testing.assert_allclose(all_logits(decoder, TOKENS), expected, atol=2e-4)
    assert not np.allclose(expected, tiny.reference_logits(weights, TOKENS)[3:], atol=0.05)


def test_new_adapter_changes_nothing_and_follows_the_seed(gguf):
    one, same, other = (decoder_of(gguf, seed=seed) for seed in (3, 3, 4))
    assert all(not bool(tensor.any()) for tensor in one.parameters[1::2])
    assert torch.equal(one.parameters[0], same.parameters[0])
    assert not torch.equal(one.parameters[0], other.parameters[0])


EXAMPLES = [
    Example((40, 41, 9), (70, 2)),
    Example((50,), (60, 61, 62, 2)),
    Example((45, 46, 47, 48, 49, 50, 51), (33, 2)),
]


def reference_loss(weights, prefix, example):
    ids = [*prefix, *example.token_ids]
    logits = torch.from_numpy(tiny.reference_logits(weights, ids))[-len(example.answer) :]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(example.answer), reduction="sum"))


@pytest.mark.parametrize("first_layer", [0, 1])
def test_loss_is_that_of_the_answers_alone(gguf, weights, first_layer):
    decoder = decoder_of(gguf, first_layer=first_layer)
    randomize(decoder)
    loss, tokens = summed_loss(decoder, (1, 30, 31), EXAMPLES, LowerStates(decoder))
    expected = sum(reference_loss(merged(weights, decoder), (1, 30, 31), example) for example in EXAMPLES)
    assert tokens == 8
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-3)


def test_gradients_are_those_of_finite_differences(gguf):
    decoder = decoder_of(gguf)
    randomize(decoder)
    loss, _ = summed_loss(decoder, (1, 30), EXAMPLES, LowerStates(decoder))
    gradients = torch.autograd.grad(loss, decoder.parameters)
    for index in (0, 1, 5, 13, 20, 27):
        tensor, gradient = decoder.parameters[index], gradients[index]
        place = np.unravel_index(int(gradient.abs().argmax()), tensor.shape)
        values = []
        for change in (1e-2, -1e-2):
            with torch.no_grad():
                tensor[place] += change
                values.append(float(summed_loss(decoder, (1, 30), EXAMPLES, LowerStates(decoder))[0]))
                tensor[place] -= change
        assert (values[0] - values[1]) / 2e-2 == pytest.approx(float(gradient[place]), rel=0.05)


def test_kept_lower_states_change_nothing(gguf):
    decoder = decoder_of(gguf, first_layer=1)
    kept, none = LowerStates(decoder), LowerStates(decoder, limit_bytes=0)
    first = summed_loss(decoder, (1,), EXAMPLES, kept)[0]
    assert torch.equal(first, summed_loss(decoder, (1,), EXAMPLES, kept)[0])
    assert torch.equal(first, summed_loss(decoder, (1,), EXAMPLES, none)[0])
    assert not none._kept


def test_states_too_large_for_half_precision_stay_whole():
    from tinykit.tune.batches import _rounded

    assert _rounded(torch.tensor([1.0, 7e4])).dtype is torch.float32
    assert _rounded(torch.tensor([1.0, 6e4])).dtype is torch.float16


def test_collate_pads_and_points_at_the_answers():
    batch = collate(EXAMPLES)
    assert batch.token_ids.tolist() == [
        [40, 41, 9, 70, 0, 0, 0, 0],
        [50, 60, 61, 62, 0, 0, 0, 0],
        [45, 46, 47, 48, 49, 50, 51, 33],
    ]
    assert batch.rows.tolist() == [2, 3, 8, 9, 10, 11, 22, 23]
    assert batch.labels.tolist() == [70, 2, 60, 61, 62, 2, 33, 2]


def test_batches_hold_every_example_once_and_follow_seed_and_epoch():
    examples = [Example(tuple(range(i % 50 + 1)), (1,)) for i in range(101)]
    order = batches(examples, 8, seed=1, epoch=0)
    assert sorted(index for batch in order for index in batch) == list(range(101))
    assert order == batches(examples, 8, seed=1, epoch=0)
    assert order != batches(examples, 8, seed=1, epoch=1)
    assert order != batches(examples, 8, seed=2, epoch=0)
    spread = [max(i % 50 for i in batch) - min(i % 50 for i in batch) for batch in order]
    assert sum(spread) / len(spread) < 18
