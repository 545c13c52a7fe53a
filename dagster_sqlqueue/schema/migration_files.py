"""The migrations as files: what is in them, and what their headers say.

A migration is a file `0002_name.sql`, or a folder `0001_name` of files that are one text in the order of their names.
One that was released is never changed: what comes later is one more. Its header, the comment at the beginning, says:

- `-- Serves: 0001`: the oldest code that works on the schema from then on, by the newest migration that such code knows.
  Without it, none does that is older than the migration.
- `-- Transaction: none`: its indexes are made CONCURRENTLY, each by itself. Without it, it is part of a transaction.
- `-- Locks: job ACCESS EXCLUSIVE; queue SHARE`: the locks that it takes on tables that were there before, or `none`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import NamedTuple

from dagster_sqlqueue.errors import InvalidInput

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)(\.sql)?")
_HEADER = re.compile(r"(?:--[^\n]*\n|[ \t]*\n)*")
_SERVES = re.compile(r"^-- Serves: (\d{4})$", re.MULTILINE)
_TRANSACTION = re.compile(r"^-- Transaction: (.*)$", re.MULTILINE)
_LOCKS = re.compile(r"^-- Locks: (.*)$", re.MULTILINE)

LOCK_MODES = {
    "ACCESS SHARE": "nobody but what takes ACCESS EXCLUSIVE",
    "ROW SHARE": "nobody but what takes EXCLUSIVE",
    "ROW EXCLUSIVE": "no reading and no writing",
    "SHARE UPDATE EXCLUSIVE": "no reading and no writing; VACUUM and other migrations",
    "SHARE": "writing",
    "SHARE ROW EXCLUSIVE": "writing",
    "EXCLUSIVE": "writing",
    "ACCESS EXCLUSIVE": "reading and writing",
}
"""The modes of a lock on a table, and what each keeps waiting."""


class TableLock(NamedTuple):
    """A lock that a migration takes.

    Attributes:
        table: its name, without the schema.
        mode: as `LOCK TABLE` has it.
    """

    table: str
    mode: str


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file or folder under `sql/<dialect>/migrations/`.

    Attributes:
        version: its number.
        name: what stands behind the number.
        text: its SQL, with the literal schema `sqlqueue`.
        place: where it can be read; empty where it came from no file.
    """

    version: int
    name: str
    text: str
    place: str = ""

    @property
    def label(self) -> str:
        """Number and name, as its file is named."""
        return f"{self.version:04}_{self.name}"

    @property
    def serves_from(self) -> int:
        """The oldest code that works on a schema with it: the newest migration that such code knows."""
        found = _SERVES.search(self._header)
        return int(found[1]) if found else self.version

    @property
    def transactional(self) -> bool:
        """Whether it is part of a transaction; if not, its indexes are made CONCURRENTLY.

        Raises:
            InvalidInput: the header says something else than `none`.
        """
        found = _TRANSACTION.search(self._header)
        if found and found[1] != "none":
            raise InvalidInput(f"migration {self.label} has the header Transaction: {found[1]!r}; it may say none")
        return found is None

    @property
    def locks(self) -> tuple[TableLock, ...]:
        """The locks that it takes on tables that are there before it, in the order in which they are taken.

        Raises:
            InvalidInput: the header names a mode that there is not.
        """
        return tuple(self._locks())

    @property
    def _header(self) -> str:
        found = _HEADER.match(self.text)
        return found[0] if found else ""

    def _locks(self) -> Iterator[TableLock]:
        for line in _LOCKS.findall(self._header):
            for part in line.split(";"):
                table, _, mode = part.strip().partition(" ")
                if table == "none" and not mode:
                    continue
                if mode not in LOCK_MODES:
                    raise InvalidInput(
                        f"migration {self.label} has the header Locks: {line!r}; write: table MODE; table MODE"
                    )
                yield TableLock(table, mode)


def read(folder: Traversable) -> tuple[Migration, ...]:
    """Every migration of a folder, in order."""
    found = []
    for entry in folder.iterdir():
        if match := _NAME.fullmatch(entry.name):
            files = sorted(entry.iterdir(), key=lambda file: file.name) if entry.is_dir() else [entry]
            text = "\n".join(file.read_text(encoding="utf-8") for file in files)
            found.append(Migration(int(match[1]), match[2], text, str(entry)))
    return tuple(sorted(found, key=lambda migration: migration.version))
