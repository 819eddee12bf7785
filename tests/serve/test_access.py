import socket
import sys

import pytest

from tinykit.errors import OptionError
from tinykit.serve.access import find_token, is_our_name, is_token, listen

TOKEN = "sixteen-letters!"


class TestToken:
    def test_new_one_is_long_and_another_each_time(self):
        (one, is_new), (other, _) = find_token(), find_token()
        assert is_new and one != other and len(one) >= 40
        assert is_token(f"Bearer {one}".encode(), one)

    def test_file_wins_over_the_variable(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TINYKIT_TOKEN", f" {TOKEN}\n")
        assert find_token() == (TOKEN, False)
        (tmp_path / "token").write_text("another-token-here\n")
        assert find_token(tmp_path / "token") == ("another-token-here", False)
        monkeypatch.setenv("TINYKIT_TOKEN", "  ")
        assert find_token()[1] is True

    @pytest.mark.parametrize(
        "token", ["short", "two words in a row", "ümlaut-token-here", "x" * 5000, "a" * 15]
    )
    def test_bad_token_is_refused_without_being_shown(self, tmp_path, monkeypatch, token):
        (tmp_path / "token").write_text(token)
        monkeypatch.setenv("TINYKIT_TOKEN", token)
        for given in (tmp_path / "token", None):
            with pytest.raises(OptionError, match="one word of 16 to") as caught:
                find_token(given)
            assert token not in str(caught.value)

    def test_file_that_cannot_be_read(self, tmp_path):
        with pytest.raises(OptionError, match=r"absent cannot be read: No such file"):
            find_token(tmp_path / "absent")
        (tmp_path / "binary").write_bytes(b"\xff" * 20)
        with pytest.raises(OptionError, match="it is no text"):
            find_token(tmp_path / "binary")

    @pytest.mark.parametrize(
        ("header", "is_right"),
        [
            (f"Bearer {TOKEN}", True), (f"bearer  {TOKEN} ", True), (f"Bearer {TOKEN}x", False),
            (f"Bearer {TOKEN[:-1]}", False), (TOKEN, False), ("Bearer", False), ("Bearer \xff", False),
            ("", False),
        ],
    )  # fmt: skip
    def test_header(self, header, is_right):
        assert is_token(header.encode("latin-1"), TOKEN) is is_right
        assert not is_token(None, TOKEN)


class TestListen:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_loopback(self, host):
        with listen(host, 0) as bound:
            assert bound.getsockname()[0] in ("127.0.0.1", "::1")

    @pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
    def test_other_hosts_need_leave(self, host):
        with pytest.raises(OptionError, match="can be reached from other machines"):
            listen(host, 0)

    def test_other_hosts_with_leave(self):
        with listen("0.0.0.0", 0, allow_remote=True) as bound:
            assert bound.getsockname()[0] == "0.0.0.0"

    def test_host_that_is_none(self):
        with pytest.raises(OptionError, match="There is no host"):
            listen("no host at all", 0)

    @pytest.mark.parametrize("port", [-1, 70_000])
    def test_port_that_is_none(self, port):
        with pytest.raises(OptionError, match="port must be a number from 0 to 65535"):
            listen("127.0.0.1", port)

    def test_port_that_is_taken(self):
        refused = pytest.raises(OptionError, match="Cannot listen at 127.0.0.1, port")
        with socket.create_server(("127.0.0.1", 0)) as other, refused as caught:
            listen("127.0.0.1", other.getsockname()[1])
        assert "--port 0" in caught.value.hint

    @pytest.mark.skipif(sys.platform == "win32", reason="there an address stays taken for a while")
    def test_port_can_be_had_again_at_once(self):
        with listen("127.0.0.1", 0) as bound:
            port = bound.getsockname()[1]
            bound.listen()
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted = bound.accept()[0]
                accepted.close()
                client.recv(1)
        with listen("127.0.0.1", port) as again:
            assert again.getsockname()[1] == port


@pytest.mark.parametrize(
    ("header", "here", "remote"),
    [
        (b"localhost", True, True), (b"LOCALHOST:80", True, True), (b"127.0.0.1:1", True, True),
        (b"[::1]:80", True, True), (b"box.example:80", True, True), (b"10.0.0.7:80", False, True),
        (b"[fe80::1]", False, True), (b"evil.example", False, False), (b"box.example.evil", False, False),
        (b"127.0.0.1.evil.example", False, False), (b"", False, False), (None, False, False),
        (b"[", False, False), (b":80", False, False), (b"\xff", False, False),
    ],
)  # fmt: skip
def test_names_of_ours(header, here, remote):
    assert is_our_name(header, "box.example") is here
    assert is_our_name(header, "box.example", is_remote=True) is remote
