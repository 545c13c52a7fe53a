"""Pool of connections to one database."""

from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa


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
    return engine
