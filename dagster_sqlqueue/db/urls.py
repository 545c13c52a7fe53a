"""Parsing and checks of the database URL, including its `pooler` option."""

import re
from typing import Any

import sqlalchemy as sa
from psycopg import pq
from sqlalchemy.engine import make_url

from dagster_sqlqueue.db import session_settings
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.errors import InvalidInput

_POOLER = "pooler"
_HOST_WITH_PORT = re.compile(r"([A-Za-z0-9.-]*):([0-9]*)")
"""Not the directory of a socket, whose name may have a colon."""
_ONE_OF_SEVERAL = re.compile(r"(/.*|[^:]*):([0-9]*)")
"""Directories too: beside others what follows its last colon is the port of each."""


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
            "the database URL does not parse; it is written postgresql://user:password@host:5432/database, with the signs"
            " :/?#[]@% of a user or a password as %3A, %2F and so on"
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


def driver_options(url: sa.URL) -> dict[str, Any]:
    """Return the parameters by which the driver connects, as SQLAlchemy's dialect makes them.

    The dialect itself is not imported: with those of the other drivers, and what it asks a server first, it costs a command
    of the terminal a tenth of its time. `host=a:1&host=b:2` are several hosts, each with its port.

    Raises:
        InvalidInput: the options name ports in two ways, or one is none that the driver knows.
    """
    options = {name: ",".join(said) for name, said in url.normalized_query.items()}
    hosts = url.normalized_query.get("host", ())
    with_port = _HOST_WITH_PORT if len(hosts) == 1 else _ONE_OF_SEVERAL
    matches = [with_port.fullmatch(host) for host in hosts]
    if any(matches):
        if "port" in options:
            raise InvalidInput(
                "the database URL says ports in its `host` options and in `port`; write them in one of the two"
            )
        named = [match[1] if match else host for host, match in zip(hosts, matches, strict=True)]
        options.update(host=",".join(named), port=",".join(match[2] if match else "" for match in matches))
    if unknown := sorted(options.keys() - _driver_knows()):
        raise InvalidInput(
            f"the database URL has the option {unknown[0]!r}, which the driver does not know; options are those of libpq,"
            " such as sslmode, or pooler"
        )
    return {**url.translate_connect_args(username="user", database="dbname"), **options}


def _driver_knows() -> set[str]:
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
