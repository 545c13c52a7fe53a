r"""SQL files, one operation per file: located, checked and converted for the driver.

In the files a parameter is written `:name` and the schema `sqlqueue`, so that they can be pasted into psql after
`\set name value`. Here they are replaced by the driver's `%(name)s` and the schema of the installation.
"""

import enum
import os
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dagster_sqlqueue.errors import InvalidInput

DEFAULT_SCHEMA = "sqlqueue"
SCHEMA_VARIABLE = "SQLQUEUE_SCHEMA"

_NOT_STATEMENTS = {"api", "migrations"}
"""Folders whose files are definitions and are not looked up by name."""

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

# Both patterns begin with the literal name, followed by the lookbehind: fifteen times as fast on long texts.
_OWN_SCHEMA = re.compile(rf"{DEFAULT_SCHEMA}(?<!\w{DEFAULT_SCHEMA})(?:(?=[.;])|(?<=SCHEMA {DEFAULT_SCHEMA})\b)")
_OWN_ROLE = re.compile(rf"{DEFAULT_SCHEMA}(?<!\w{DEFAULT_SCHEMA})_(producer|consumer|operator|observer)\b")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_ARRAY = re.compile(r"CAST\(:([a-z_][a-z0-9_]*) AS ([a-z0-9]+)\[\]\)")
PARAMETER = re.compile(r"(?<![:\w']):([a-z_][a-z0-9_]*)")
"""Pattern of a parameter in a file: `:name`, but not the end of a cast `::name`."""


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


@cache
def folder(dialect: str = "postgresql") -> Traversable:
    """Return the folder of the SQL files of a dialect: inside the installed package, or in the checkout beside it."""
    packaged = resources.files("dagster_sqlqueue") / "sql" / dialect
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "sql" / dialect


@cache
def _files(dialect: str = "postgresql") -> dict[str, Traversable]:
    """Return the files of the statements by name: the stem of the file name, in the folder of any family."""
    families = (entry for entry in folder(dialect).iterdir() if entry.is_dir() and entry.name not in _NOT_STATEMENTS)
    files = (file for family in families for file in family.iterdir() if file.name.endswith(".sql"))
    return {file.name.removesuffix(".sql"): file for file in files}


def names(dialect: str = "postgresql") -> list[str]:
    """Return the names of all statements, sorted."""
    return sorted(_files(dialect))


def source(name: str, dialect: str = "postgresql") -> str:
    """Return the unchanged text of the file `name.sql`.

    Raises:
        InvalidInput: there is no such file.
    """
    file = _files(dialect).get(name)
    if file is None:
        raise InvalidInput(f"there is no SQL file {name!r} for {dialect}")
    return file.read_text(encoding="utf-8")


def in_schema(text: str, schema: str) -> str:
    """Return the text of a file for another schema: the literal `sqlqueue` and the roles named after it are replaced by the
    quoted names of that schema.
    """
    quoted = quote_schema(schema)
    text = _OWN_ROLE.sub(lambda match: f'"{schema}_{match[1]}"', text)
    return _OWN_SCHEMA.sub(lambda _: quoted, text).replace(f"'{DEFAULT_SCHEMA}'", f"'{schema}'")


def script(name: str, schema: str = DEFAULT_SCHEMA, dialect: str = "postgresql") -> str:
    """Return the text of the file `name.sql` with its comments: statements without parameters, to be run unchanged."""
    return in_schema(source(name, dialect), schema)


def without_comments(text: str) -> str:
    """Return the text of a file without its comments."""
    return _COMMENT.sub("", text).strip()


@cache
def load(name: str, schema: str = DEFAULT_SCHEMA, dialect: str = "postgresql") -> str:
    """Return the statement of the file `name.sql`, for a driver that takes `%(name)s` parameters.

    Raises:
        InvalidInput: there is no such file, or the schema's name is not usable.
    """
    return in_schema(_for_driver(name, dialect), schema)


@cache
def _for_driver(name: str, dialect: str) -> str:
    text = without_comments(source(name, dialect)).replace("%", "%%")
    # Arrays are sent in binary: as text, each quote of a JSON payload is escaped in Python, at a third of the speed.
    return PARAMETER.sub(r"%(\1)s", _ARRAY.sub(r"CAST(%(\1)b AS \2[])", text))
