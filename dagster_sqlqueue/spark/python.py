"""The Python that Spark's workers on this machine run in."""

import gc
import os
import shlex
import sys
from functools import lru_cache
from pathlib import Path

import pyspark

_WRAPPER = """#!/bin/sh
# Spark puts zip files with a copy of PySpark before everything else on the path, and Python compiles what comes out of one
# anew in every process: half a second of CPU for each that plans or reads. What is installed beside them is the same.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        {copies}) ;;
        *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(directory: Path) -> str:
    """Return the command that starts this Python for Spark's workers: a script that leaves PySpark's zip files out.

    Args:
        directory: where the script is written. This Python itself where no script can be run there.
    """
    here = Path(pyspark.__file__).parent / "python" / "lib"
    # Spark follows links to where it is installed, Python does not.
    copies = "|".join(f"{shlex.quote(str(place))}/*.zip" for place in {here, here.resolve()})
    script = directory / "python"
    script.write_text(_WRAPPER.format(copies=copies, python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable


def running(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module in a process of its own, and an environment in which it finds what this one
    does.
    """
    path = os.pathsep.join(part for part in sys.path if part)
    return [sys.executable, "-m", module, *arguments], {**os.environ, "PYTHONPATH": path}


@lru_cache(maxsize=1)
def keep_imports() -> None:
    """In a worker of Spark's: leave what it has imported out of garbage collections. It does a whole one after every task
    and plan, 0.07 s of CPU for the objects of the modules alone.
    """
    gc.freeze()
