"""A backend for workers of tests: it counts upwards, and does what files in a folder tell it to.

`hold` lets each forward wait until the file is gone, `held` tells that one waits; `hold-later` and `held-later` are
for forwards after the 50th token of a sequence; `die` ends the process;
`hold-loading` and `die-loading` do the same while it loads, `poison` lets it raise there, and `fail` lets each
forward raise; `loads` has a line for each load.
"""

import os
import signal
import time
from pathlib import Path

from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, RestartNeededError

VOCAB_SIZE = 261


def control() -> Path:
    return Path(os.environ["WORKER_TEST_DIR"])


def note(name: str) -> None:
    with (control() / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


def obey(hold: str, die: str) -> None:
    if (control() / die).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    while (control() / hold).exists():
        (control() / hold.replace("hold", "held")).touch()
        time.sleep(0.01)


def script(seen):
    obey("hold", "die")
    if len(seen) > 50:
        obey("hold-later", "die")
    if (control() / "fail").exists():
        raise BackendError("it was told to fail", hint="remove the file")
    return (sum(seen[-3:]) + len(seen)) % 256


def make(folder, *, device, dtype, context_length, threads):
    note("loads")
    obey("hold-loading", "die-loading")
    if (control() / "poison").exists():
        raise RestartNeededError("it was told that it is poisoned")
    return ScriptedBackend(
        script, vocab_size=VOCAB_SIZE, context_length=context_length or 4096, can_batch=dtype != "fp32"
    )
