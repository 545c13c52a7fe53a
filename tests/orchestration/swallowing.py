"""A proxy before the database that accepts logins, and swallows what clients send after so many of their messages."""

import contextlib
import socket
import threading
from types import TracebackType

from dagster_sqlqueue import SqlQueue

_READY = b"Z\x00\x00\x00\x05"
"""How the server's message begins that ends a login."""


class Swallowing:
    """The proxy, for a block; its connections stay open until the end of it.

    Args:
        queue: its database is behind the proxy.
        after: the number of the messages after logins, of all clients, that arrive at the server.

    Attributes:
        url: of the database through the proxy.
    """

    def __init__(self, queue: SqlQueue, after: int) -> None:
        with queue.database.connection() as connection:
            info = connection.info
            self._server = (info.host, info.port)
            self._listening = socket.create_server(("127.0.0.1", 0))
            port = self._listening.getsockname()[1]
            password = f":{info.password}" if info.password else ""
            self.url = f"postgresql://{info.user}{password}@127.0.0.1:{port}/{info.dbname}"
        self._left = after
        self._open = [self._listening]

    def __enter__(self) -> "Swallowing":
        self._start(self._accept)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, work: object, *given: object) -> None:
        threading.Thread(target=self._until_closed, args=(work, *given), daemon=True).start()

    def _until_closed(self, work: object, *given: object) -> None:
        assert callable(work)
        with contextlib.suppress(OSError):
            work(*given)

    def _accept(self) -> None:
        host, port = self._server
        while True:
            client, _ = self._listening.accept()
            if host.startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{host}/.s.PGSQL.{port}")
            else:
                server = socket.create_connection((host, port))
            self._open += [client, server]
            ready = threading.Event()
            self._start(self._forward, client, server, ready)
            self._start(self._answer, server, client, ready)

    def _forward(self, client: socket.socket, server: socket.socket, ready: threading.Event) -> None:
        while data := client.recv(65_536):
            if ready.is_set():
                self._left -= 1
                if self._left < 0:
                    continue
            server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket, ready: threading.Event) -> None:
        while data := server.recv(65_536):
            if _READY in data:
                ready.set()
            client.sendall(data)
