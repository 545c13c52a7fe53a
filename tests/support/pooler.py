"""A pooler in transaction mode, as far as it matters here: it names another session than the one that answers, and what a
session was set about plans is gone when a transaction is over.
"""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from psycopg import conninfo

_FORGET = b"RESET plan_cache_mode; RESET enable_seqscan; RESET jit\0"
_KEY, _READY, _IDLE = b"K", b"Z", b"I"


class _Link:
    """One client, and the server's session that is its own for as long as it is there."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client = client
        self._server = server

    def up(self) -> None:
        """Hand on what the client says."""
        with contextlib.suppress(OSError):
            while said := self._client.recv(65_536):
                self._server.sendall(said)
        self._close()

    def down(self) -> None:
        """Hand on what the server says."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, body = self._message()
                if kind == _KEY:
                    body = (int.from_bytes(body[:4]) ^ 1).to_bytes(4) + body[4:]
                elif kind == _READY and body == _IDLE:
                    self._forget()
                self._client.sendall(kind + (len(body) + 4).to_bytes(4) + body)
        self._close()

    def _forget(self) -> None:
        self._server.sendall(b"Q" + (len(_FORGET) + 4).to_bytes(4) + _FORGET)
        while self._message()[0] != _READY:
            pass

    def _message(self) -> tuple[bytes, bytes]:
        kind = self._exactly(1)
        return kind, self._exactly(int.from_bytes(self._exactly(4)) - 4)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._server.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def _close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def pooler(url: str) -> Iterator[str]:
    """A pooler in front of a server that listens on a socket of the file system; returns the URL of the pooler."""
    known = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    port = known.get("port", "5432")
    with (
        tempfile.TemporaryDirectory(prefix="sqlqueue-pooler-") as directory,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        listening.bind(str(Path(directory) / f".s.PGSQL.{port}"))
        listening.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    server = socket.socket(socket.AF_UNIX)
                    server.connect(f"{known['host']}/.s.PGSQL.{port}")
                    link = _Link(client, server)
                    for way in (link.up, link.down):
                        threading.Thread(target=way, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"postgresql://{known['user']}@/{known['dbname']}?host={directory}&port={port}"
        # A thread that waits in accept() is not woken by a mere close.
        listening.shutdown(socket.SHUT_RDWR)
