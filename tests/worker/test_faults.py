"""What goes wrong with processes, sockets, disks and clients, each with real processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import PATIENCE_S, is_alive, wait_until
from tinykit import TinySession
from tinykit.errors import RestartNeededError, WorkerDiedError, WorkerError
from tinykit.worker import places, remote, spawning, wire
from tinykit.worker.__main__ import LOST
from tinykit.worker.client import Client, greet
from tinykit.worker.protocol import MAX_FRAME_BYTES, Frames, pack
from tinykit.worker.remote import RemoteModel
from tinykit.worker.spawning import attach, end_worker, is_free, probe, spawn


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def has_hung_up(connection):
    """Whether the other end is gone, without taking anything from this one."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_killed_while_idle_the_next_call_has_another_worker(shared):
    first = shared.complete("a", max_tokens=3)
    pid = shared.worker.pid
    kill(pid)
    assert shared.complete("a", max_tokens=3) == first
    assert shared.worker.pid != pid
    assert not shared.failures


def test_killed_while_loading_it_is_not_tried_again_until_asked(shared, backend, in_thread):
    backend.on("hold-loading")
    call = in_thread(lambda: shared.complete("a", max_tokens=3))
    backend.wait_for("held-loading")
    kill(shared.worker.pid)
    with pytest.raises(WorkerDiedError, match="ended before it answered"):
        call.get()
    backend.off("hold-loading")
    loads = backend.lines("loads")
    for _ in range(3):
        with pytest.raises(WorkerError, match="not started again.*died while it loaded"):
            shared.complete("a", max_tokens=3)
    assert backend.lines("loads") == loads
    assert [run.model for run in shared.failures] == ["tiny"]
    shared.clear_failures()
    assert not shared.failures
    assert shared.complete("a", max_tokens=3).text


def test_killed_while_generating_it_tells_with_the_end_of_the_log_and_goes_on(shared, backend, in_thread):
    expected = shared.complete("a", max_tokens=20)
    for _ in range(2):
        backend.on("hold")
        call = in_thread(lambda: shared.complete("a", max_tokens=20))
        backend.wait_for("held")
        kill(shared.worker.pid)
        with pytest.raises(WorkerDiedError, match=r"(?s)ended before it answered.*loaded tiny") as caught:
            call.get()
        assert "Ask again" in caught.value.hint
        backend.off("hold")
        backend.off("held")
        assert shared.complete("a", max_tokens=20) == expected


def test_model_that_kills_its_worker_is_given_up(shared, backend):
    shared.load()
    backend.on("die")
    for _ in range(3):
        with pytest.raises(WorkerDiedError):
            shared.complete("a", max_tokens=3)
    loads = backend.lines("loads")
    with pytest.raises(WorkerError, match="3 times lately") as caught:
        shared.complete("a", max_tokens=3)
    assert "clear_failures" in caught.value.hint
    assert backend.lines("loads") == loads
    backend.off("die")


def test_killed_with_the_lock_in_hand_it_is_in_nobodys_way(launch):
    lock = launch.path("lock")
    code = f"import filelock; lock = filelock.FileLock({str(lock)!r}); lock.acquire(); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    assert not is_free(launch)
    loser = spawn(launch)
    assert loser.wait(PATIENCE_S) == LOST
    holder.kill()
    holder.communicate(timeout=PATIENCE_S)
    client = attach(launch)
    assert client.tag == launch.tag
    client.close()


def test_of_two_that_start_at_once_one_serves(launch):
    for _ in range(20):
        pair = [spawn(launch), spawn(launch)]
        wait_until(lambda pair=pair: any(one.poll() is not None for one in pair))
        loser, winner = sorted(pair, key=lambda one: one.poll() is None)
        assert loser.returncode == LOST
        assert winner.poll() is None
        wait_until(lambda: (found := probe(launch)) and (found.socket.close() or True))
        winner.kill()
        winner.wait(PATIENCE_S)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_full_disk_for_the_log_does_not_stop_it(shared):
    log = Path(remote.launch_of(shared.spec, shared._load_options).log)
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")
    assert shared.complete("a", max_tokens=3).text
    assert end_worker(shared._remote(shared.spec).launch)


