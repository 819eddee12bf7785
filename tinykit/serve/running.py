"""The server around the application: one socket, no logs, and a graceful end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from tinykit.serve.app import App

DEFAULT_GRACE_S = 5.0
_BACKSTOP_S = 5  # after that, for clients that do not even read their error


class Server(uvicorn.Server):
    """Serves `app` on a bound socket until `should_exit`, SIGINT or SIGTERM.

    Then nobody new is let in, those who wait are told so, and what is being answered has `grace_s` seconds
    left. A second SIGINT ends it at once.

    Args:
        app: What to serve.
        bound: Where; it is closed in the end.
        grace_s: Seconds for what is being answered when the end comes.
        on_ready: Called once it listens.
    """

    def __init__(
        self,
        app: App,
        bound: socket.socket,
        *,
        grace_s: float = DEFAULT_GRACE_S,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(grace_s) + _BACKSTOP_S,
            )
        )
        self._app = app
        self._bound = bound
        self._grace_s = grace_s
        self._on_ready = on_ready

    @property
    def url(self) -> str:
        """What clients call the base URL."""
        host, port = self._bound.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def serve_forever(self) -> None:
        """Run until the end, in a loop of its own."""
        try:
            self.run(sockets=[self._bound])
        finally:
            self._bound.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, as far as possible without breaking off."""
        self._app.close()
        late = asyncio.get_running_loop().call_later(self._grace_s, self._app.cancel)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()
            self._app.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals as a wish to end; unlike uvicorn's own, do not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
