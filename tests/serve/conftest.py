import httpx2
import pytest

from tests.serve.serving import TOKEN, official_client, running, scripted_session


@pytest.fixture(scope="module")
def server():
    """A server that answers every chat with the same words."""
    with scripted_session() as session, running(session) as server:
        yield server


@pytest.fixture
def client(server):
    """The official client."""
    with official_client(server) as client:
        yield client


@pytest.fixture
def http(server):
    """A client that sends whatever a test likes."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield client
