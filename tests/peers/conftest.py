"""Engines that answer by rote, in processes of their own."""

from dataclasses import replace

import pytest

from tinykit.peers.engines import PEERS, SCRIPTED
from tinykit.peers.process import Place


def scripted(family="scripted", **options):
    return replace(SCRIPTED, family=family, options=options)


@pytest.fixture
def script_peers(monkeypatch):
    """Put scripted engines in the place of all that are known; returns them by name, with their places."""

    def put(**peers):
        for name in list(PEERS):
            monkeypatch.delitem(PEERS, name)
        for name, peer in peers.items():
            monkeypatch.setitem(PEERS, name, peer)
        return dict(peers), {name: Place("") for name in peers}

    return put
