"""Parsing and checks of the database URL, including its `pooler` option."""

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from dagster_sqlqueue.db import session_settings
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.errors import InvalidInput

_POOLER = "pooler"


def parse_url(url: str) -> sa.URL:
    """Parse a database URL and set the driver in it.

    Args:
        url: `postgresql://user:password@host:port/database`, with or without `+psycopg`.

    Raises:
        InvalidInput: it does not parse, or names another database or driver. The message never contains the password.
    """
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidInput(
            "the database URL does not parse; it is written postgresql://user:password@host:5432/database"
        ) from None
    if "@" in (parsed.host or ""):
        raise InvalidInput("the database URL holds more than one '@'; write one that is part of the password as %40")
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise InvalidInput(
            f"the database URL begins with {parsed.drivername!r}; this release works with PostgreSQL through psycopg 3:"
            " begin it with postgresql://"
        )
    return parsed.set(drivername="postgresql+psycopg")


def pooler_of(url: sa.URL) -> tuple[sa.URL, Pooler | None]:
    """Return the URL without its `pooler` option, as the driver takes it, and the pooler named there; None if none is.

    Raises:
        InvalidInput: there is no such kind of pooler, the option is repeated, or the URL has session settings (`options`)
            for a pooler in transaction mode.
    """
    said = url.query.get(_POOLER)
    if said is None:
        return url, None
    if not isinstance(said, str):
        raise InvalidInput("the database URL says `pooler` more than once")
    found = session_settings.pooler(said)
    if found is Pooler.TRANSACTION and "options" in url.query:
        raise InvalidInput(
            "the database URL has `options` beside pooler=transaction: they are settings of the session, which is not this"
            " connection's own; set them for the role: ALTER ROLE … SET …"
        )
    return url.difference_update_query([_POOLER]), found