def test_worker_that_left_is_not_asked_again_before_its_end_is_read(shared, monkeypatch):
    may_read, read = threading.Event(), Client._read

    def late(self):
        may_read.wait(PATIENCE_S)
        read(self)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "_read", late)
        client = shared._remote(shared.spec).attach()
    kill(client.pid)
    wait_until(lambda: has_hung_up(client._socket))  # which the last of the process's threads does
    try:
        assert client.is_usable  # as far as it knows
        assert shared.complete("a", max_tokens=3).text
        assert not client.is_usable and shared.worker.pid != client.pid
    finally:
        may_read.set()


def test_stale_socket_is_replaced(shared):
    path = shared._remote(shared.spec).launch.transport.path
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    assert path.exists()
    assert shared.complete("a", max_tokens=3).text
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_worker_of_another_version_is_replaced_once_and_not_again(launch, options):
    old = replace(launch, version="0.0.1")
    assert old.digest == launch.digest and old.tag != launch.tag
    first = attach(old)
    with TinySession(shared=True, lazy=True, **options) as session:
        model = RemoteModel(session.spec, {"backend": "scripted"}, session._progress)
        client = model.attach()
        assert client.tag == launch.tag and client.pid != first.pid
        first.close()
        end_worker(launch)
        other = attach(old)
        wait_until(lambda: not client.is_open)
        with pytest.raises(WorkerError, match=r"another version.*0\.0\.1"):
            model.attach()
        assert is_alive(other.pid)
        other.close()
        model.close()


def raw(launch):
    connection, secret = launch.transport.connect()
    connection.settimeout(PATIENCE_S)
    return connection, secret


def received(connection):
    """The next message that is not about a request's way; one at a time is asked for."""
    frames = Frames()
    while (message := frames.take()) is None or message.get("event") == "accepted":
        data = connection.recv(2**16)
        if not data:
            return None
        frames.feed(data)
    return message


def test_junk_and_oversized_frames_cost_only_their_own_connection(shared, backend):
    expected = shared.complete("a", max_tokens=3)
    launch = shared._remote(shared.spec).launch
    for junk in (
        b"GET / HTTP/1.1\r\n\r\n",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        pack({"op": "titles"}),
        b"\0\0\0\2[]",
    ):
        connection, _ = raw(launch)
        with connection:
            connection.sendall(junk)
            assert "error" in received(connection)
            assert received(connection) is None
    connection, _ = raw(launch)
    with connection:
        connection.sendall(b"\0\0")  # half a length, and then nothing
        assert shared.complete("a", max_tokens=3) == expected
    connection, secret = raw(launch)
    with connection:
        greet(connection, secret)
        connection.sendall(b"\0\0\0\3abc")
        assert "no JSON" in received(connection)["error"]["message"]
        connection.sendall(pack({"id": "x", "op": "__reduce__"}))
        assert received(connection)["error"]["type"] == "OptionError"
        connection.sendall(
            pack({"id": 4, "op": "titles", "params": {"messages": "not a list", "recipe": {}}})
        )
        assert received(connection)["error"]["type"] == "WorkerError"
        connection.sendall(pack({"id": 5, "op": "answer", "params": {"timeout_s": []}}))
        assert received(connection)["error"]["type"] == "WorkerError"
        connection.sendall(pack({"id": 6, "op": "ping"}))  # the same connection goes on
        assert received(connection)["result"]["pid"] == shared.worker.pid
    assert shared.complete("a", max_tokens=3) == expected


def test_client_that_reads_nothing_holds_up_nobody(shared):
    expected = shared.complete("a", max_tokens=30)
    launch = shared._remote(shared.spec).launch
    connection, secret = raw(launch)
    with connection:
        greet(connection, secret)
        for number in range(60):
            connection.sendall(pack({"id": number, "op": "status"}))
        assert shared.complete("a", max_tokens=30) == expected


