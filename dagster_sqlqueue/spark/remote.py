"""Directories of results that are none of this machine's: URLs of an object store, or of any other file system that `fsspec`
knows.

Nothing there can be renamed at once. So what is staged lists its files, in a file that is written last and removed first: as
long as it is there the move can be begun again, by any machine, with the same result.

Clients of such file systems keep what they have listed for as long as the process lives. Other processes write there too, so
each function here that lists begins without what was kept.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from upath import UPath

from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.spark import sinks

UNREACHABLE: Final = Exception
"""The errors of file systems that cannot be reached: unavailable, forbidden, or not installed. Those of their clients have
no other class in common: one of S3's for missing credentials, say, is no `OSError`."""

_STORES: Final = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "adl", "az", "oci", "oss"}
_LIST = "_staged.json"
_EMPTY = "_empty"
"""In a directory that has no rows: an object store has no empty ones. Readers of Parquet ignore such a name."""


def is_url(place: object) -> bool:
    """Return whether a place is named by a URL."""
    return isinstance(place, str) and "://" in place


def named(place: str | Path) -> Path | str:
    """Return a directory of this machine's as an absolute path, or the URL of one that is not.

    Raises:
        InvalidInput: the URL holds a password: it would be kept with the batch.
    """
    if not is_url(place):
        return Path(place).absolute()
    url = str(place).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(UPath(url).path).absolute()
    if "@" in parts.netloc and ":" in parts.netloc.rpartition("@")[0]:
        raise InvalidInput(
            f"the URL of {parts.scheme}://{parts.netloc.rpartition('@')[2]} holds a password, which would be kept with the"
            " results: give it by the environment or the configuration of fsspec"
        )
    return url


def writable(place: str | Path) -> Path | str:
    """Return the directory, as `named`, made if need be.

    Raises:
        OutputNotWritable: it cannot be written to.
        InvalidInput: see `named`.
    """
    output = named(place)
    if isinstance(output, Path):
        return sinks.writable(output)
    with _written(output):
        # Of one name: a killed process leaves it to the next, and several may write it at a time.
        probe = UPath(f"{output}/.probe")
        _make(UPath(output))
        probe.write_bytes(b"")
        with contextlib.suppress(FileNotFoundError):
            probe.unlink()
    return output


def upload(here: Path, staged: str, names: Sequence[str]) -> None:
    """Stage files of this machine's.

    Args:
        here: a directory for each name.
        staged: the URL of where they go.
        names: of the directories.

    Raises:
        OutputNotWritable: they cannot be written there.
    """
    files = {name: sorted(file.name for file in (here / name).glob("[!._]*")) for name in names}
    try:
        with _written(staged):
            for name, found in files.items():
                _make(UPath(staged) / name)
                for file in found:
                    place = UPath(staged) / name / file
                    place.fs.put_file(str(here / name / file), place.path)
            (UPath(staged) / _LIST).write_text(json.dumps(files))
    except BaseException:
        with contextlib.suppress(UNREACHABLE):
            remove(staged)
        raise


def move_into_place(staged: str, output: str) -> None:
    """Make the staged directories those of the output: each is replaced as a whole, file by file. May be repeated after an
    interruption at any point, and not done by several at a time.
    """
    listed = _fresh(staged) / _LIST
    try:
        files: dict[str, list[str]] = json.loads(listed.read_text())
    except FileNotFoundError:
        remove(staged)
        return
    for name, found in files.items():
        new, place = UPath(staged) / name, UPath(output) / name
        _make(place)
        for file in found:
            place.fs.cp_file((new / file).path, (place / file).path)
        if not found:
            (place / _EMPTY).write_bytes(b"")
        for old in list(place.iterdir()):
            # A tool may have made the directory by an object of its name: a store lists that one too, although nothing of
            # that name is in the directory.
            if old.name in (found or [_EMPTY]) or (old.name == name and not old.exists()):
                continue
            if old.is_dir():
                old.fs.rm(old.path, recursive=True)
            else:
                old.unlink()
    listed.unlink()
    remove(staged)


def names_in(url: str) -> list[str]:
    """Return the names in a directory; none where there is none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(found.name for found in _fresh(url).iterdir())
    return []


def remove(url: str) -> None:
    """Remove a directory with all that is in it, if it is there."""
    place = _fresh(url)
    with contextlib.suppress(FileNotFoundError):
        place.fs.rm(place.path, recursive=True)


def directory_of(output: Path | str) -> Any:
    """Return the directory as a path, whatever its file system."""
    return output if isinstance(output, Path) else _fresh(output)


def _fresh(url: str) -> UPath:
    """Return the place as it is now."""
    place = UPath(url)
    place.fs.invalidate_cache()
    return place


def _make(directory: UPath) -> None:
    """Make a directory, where there are such things: an object store would make a bucket, for want of the one meant."""
    if directory.protocol not in _STORES:
        directory.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _written(url: str) -> Iterator[None]:
    try:
        yield
    except UNREACHABLE as error:
        said = getattr(error, "strerror", None) or error
        raise OutputNotWritable(
            f"results cannot be written to {url}: {said}. Choose another directory, or mend its permissions"
        ) from error
