"""Connections of SQLAlchemy's as the caller of a verb has them; of psycopg's there is `caller`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool


@contextlib.contextmanager
def engine_of(url: str, **settings: Any) -> Iterator[sa.Engine]:
    """One that keeps no connection."""
    made = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool, **settings)
    try:
        yield made
    finally:
        made.dispose()


@contextlib.contextmanager
def sqlalchemy_connection(url: str) -> Iterator[sa.Connection]:
    """A connection."""
    with engine_of(url) as made, made.connect() as connection:
        yield connection


@contextlib.contextmanager
def orm_session(url: str) -> Iterator[Session]:
    """A session of the ORM."""
    with engine_of(url) as made, Session(made) as session:
        yield session
