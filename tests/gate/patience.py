"""How long a test waits for what has to come, and how much of it a test makes."""

import os
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SCALE = float(os.environ.get("SQLQUEUE_TEST_PATIENCE", "1"))
"""Multiplies every wait of the tests."""

PATIENCE = 120.0 * PATIENCE_SCALE
"""Seconds that a test waits for anything at all before it fails: a bound against waiting for ever, never a measure."""

FULL = os.environ.get("SQLQUEUE_TEST_SIZE", "small") == "full"
"""Whether the promises are proved with their whole numbers (`make prove`) or with a few (`make test`)."""


def sized(small: T, full: T) -> T:
    """The number that this run is to use: a small one in `make test`, the whole one in `make prove`."""
    return full if FULL else small
