"""The packages that come with an extra: what an import says where they are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Import, in the block, what needs an extra.

    Args:
        name: of the extra.
        packages: that it brings, by the names by which they are imported.

    Raises:
        ModuleNotFoundError: one of them is not installed; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        message = f"the package {missing} is not installed; install it with: pip install 'dagster-sqlqueue[{name}]'"
        raise ModuleNotFoundError(message, name=error.name) from None
