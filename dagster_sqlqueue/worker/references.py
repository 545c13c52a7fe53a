"""Find an object by the name of its module and its own. No I/O but importing."""

import importlib
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dagster_sqlqueue.errors import InvalidInput


def is_path(module_name: str, name: str) -> bool:
    """Return whether both are names as Python has them, with dots between their parts."""
    return all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")])


def look_up(
    said: str, module_name: str, name: str, *, advice: str, others: Callable[[ModuleType], str] = lambda _: ""
) -> Any:
    """Import a module and take what it has of that name.

    Args:
        said: what is to be found, as messages begin: `handler 'jobs:remind'`.
        module_name: as Python imports it.
        name: in the module; with dots, of what that holds.
        advice: what to do where there is no such module.
        others: what to add where the module has no such name.

    Raises:
        InvalidInput: there is no such module or name, or importing it fails.
    """
    module = _imported(said, module_name, advice)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"{said}: module {module_name!r} has no {name!r}{others(module)}")
        found = getattr(found, part)
    return found


def _imported(said: str, module_name: str, advice: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        parents = [module_name.rsplit(".", cut)[0] for cut in range(module_name.count(".") + 1)]
        if isinstance(error, ModuleNotFoundError) and error.name in parents:
            raise InvalidInput(f"{said}: there is no module {error.name!r} here; {advice}") from None
        frames = traceback.extract_tb(error.__traceback__)
        # A syntax error names its place itself, and was raised by the machinery of the import.
        named = isinstance(error, SyntaxError) or not frames
        where = "" if named else f" in {frames[-1].filename}, line {frames[-1].lineno}"
        raise InvalidInput(
            f"{said}: importing {module_name!r} failed with {type(error).__name__}: {error}{where}"
        ) from error
