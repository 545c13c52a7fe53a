r"""SQL files, one operation per file: located, checked and converted for the driver.

In the files a parameter is written `:name` and the schema `sqlqueue`, so that they can be pasted into psql after
`\set name value`. Here they are replaced by the driver's `%(name)s` and the schema of the installation.
"""

import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA, quote_schema
from dagster_sqlqueue.errors import InvalidInput

_NOT_STATEMENTS = {"api", "migrations"}
"""Folders whose files are definitions and are not looked up by name."""

# Both patterns begin with the literal name, followed by the lookbehind: fifteen times as fast on long texts.
_OWN_SCHEMA = re.compile(rf"{DEFAULT_SCHEMA}(?<!\w{DEFAULT_SCHEMA})(?:(?=[.;])|(?<=SCHEMA {DEFAULT_SCHEMA})\b)")
_OWN_ROLE = re.compile(rf"{DEFAULT_SCHEMA}(?<!\w{DEFAULT_SCHEMA})_(producer|consumer|operator|observer)\b")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_ARRAY = re.compile(r"CAST\(:([a-z_][a-z0-9_]*) AS ([a-z0-9]+)\[\]\)")
PARAMETER = re.compile(r"(?<![:\w']):([a-z_][a-z0-9_]*)")
"""Pattern of a parameter in a file: `:name`, but not the end of a cast `::name`."""


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
