"""The schema of an installation: its default, and which names are usable."""

import enum
import os
import re

from dagster_sqlqueue.errors import InvalidInput

DEFAULT_SCHEMA = "sqlqueue"
SCHEMA_VARIABLE = "SQLQUEUE_SCHEMA"

_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_SYSTEM = re.compile(r"information_schema\Z|pg_", re.IGNORECASE)
_RESERVED = re.compile(
    r"all|analyse|analyze|and|any|array|as|asc|asymmetric|authorization|binary|both|case|cast|check|collate|"
    r"collation|column|concurrently|constraint|create|cross|current_catalog|current_date|current_role|"
    r"current_schema|current_time|current_timestamp|current_user|default|deferrable|desc|distinct|do|else|end|"
    r"except|false|fetch|for|foreign|freeze|from|full|grant|group|having|ilike|in|initially|inner|intersect|"
    r"into|is|isnull|join|lateral|leading|left|like|limit|localtime|localtimestamp|natural|not|notnull|null|"
    r"offset|on|only|or|order|outer|overlaps|placing|primary|references|returning|right|select|session_user|"
    r"similar|some|symmetric|system_user|table|tablesample|then|to|trailing|true|union|unique|user|using|"
    r"variadic|verbose|when|where|window|with",
    re.IGNORECASE,
)
"""Reserved words of PostgreSQL 15 to 18: as schema names they would have to be quoted in every hand-written query."""


class Unnamed(enum.Enum):
    """Sentinel for an argument that was not given, where None is rejected: it may come from a look-up that found nothing."""

    UNNAMED = enum.auto()


def default_schema() -> str:
    """Return the schema to use if none is given: the environment variable `SQLQUEUE_SCHEMA`, else `sqlqueue`."""
    return os.environ.get(SCHEMA_VARIABLE) or DEFAULT_SCHEMA


def quote_schema(schema: str) -> str:
    """Return the schema's name as a quoted SQL identifier.

    Raises:
        InvalidInput: it is empty, longer than 63 characters, begins with a digit, `$` or `pg_`, contains other characters
            than letters, digits, `_` and `$`, or is a reserved word or `information_schema`.
    """
    if isinstance(schema, str) and _SYSTEM.match(schema):
        raise InvalidInput(
            f"schema {schema!r} is not usable: information_schema, and whatever begins with 'pg_', is PostgreSQL's own;"
            f" choose another name: {DEFAULT_SCHEMA}, say"
        )
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise InvalidInput(
            f"schema {schema!r} is not usable: a schema name has 1 to 63 letters, digits, '_' or '$', and begins with a"
            " letter or '_'"
        )
    if _RESERVED.fullmatch(schema):
        raise InvalidInput(
            f"schema {schema!r} is not usable: it is a word that SQL reserves; name it {schema}_queue, say"
        )
    return f'"{schema}"'
