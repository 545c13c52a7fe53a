"""Connections of SQLAlchemy's and Django's as the caller of a verb has them; of psycopg's there is `caller`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from django.apps import apps
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler
from psycopg.conninfo import conninfo_to_dict
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


_OF_DJANGO = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}


@contextlib.contextmanager
def django_connection(url: str, **options: Any) -> Iterator[BaseDatabaseWrapper]:
    """A connection of Django's in a transaction."""
    if not settings.configured:
        settings.configure(TIME_ZONE="Pacific/Auckland")
        apps.populate([])
    given = conninfo_to_dict(url)
    named = {theirs: str(given.pop(name)) for name, theirs in _OF_DJANGO.items() if name in given}
    default = {"ENGINE": "django.db.backends.postgresql", **named, "OPTIONS": {**given, **options}}
    connection = ConnectionHandler({"default": default})["default"]
    connection.set_autocommit(False)
    try:
        yield connection
    finally:
        connection.close()
