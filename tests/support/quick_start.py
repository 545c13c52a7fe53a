"""How runs of Dagster start sooner in `make test`; in `make prove` they start as they do elsewhere."""

import os
from pathlib import Path

from tests.gate.patience import FULL

_DIRECTORY = Path(__file__).parent / "quick"
"""On PYTHONPATH for its `sitecustomize`."""


def quick_start() -> dict[str, str]:
    """Return the variables for a process's environment, beside the usual ones; none with the whole numbers."""
    if FULL:
        return {}
    path = [str(_DIRECTORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}