def test_flood_of_connections_leaves_room_for_those_that_are_there(shared):
    expected = shared.complete("a", max_tokens=3)
    launch = shared._remote(shared.spec).launch
    flood = []
    try:
        for _ in range(230):
            connection, _ = raw(launch)
            flood.append(connection)
        assert received(flood[-1])["error"]["type"] == "BusyError"
        assert shared.complete("a", max_tokens=3) == expected
    finally:
        for connection in flood:
            connection.close()
    wait_until(lambda: shared.worker.clients < 10)


def test_too_many_requests_are_refused_and_the_others_answered(shared, backend):
    shared.load()
    launch = shared._remote(shared.spec).launch
    backend.on("hold")
    connection, secret = raw(launch)
    with connection:
        greet(connection, secret)
        save = {"op": "free_slot", "params": {"slot": "a"}}
        turns = {"turns": [["user", "a"]], "options": wire.options_values(remote_options()), "slot": None}
        connection.sendall(pack({"id": 0, "op": "answer", "params": turns}))
        backend.wait_for("held")
        for number in range(1, 71):
            connection.sendall(pack({**save, "id": number}))
        frames, answers = Frames(), {}

        def read_until(count):
            while len(answers) < count:
                frames.feed(connection.recv(2**16))
                while (message := frames.take()) is not None:
                    if "event" not in message:
                        answers[message["id"]] = message

        read_until(6)
        assert {answer["error"]["type"] for answer in answers.values()} == {"BusyError"}
        backend.off("hold")
        read_until(71)
        assert sum("result" in answer for answer in answers.values()) == 65


def remote_options():
    from tinykit.generation.request import GenerationOptions

    return GenerationOptions(3)


def test_client_that_vanishes_takes_its_work_with_it(shared, backend, model_path):
    shared.load()
    code = f"""
from tinykit import TinySession
session = TinySession({str(model_path)!r}, backend="scripted", shared=True, progress=False)
session.load()
print("ready", flush=True)
session.complete("a", max_tokens=1024)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    backend.on("hold")
    backend.wait_for("held")
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: shared.worker.clients < 3)
    backend.off("hold")
    wait_until(lambda: shared.worker.running == 0)
    assert shared.complete("a", max_tokens=3).finish_reason == "length"


FAKE = """
import filelock, json, signal, sys
from pathlib import Path
from tinykit.worker.launch import Launch
from tinykit.worker.protocol import Frames, pack
signal.signal(signal.SIGTERM, signal.SIG_IGN)
launch = Launch.of_text(sys.argv[1])
lock = filelock.FileLock(launch.path("lock"))
lock.acquire()
listener = launch.transport.listen()
import os
launch.path("pid").write_text(str(os.getpid()))
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    connection.sendall(pack({"id": 0, "result": {"pid": os.getpid(), "tag": {}, "version": 1}}))
    held = connection
