"""Pool of connections to one database; a connection that was idle is tested before it is used."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa

_TRUSTED_SECONDS = 0.5
"""Idle seconds after which a connection is tested before it is used: one round trip, which busy connections are spared."""


def pool_of(
    url: sa.URL,
    *,
    size: int,
    connect_timeout: int,
    application_name: str | None,
    on_connect: "Callable[[psycopg.Connection[Any], object], None]",
) -> sa.Engine:
    """Create a pool whose connections are in autocommit, and whose errors quote no parameters; it connects on first use.

    Args:
        url: URL of the database.
        size: maximum number of open connections.
        connect_timeout: seconds to wait for the server, or for a free connection of the pool.
        application_name: name shown in `pg_stat_activity`; None for the server's setting.
        on_connect: called with each new driver connection.
    """
    named = {} if application_name is None else {"application_name": application_name}
    engine = sa.create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=connect_timeout,
        hide_parameters=True,
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
        connect_args={
            "connect_timeout": connect_timeout,
            **named,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        },
    )
    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "checkin", _note_idle)
    sa.event.listen(engine, "checkout", _test_if_idle)
    return engine


def _note_idle(_driver: object, record: Any) -> None:
    record.info["idle_since"] = time.monotonic()


def _test_if_idle(driver: "psycopg.Connection[Any]", record: Any, _proxy: object) -> None:
    if time.monotonic() - record.info.get("idle_since", time.monotonic()) < _TRUSTED_SECONDS:
        return
    try:
        driver.execute("SELECT 1")
    except psycopg.Error as error:
        raise sa.exc.DisconnectionError() from error
