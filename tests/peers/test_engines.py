"""The adapters of engines that are installed here, each on the embedded model's weights."""

import sys
from importlib import import_module

import pytest

from tinykit.errors import TinykitError
from tinykit.optional import installed
from tinykit.peers.engines import PEERS, base
from tinykit.peers.files import place
from tinykit.peers.process import EngineProcess, Place
from tinykit.peers.work import FIXED_TOKENS, SHORT, Ask
from tinykit.progress import Progress


def test_shared_and_cut():
    assert (
        base.shared([1, 2, 3], [1, 2, 4]) == 2 and base.shared([1], [1, 2]) == 1 and base.shared([], [1]) == 0
    )
    assert base.cut("a title</title>", ("</",)) == "a title" and base.cut("a", ()) == "a"


@pytest.mark.parametrize("name", PEERS)
def test_every_engine_has_its_file(name):
    peer = PEERS[name]
    if peer.module == "ours" or all(map(installed, peer.packages)):
        assert hasattr(import_module(f"tinykit.peers.engines.{peer.module}"), "Engine")
    assert peer.family in PEERS and not PEERS[peer.family].only_titles


@pytest.mark.real
def test_our_own_engine_gives_what_the_session_gives(real_session, use_real_home):
    from tinykit.peers.engines.ours import Engine

    engine = Engine(base.Setup("smollm2-135m", 2, 2, {}))
    one = engine.title(SHORT[0], 20, ("</",))
    assert one.text and "<" not in one.text and one.tokens <= 20 and one.ttft_s > 0
    fixed = engine.title(SHORT[6], FIXED_TOKENS, ())  # a title of four words, and then its end
    assert fixed.tokens == FIXED_TOKENS
    assert engine.title(SHORT[0], 20, ("</",)).text == one.text
    together = engine.titles(SHORT[:3], 20, ("</",))
    assert [each.text for each in together] == [engine.title(m, 20, ("</",)).text for m in SHORT[:3]]
    drafting = Engine(base.Setup("smollm2-135m", 2, 1, {"draft": True}))
    assert drafting.title(SHORT[0], 20, ("</",)).text


@pytest.mark.real
@pytest.mark.timeout(1800)  # the weights are converted, once
@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.packages])
def test_another_engine_titles_the_same_prompts(name, use_real_home):
    peer = PEERS[name]
    missing = [package for package in peer.packages if not installed(package)]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    try:
        files = place(peer, sys.executable, sys.executable, Progress(False))
    except TinykitError as error:
        pytest.skip(f"its weights cannot be made here: {error.message}")
    with EngineProcess(name, peer, Place(files), threads=2, batch=2 if peer.can_batch else 1) as process:
        first, second = process.ask(Ask(SHORT[:2]))["answers"]
        assert first["text"] and "</" not in first["text"]
        assert 0 < first["ttft_s"] <= first["total_s"]
        assert first["prompt_tokens"] > 70 and second["prompt_tokens"] > 70
        if not peer.only_titles:
            fixed = process.ask(Ask(SHORT[2:4], FIXED_TOKENS, ()))["answers"]
            assert [one["tokens"] for one in fixed] == [FIXED_TOKENS] * 2
        if peer.can_batch and not peer.only_titles:
            assert len(process.ask(Ask(SHORT[4:7], batch=2))["answers"]) == 3
