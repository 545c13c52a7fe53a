"""Some of many cases for `make test`; `make prove` has them all."""

from collections.abc import Sequence
from typing import Any

import pytest


def few(cases: Sequence[Any], kept: int) -> list[Any]:
    """The cases of a `parametrize`, of which all but the first ones are left to `make prove`.

    Args:
        cases: a tuple holds the values of several arguments; a value that is a tuple itself has to be in one.
        kept: how many `make test` has.
    """
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if place < kept else pytest.mark.prove) for place, case in enumerate(values)]
