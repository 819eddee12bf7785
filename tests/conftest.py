"""What all tests share: a clean environment, and the real model fetched once for those that want it."""

import os
import signal
from pathlib import Path

import pytest

from tinykit.optional import TELEMETRY_SWITCH

os.environ.setdefault(TELEMETRY_SWITCH, "1")  # some tests import the library themselves


def pytest_configure() -> None:
    """Hear Ctrl-C even where the run was started in the background, which makes children deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the user's reaches a test, and no test writes to the user's cache."""
    for name in list(os.environ):
        if name.startswith(("TINYKIT_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINYKIT_CONFIG", str(tmp_path / "no-config.toml"))


@pytest.fixture(scope="session")
def real_home(pytestconfig: pytest.Config) -> Path:
    """A store that holds the embedded model; kept between test runs."""
    from tinykit.loading import prepare
    from tinykit.progress import Progress
    from tinykit.registry import get_model

    home = Path(pytestconfig.cache.mkdir("tinykit-home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(home))
        for key in ("smollm2-135m", "smollm2-135m-titles"):
            prepare(get_model(key), get_model(key).dtype or "auto", progress=Progress(False))
    return home


@pytest.fixture
def use_real_home(real_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this test work on the store that holds the embedded model."""
    monkeypatch.setenv("TINYKIT_HOME", str(real_home))
    return real_home


@pytest.fixture(scope="session")
def real_session(real_home: Path):
    """One session on the embedded model for all tests that only ask it things."""
    from tinykit import TinySession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(real_home))
        session = TinySession("smollm2-135m", progress=False)
    yield session
    session.close()