"""


def test_worker_that_ignores_everything_is_killed(launch, monkeypatch):
    monkeypatch.setattr(spawning, "LEAVE_S", 0.2)
    fake = subprocess.Popen([sys.executable, "-c", FAKE, launch.text], stdout=subprocess.PIPE, text=True)
    try:
        assert fake.stdout.readline() == "listens\n"
        assert end_worker(launch)
        assert fake.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        fake.kill()
        fake.communicate(timeout=PATIENCE_S)


def test_terminated_worker_ends_cleanly_and_says_so_to_those_who_wait(shared, backend, in_thread):
    shared.load()
    launch = shared._remote(shared.spec).launch
    backend.on("hold")
    call = in_thread(lambda: shared.complete("a", max_tokens=9))
    backend.wait_for("held")
    os.kill(shared.worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerError, match="was ended: SIGTERM"):
        call.get()
    wait_until(lambda: is_free(launch))
    assert not launch.transport.path.exists()
    backend.off("hold")
    assert shared.complete("a", max_tokens=3).text


def test_idle_worker_ends_though_somebody_looks_at_it(shared, monkeypatch):
    monkeypatch.setenv("TINYKIT_WORKER_IDLE_S", "1")
    first = shared.complete("a", max_tokens=3)
    pid, launch = shared.worker.pid, shared._remote(shared.spec).launch
    wait_until(lambda: shared.worker is None)  # asking for its state does not keep it
    wait_until(lambda: not is_alive(pid))
    assert not launch.transport.path.exists() and is_free(launch)
    assert shared.complete("a", max_tokens=3) == first
    assert not shared.failures


def test_poisoned_worker_ends_and_the_next_one_works(shared, backend):
    backend.on("poison")
    with pytest.raises(RestartNeededError, match="poisoned"):
        shared.complete("a", max_tokens=3)
    wait_until(lambda: shared.worker is None)
    backend.off("poison")
    assert shared.complete("a", max_tokens=3).text


def test_worker_whose_socket_was_removed_ends(launch):
    client = attach(launch)
    launch.transport.path.unlink()
    wait_until(lambda: not client.is_open)
    wait_until(lambda: is_free(launch))
    client.close()


def test_worker_that_cannot_start_tells_why(launch):
    Path(launch.folder, f"{launch.digest}.sock").mkdir()
    with pytest.raises(WorkerError, match=r"(?s)ended with code 1 before it listened.*Error"):
        attach(launch)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_folder_without_room_is_said_and_tried_again(shared):
    launch = shared._remote(shared.spec).launch
    pid = launch.path("pid")
    for _ in range(2):
        pid.symlink_to("/dev/full")
        with pytest.raises(WorkerError, match=f"cannot start: there is no room in {launch.folder}") as caught:
            shared.complete("a", max_tokens=3)
        assert "TINYKIT_WORKER_DIR" in caught.value.hint
        assert not launch.transport.path.exists() and not pid.is_symlink()  # nothing is left of it
    assert not shared.failures
    assert "there is no room: [Errno 28]" in Path(launch.log).read_text()
    assert shared.complete("a", max_tokens=3).text


def test_runtime_folder_is_made_and_one_that_cannot_be_is_an_error(shared, monkeypatch, tmp_path):
    monkeypatch.setenv("TINYKIT_WORKER_DIR", str(tmp_path / "a" / "b"))
    assert places.runtime_dir().stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYKIT_WORKER_DIR", str(tmp_path / "file"))
    with pytest.raises(WorkerError, match="No folder for workers") as caught:
        shared.complete("a")
    assert "TINYKIT_WORKER_DIR" in caught.value.hint


def test_path_too_long_for_a_socket_has_a_short_one_in_its_place(shared, monkeypatch, tmp_path):
    long = tmp_path / ("x" * 100) / ("y" * 100)
    monkeypatch.setenv("TINYKIT_WORKER_DIR", str(long))
    folder = places.runtime_dir()
    try:
        assert len(str(folder)) < 80 and folder.parent == Path(tempfile.gettempdir())
        assert shared.complete("a", max_tokens=3).text
        assert probe(shared._remote(shared.spec).launch).socket.close() is None
        assert end_worker(shared._remote(shared.spec).launch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_folder_of_somebody_else_is_not_used(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TINYKIT_WORKER_DIR", str(tmp_path / "link"))
    with pytest.raises(WorkerError, match="not a folder of this user"):
        places.runtime_dir()


def test_worker_holds_nothing_of_the_program_that_started_it(shared, tmp_path):
    held = (tmp_path / "held").open("w")
    os.set_inheritable(held.fileno(), True)
    shared.load()
    pid = shared.worker.pid
    if not Path(f"/proc/{pid}/fd").exists():
        pytest.skip("the system has no /proc")
    targets = {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    assert tmp_path / "held" not in targets
    assert os.getsid(pid) == pid  # a session of its own: no terminal and no group reaches it
    held.close()
