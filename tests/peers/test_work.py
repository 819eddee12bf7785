import pytest

from tinykit.peers.work import MODES, SHORT, Ask, batch_messages, half, long_messages, prompt_text
from tinykit.tokenizer import Message


@pytest.mark.parametrize("number", range(4))
def test_a_process_sees_no_message_twice(number):
    nat, fixed = (half(SHORT, mode, number) for mode in MODES)
    assert sorted(nat + fixed) == list(range(len(SHORT)))


def test_two_rounds_ask_all_messages_in_both_ways():
    for mode in MODES:
        assert sorted(half(SHORT, mode, 0) + half(SHORT, mode, 1)) == list(range(len(SHORT)))


def test_messages_differ_and_long_ones_are_cut():
    for messages in (SHORT, long_messages(20), batch_messages(64)):
        assert len(set(messages)) == len(messages)
        assert max(map(len, messages)) <= 2000
    assert len(long_messages(20)) == 20 and len(batch_messages(64)) == 64


def test_fixed_tokens_have_no_stop():
    assert Ask.of(("a",), "nat").stop and Ask.of(("a",), "nat").max_tokens == 20
    assert Ask.of(("a",), "fix8") == Ask(("a",), 8, ())


@pytest.mark.real
def test_the_prompt_is_that_of_the_models_own_template(real_session):
    from tinykit.peers.work import PREFILL, SYSTEM

    tokenizer = real_session.load().engine.tokenizer
    for message in (*SHORT, *long_messages(20)):
        ours = tokenizer.encode_chat([Message("system", SYSTEM), Message("user", message)], prefill=PREFILL)
        assert tokenizer._raw.decode(ours, skip_special_tokens=False) == prompt_text(message)
