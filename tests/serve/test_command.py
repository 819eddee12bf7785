"""`tinykit serve` as a command: in this process where it does not start, else in one of its own."""

import json
import os
import signal
import subprocess
import sys

import httpx2
import pytest

from tests.serve.serving import TOKEN, official_client
from tests.test_cli import run  # noqa: F401  # a fixture
from tinykit.cli import serve as command
from tinykit.serve import SHARED_AT_ONCE

CHILD = """
import sys
from tests.serve.serving import scripted_session
from tinykit import cli, session
session.TinySession = lambda *arguments, **options: scripted_session()
cli.main(["serve", *sys.argv[1:]])
"""


class Child:
    """The command in a process of its own, on a session without a model."""

    def __init__(self, *arguments, code=CHILD, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )

    def line(self):
        """What it says next; empty once it has ended."""
        return self.process.stdout.readline()

    def end(self, number):
        """Exit code and the rest of both outputs."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


@pytest.fixture
def child():
    """Start it; it is killed if the test fails."""
    children = []

    def start(*arguments, **options):
        children.append(Child(*arguments, **options))
        return children[-1]

    yield start
    for one in children:
        one.process.kill()
        one.process.communicate()


def models(url, token):
    return httpx2.get(f"{url}/models", headers={"Authorization": f"Bearer {token}"}, timeout=120)


unix = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


@unix
def test_new_token_is_printed_once_and_ctrl_c_ends_it(child):
    server = child()
    first, second = server.line(), server.line()
    assert first.startswith("smollm2-135m at http://127.0.0.1:") and first.endswith("/v1, until Ctrl-C.\n")
    url, token = first.split()[2].rstrip(","), second.removeprefix("Token, for this time: ").strip()
    assert (models(url, token).status_code, models(url, token + "x").status_code) == (200, 401)
    assert server.end(signal.SIGINT) == (0, "", "")


@unix
def test_given_token_is_not_printed_and_sigterm_ends_it(child, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    server = child("--json", "--token-file", str(tmp_path / "token"), TINYKIT_TOKEN="another-token-of-mine")
    fields = json.loads(server.line())
    assert set(fields) == {"url", "model"}
    assert models(fields["url"], TOKEN).status_code == 200
    assert models(fields["url"], "another-token-of-mine").status_code == 401
    assert server.end(signal.SIGTERM) == (0, "", "")


@pytest.fixture
def served(monkeypatch):
    """The calls of the server, which does not start."""
    calls = []

    def serve(session, bound, *, token, on_ready, **options):
        calls.append((type(session).__name__, token, options))
        on_ready("http://here/v1")

    monkeypatch.setattr("tinykit.serve.serve", serve)
    return calls


@pytest.mark.parametrize("given", [True, False])
def test_token_as_json(run, served, monkeypatch, given):  # noqa: F811
    if given:
        monkeypatch.setenv("TINYKIT_TOKEN", TOKEN)
    code, out, err = run("serve", "--json", "--port", "0", "--waiting", "3")
    ((kind, token, options),) = served
    fields = {"url": "http://here/v1", "model": "smollm2-135m", **({} if given else {"token": token})}
    assert (code, json.loads(out), err) == (0, fields, "")
    assert (token == TOKEN) is given
    assert options == {"host": "127.0.0.1", "is_remote": False, "at_once": 1, "waiting": 3}
    assert kind == "TinySession"


def test_shared_model_gets_several_requests(run, served):  # noqa: F811
    code, _, _ = run("serve", "--shared", "--port", "0")
    ((kind, _, options),) = served
    assert (code, kind) == (0, "SharedSession") and options["at_once"] == SHARED_AT_ONCE > 1


@pytest.mark.real
@unix
def test_real_model_from_the_command(child, use_real_home):
    server = child("--json", "--offline", code="import sys\nfrom tinykit import cli\ncli.main(['serve', *sys.argv[1:]])",
                   TINYKIT_TOKEN=TOKEN)  # fmt: skip
    served = type("Served", (), json.loads(server.line()))
    assert served.model == "smollm2-135m"  # the chat model of the default title model
    with official_client(served) as client:
        found = client.chat.completions.create(
            model=served.model,
            messages=[{"role": "user", "content": "What is the capital of Australia?"}],
            max_tokens=20,
        )
    assert "Canberra" in found.choices[0].message.content
    assert server.end(signal.SIGTERM)[0] == 0


class TestNotStarted:
    def test_host_that_others_reach(self, run):  # noqa: F811
        code, out, err = run("serve", "--host", "0.0.0.0", "--port", "0")
        assert (code, out) == (2, "")
        assert "can be reached from other machines" in err and "--allow-remote" in err

    def test_bad_token(self, run, monkeypatch):  # noqa: F811
        monkeypatch.setenv("TINYKIT_TOKEN", "short")
        code, _, err = run("serve", "--port", "0")
        assert (code, "one word of 16" in err, "'short'" in err) == (2, True, False)

    def test_model_that_cannot_write(self, run):  # noqa: F811
        code, _, err = run("serve", "--port", "0", "-m", "julia-1")
        assert (code, "cannot write" in err) == (2, True)

    def test_unknown_model(self, run):  # noqa: F811
        code, _, err = run("serve", "--port", "0", "-m", "smolm2-135m")
        assert (code, "Did you mean smollm2-135m" in err) == (3, True)

    @pytest.mark.parametrize("package", ["starlette", "uvicorn"])
    def test_missing_package(self, run, monkeypatch, package):  # noqa: F811
        for name in [one for one in sys.modules if one.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        code, _, err = run("serve", "--port", "0")
        assert code == 6
        assert f"'{package}' is needed for tinykit serve" in err and "pip install 'tinykit[serve]'" in err


@pytest.mark.parametrize(
    ("model", "chosen"),
    [(None, "smollm2-135m"), ("smollm2-135m-titles", "smollm2-135m"), ("qwen3-0.6b", "qwen3-0.6b")],
)
def test_chats_go_to_a_chat_model(model, chosen):
    assert command._chat_model(model, None) == chosen


def test_command_loads_no_server_before_it_runs():
    code = "import sys, tinykit.cli.commands, tinykit.serve, tinykit.serve.access, tinykit.serve.options\n"
    code += "assert not {'starlette', 'uvicorn', 'anyio', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
