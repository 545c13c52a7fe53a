"""What a forked process must not share with its parent: connections, and locks of threads that it does not have.

Both would read each other's answers from one socket, and an exit of the child would end the sessions of the parent.
"""

import contextlib
import os
import socket
from typing import Any, Protocol
from weakref import WeakSet

import psycopg


class Holder(Protocol):
    """Object that holds connections or locks."""

    def begin_anew(self) -> None:
        """Forget them: they are the parent's. Called in a forked process, before anything else runs in it."""
        ...


_connections: "WeakSet[psycopg.Connection[Any]]" = WeakSet()
_holders: WeakSet[Holder] = WeakSet()
_of_parents: "list[psycopg.Connection[Any]]" = []
"""Kept for good: another thread may have been in the middle of a call of libpq, so they cannot even be closed."""


def cut_off_in_child(connection: "psycopg.Connection[Any]") -> None:
    """Have a forked process find this connection lost; for the parent it stays as it is."""
    _connections.add(connection)


def begin_anew_in_child(holder: Holder) -> None:
    """Have `begin_anew` of this object called in a forked process."""
    _holders.add(holder)


def _after_fork() -> None:
    inherited = list(_connections)
    _connections.clear()
    _of_parents.extend(inherited)
    dead, end = socket.socketpair()
    end.close()
    with dead:
        for connection in inherited:
            with contextlib.suppress(psycopg.Error):
                # Not closed: what libpq sends then would reach the server. In place of the socket it is sent nowhere.
                os.dup2(dead.fileno(), connection.pgconn.socket, inheritable=False)
    for holder in list(_holders):
        holder.begin_anew()


os.register_at_fork(after_in_child=_after_fork)
