"""The day of a job: the one that a field names, or on which an instant in it lies by the clocks of a time zone.

The database's functions `day_of` and `local_day` find it, in every statement and in what Spark reads.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from dagster_sqlqueue.errors import InvalidInput

Clocks: TypeAlias = tuple[str | None, list[str] | None]
"""By which clocks a field is a day: a named zone, or the path of the field that names one; neither: the field is a date."""
NONE: Clocks = (None, None)


def parameters(clocks: Clocks) -> dict[str, Any]:
    """Return the parameters of the statements that find the day of a job."""
    zone, path = clocks
    return {"zoned": clocks != NONE, "day_zone": zone, "zone_path": path}


NO_EVENTS: Mapping[str, Any] = {"queue": None, "day_path": None, "account_path": None, **parameters(NONE)}
"""Parameters of statements that read the live jobs of a queue of events, if there is none."""


def condition(days: Sequence[str]) -> str:
    """Return the option `where` of a read of the jobs of some days, by their column `day`."""
    return json.dumps([{"column": "day", "op": "on", "value": list(days)}])


def of_column(name: str, column: Mapping[str, Any]) -> Clocks:
    """Return by which clocks a column is a day.

    Args:
        name: of the column.
        column: {"path": …, "type": "date", "zone": …}; the zone is a name, or a field of the same document, `payload.zone`.

    Raises:
        InvalidInput: the zone is not known, or in another document, or the type is not `date`.
    """
    zone = column.get("zone")
    if zone is None:
        return NONE
    if column.get("type") != "date":
        raise InvalidInput(
            f"column {name!r} is {dict(column)}; one with a zone is the day of an instant: give it the type date"
        )
    base = str(column.get("path", "")).split(".")[0]
    if isinstance(zone, str) and zone.startswith(f"{base}."):
        fields = zone.split(".")[1:]
        if all(fields):
            return None, fields
    try:
        ZoneInfo(zone)
    except (TypeError, KeyError, ValueError, OSError):
        raise InvalidInput(
            f"column {name!r}: the zone {zone!r} is no time zone; write a name such as Europe/Berlin, or the field that has"
            f" one: {base}.zone"
        ) from None
    return zone, None
