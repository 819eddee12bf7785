import pytest

from tinykit.peers import bystanders
from tinykit.peers.bystanders import Reading

STAT = "cpu  100 20 30 4000 500 1 2 3 0 0\ncpu0 50 10 15 2000 250 0 1 1 0 0\n"


def test_used_seconds_are_all_but_idle_and_waiting():
    assert bystanders.used_seconds(STAT, 100) == pytest.approx(1.56)


def test_share_is_what_others_used_of_all_cores():
    before, after = Reading(10.0, 100.0, 5.0), Reading(20.0, 112.0, 13.0)
    assert bystanders.share(before, after, cores=2) == pytest.approx(0.2)  # 12 s used, 8 our own, of 20
    assert bystanders.share(before, Reading(20.0, 107.0, 13.0), 2) == 0.0  # clocks tick coarsely


def test_share_is_unknown_where_the_system_hides_it():
    assert bystanders.share(Reading(0, None, 0), Reading(1, 5.0, 0), 2) is None
    assert bystanders.share(Reading(1, 5.0, 0), Reading(1, 5.0, 0), 2) is None


def test_without_the_clocks_the_load_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(bystanders, "_STAT", tmp_path / "none")
    monkeypatch.setattr(bystanders.os, "getloadavg", lambda: (1.0, 9.0, 9.0), raising=False)
    monkeypatch.setattr(bystanders.os, "cpu_count", lambda: 4)
    assert bystanders.current_share() == 0.25
    monkeypatch.delattr(bystanders.os, "getloadavg")
    assert bystanders.current_share() is None
