"""Metrics over HTTP, for a Prometheus that scrapes them."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_whole


@contextmanager
def serve(registry: CollectorRegistry, *, port: int, address: str = "127.0.0.1") -> Iterator[int]:
    """Answer scrapes while the block runs, in threads of their own. Returns the port.

    Args:
        registry: what is served, under every path.
        port: 0 to 65535; 0 takes a free one.
        address: of the interface to listen on; the loopback's is reached from this machine alone. There is neither
            encryption nor a password.

    Raises:
        InvalidInput: the port is out of range, or cannot be listened on at this address.
    """
    if not is_whole(port, 0, 65_535):
        raise InvalidInput(f"port is {port!r}; it must be 0 to 65535")
    try:
        server, thread = start_http_server(port, address, registry)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(
            f"cannot listen on port {port} of address {address!r}: {error}; choose another port or address"
        ) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
