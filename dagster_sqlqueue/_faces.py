"""Packages whose public names are imported when somebody asks for them, and not before."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from dagster_sqlqueue._extras import extra


def lazy(
    package: str, modules: Mapping[str, Sequence[str]], needs: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports each of its public names when it is first used. `dir` lists
    these and submodules only.

    Args:
        package: the `__name__` of the package.
        modules: the public names by the module, below the package, that has them.
        needs: the extra that the package needs, and the packages that it brings; empty: none.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with extra(*needs) if needs else nullcontext():
            found = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        there = vars(sys.modules[package])
        beside = {name for name, found in there.items() if name.startswith("_") or isinstance(found, ModuleType)}
        return sorted(beside | places.keys())

    return get, names
