"""Django's connections: the connection of psycopg in one, whose transaction is the caller's."""

from typing import Any, Protocol, TypeGuard

import psycopg

from dagster_sqlqueue.errors import InvalidInput


class DjangoConnection(Protocol):
    """A connection of Django's, such as `django.db.connection` and `django.db.connections["orders"]`."""

    @property
    def vendor(self) -> Any:
        """The kind of database, such as `postgresql`."""

    @property
    def connection(self) -> Any:
        """The driver's connection; None before the first use."""

    def ensure_connection(self) -> None:
        """Connect, if that was not done."""


def is_django(connection: object) -> TypeGuard[DjangoConnection]:
    """Return whether an object is a connection of Django's; Django itself is not imported."""
    return hasattr(connection, "ensure_connection") and hasattr(connection, "vendor")


def driver_of(connection: DjangoConnection) -> "psycopg.Connection[Any]":
    """Return the connection of psycopg in Django's, connected.

    Raises:
        InvalidInput: it is of another database or driver.
    """
    if connection.vendor != "postgresql":
        raise InvalidInput(
            f"connection is Django's to {connection.vendor!r:.100}, and the queue is in PostgreSQL; give the connection to"
            " the queue's database, such as django.db.connections['orders'], or leave connection out"
        )
    connection.ensure_connection()
    driver = connection.connection
    if not isinstance(driver, psycopg.Connection):
        module = type(driver).__module__.partition(".")[0]
        raise InvalidInput(
            f"Django's connection uses the driver {module}, and the queue needs psycopg 3; take Django from 4.2 on, and its"
            " own backend, which prefers psycopg 3"
        )
    return driver
