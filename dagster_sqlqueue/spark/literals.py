"""Values as literals of SQL: the one place where text from outside becomes part of a statement."""

from datetime import datetime

from dagster_sqlqueue.errors import InvalidInput


def literal(text: str) -> str:
    """Return a text, quoted.

    Raises:
        InvalidInput: the database cannot hold it.
    """
    if "\x00" in text:
        raise InvalidInput("a NUL character cannot be part of a value")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(f"{text!r} is not valid Unicode")
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if "\\" not in text else "E'" + quoted.replace("\\", "\\\\") + "'"


def moment(value: datetime) -> str:
    """Return a moment with its zone."""
    return f"CAST('{value.isoformat()}' AS timestamptz)"
