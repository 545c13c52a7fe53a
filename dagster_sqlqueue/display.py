"""Values as people read them, in a terminal or in the UI: moments, durations, counts, text that steers nothing. No I/O."""

from datetime import UTC, datetime


def printable(text: str, *, lines: bool = False) -> str:
    """The text with every character that cannot be seen, or could steer a terminal or turn others around, written as an
    escape; `lines` keeps line breaks and tabs.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or (lines and c in "\n\t") else c.encode("unicode_escape").decode() for c in text
    )


def shortened(text: str, limit: int) -> str:
    """The first line, cut to so many characters."""
    first, *more = text.strip().splitlines() or [""]
    cut = printable(first)
    return cut if len(cut) <= limit and not more else f"{cut[: limit - 2].rstrip()} …"


def moment(when: datetime) -> str:
    """In UTC, to the second."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def span(since: datetime, until: datetime | None) -> str:
    """From when on, and until when if there is an end."""
    return f"since {moment(since)}" + (f" until {moment(until)}" if until else "")


def duration(seconds: float | None) -> str:
    """For people: two units at most."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    raise AssertionError("unreachable")


def count(number: int, cap: int) -> str:
    """A number that was counted up to a cap."""
    return f"{number:,}+" if number >= cap else f"{number:,}"
