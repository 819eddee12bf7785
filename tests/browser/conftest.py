"""JupyterLab on this machine, its notebooks in Chromium; skipped where one of them is missing."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.hub_server import HubServer, make_files

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
TOKEN = "only-for-this-test"
START_S = 180
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_collection_modifyitems(items):
    missing = [name for name in ("playwright", "jupyterlab") if _is_missing(name)]
    missing += [] if CHROMIUM else ["chromium"]
    for item in items:
        if missing and Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(
                pytest.mark.skip(reason=f"not installed: {', '.join(missing)}; see make test-browser")
            )


def _is_missing(module):
    import importlib.util

    return importlib.util.find_spec(module) is None


@pytest.fixture(scope="session")
def hub():
    """A hub on this machine, with a repo that takes a while."""
    with HubServer(make_files(data_bytes=40_000_000)) as server:
        yield server


@pytest.fixture(scope="session")
def lab(tmp_path_factory, hub):
    """The address of a JupyterLab, and the folder of its notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env.pop("PYTEST_CURRENT_TEST", None)  # outputs shall come as they do for people
    env |= {
        "PYTHONPATH": str(ROOT), "TINYKIT_HOME": str(folder / "home"), "HF_HOME": str(folder / "hf"),
        "HF_ENDPOINT": hub.url, "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "spaces"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "IPYTHONDIR": str(folder / "ipython"),
    }  # fmt: skip
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    _quiet(folder / "settings")
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
        "--JupyterNotebookApp.expose_app_in_browser=True",
        "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={notebooks}",
    ]  # fmt: skip
    log = (folder / "lab.log").open("w")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{url}/api/status?token={TOKEN}", process, folder / "lab.log")
        yield url, notebooks
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        log.close()


def _quiet(settings):
    """No news and no tours, which would ask for a click."""
    for name, content in {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"autoStartDefaultKernel": True},
    }.items():
        path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def _wait_for(url, process, log):
    for _ in range(START_S * 10):
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=START_S).close()
            return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start: {log.read_text()}")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(lab, browser):
    """A function that opens cells as a notebook, in JupyterLab or with `app="notebooks"` in Notebook 7."""
    url, folder = lab
    contexts = []

    def open_cells(name, *cells, app="lab/tree"):
        notebook = {
            "cells": [
                {"cell_type": "code", "id": f"c{at}", "execution_count": None, "metadata": {}, "outputs": [],
                 "source": source}
                for at, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4, "nbformat_minor": 5,
        }  # fmt: skip
        (folder / f"{name}.ipynb").write_text(json.dumps(notebook))
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        contexts.append(context)
        context.set_default_timeout(240_000)
        page = context.new_page()
        page.goto(f"{url}/{app}/{name}.ipynb?reset&token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        page.wait_for_selector("#jupyterlab-splash", state="detached")  # it would be in the pictures
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
        )
        return page

    yield open_cells
    for context in contexts:
        context.close()
