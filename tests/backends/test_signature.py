from types import SimpleNamespace

import pytest

from tinykit.backends.signature import StateHints, find_states
from tinykit.errors import UnsupportedModelError


def port(name, *shape, kind="tensor(float)"):
    return SimpleNamespace(name=name, type=kind, shape=list(shape))


IDS = port("input_ids", "batch", "seq", kind="tensor(int64)")


@pytest.mark.parametrize(
    ("past", "present", "shape", "axis"),
    [
        (
            port("past_key_values.0.key", "b", 3, "past_sequence_length", 64),
            port("present.0.key", "b", 3, "total_sequence_length", 64),
            (1, 3, 0, 64),
            2,
        ),
        (port("past_conv.0", "b", 32, 3), port("present_conv.0", "b", 32, 3), (1, 32, 3), None),
        (port("past.2.conv", "b", 32, 2), port("present.2.conv", "b", 32, 2), (1, 32, 2), None),
        (port("past_ssm.1", "b", 4, 8, 16), port("present_ssm.1", "b", 4, 8, 16), (1, 4, 8, 16), None),
    ],
    ids=["kv", "hub_convolution", "genai_convolution", "ssm"],
)
def test_states_of_known_families(past, present, shape, axis):
    (state,) = find_states([IDS, past], [port("logits", "b", "s", 10), present])
    assert (state.past, state.present) == (past.name, present.name)
    assert (state.shape, state.growth_axis) == (shape, axis)


def test_unknown_input_is_named():
    with pytest.raises(UnsupportedModelError, match="'inputs_embeds'.*multimodal"):
        find_states([port("inputs_embeds", "b", "s", 8)], [port("logits", "b", "s", 10)])
    with pytest.raises(UnsupportedModelError, match="'speaker'"):
        find_states([port("speaker", "b")], [port("logits", "b", "s", 10)])


def test_state_of_unknown_size_is_named():
    with pytest.raises(UnsupportedModelError, match="axis 2 .*past_conv.0"):
        find_states([port("past_conv.0", "b", 8, "width")], [port("present_conv.0", "b", 8, "width")])


def test_state_of_unknown_type_is_named():
    past, present = port("past_conv.0", "b", 8, kind="tensor(bfloat16)"), port("present_conv.0", "b", 8)
    with pytest.raises(UnsupportedModelError, match="bfloat16"):
        find_states([past], [present])


KEY = port("past_key_values.0.key", "b", 2, "past_sliding_length", "kv_cache_dim")
PRESENT = port("present.0.key", "b", 2, "total_sliding_length", "kv_cache_dim")


def test_configuration_gives_the_size_of_symbolic_heads():
    (state,) = find_states([KEY], [PRESENT], StateHints({"kv_cache_dim": 32}))
    assert (state.shape, state.growth_axis) == ((1, 2, 0, 32), 2)


def test_ring_buffer_has_a_fixed_size():
    hints = StateHints({"kv_cache_dim": 32}, windows={"past_key_values.0.key": 16})
    (state,) = find_states([KEY], [PRESENT], hints)
    assert (state.shape, state.growth_axis) == ((1, 2, 16, 32), None)


def test_configuration_names_the_output_of_a_state():
    past, present = port("memory.0", "b", 4), port("next_memory.0", "b", 4)
    (state,) = find_states([past], [present], StateHints(presents={"memory.0": "next_memory.0"}))
    assert (state.past, state.present) == ("memory.0", "next_memory.0")
