"""`tinykit serve`: an OpenAI-compatible endpoint on this machine, for programs that speak that API.

`options` is the one table of what a request may hold, `wire` the form of answers and `refusals` that of
errors; `access` says who may come in, `turns` when; `answering` asks the session; `app` and `running` are the
application and its server, and the only parts that need starlette and uvicorn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinykit.optional import require

if TYPE_CHECKING:
    import socket

    from tinykit.session import TinySession

DEFAULT_PORT = 8135
SHARED_AT_ONCE = 8  # requests that a shared worker gets, which lets them share its steps


def check_packages() -> None:
    """Raise MissingPackageError, with what to install, if the server cannot run here."""
    for package in ("starlette", "uvicorn"):
        require(package, extra="serve", purpose="tinykit serve")


def serve(
    session: TinySession,
    bound: socket.socket,
    *,
    token: str,
    host: str = "127.0.0.1",
    is_remote: bool = False,
    at_once: int = 1,
    waiting: int = 16,
    on_ready: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve a session until SIGINT or SIGTERM; the session stays open.

    Args:
        session: What answers.
        bound: The socket, from `access.listen`.
        token: What clients must send.
        host: The name that they may call the server by, besides ``localhost`` and addresses.
        is_remote: Whether `bound` is for other machines too.
        at_once: Requests that the session gets at the same time; more than one is for shared sessions.
        waiting: Requests that may wait; the next one is told that the model is busy.
        on_ready: Gets the base URL once the server listens.

    Raises:
        MissingPackageError: starlette or uvicorn are not installed.
    """
    check_packages()
    from tinykit.serve.app import App
    from tinykit.serve.running import Server

    app = App(session, token=token, host=host, is_remote=is_remote, at_once=at_once, waiting=waiting)
    server = Server(app, bound, on_ready=lambda: on_ready(server.url))
    server.serve_forever()
