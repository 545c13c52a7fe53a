"""Resolve functions and models by their names in YAML. No I/O but imports."""

from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.worker.references import is_path, look_up


def resolve(what: str, reference: str, package: str | None = None) -> Any:
    """Import the object that `package.module:name` or `package.module.name` names.

    Args:
        what: its role, for messages: the handler, the payload.
        reference: the name; with a leading dot, relative to `package`.
        package: the package of the component's own directory; None: there is none.

    Raises:
        InvalidInput: there is no such module or name, or importing it fails.
    """
    module_name, name = _parts(what, reference)
    if module_name.startswith("."):
        if package is None:
            raise InvalidInput(
                f"{what} {reference!r} begins with a dot, and there is no package to search; write the full name"
            )
        module_name = package + module_name
    return look_up(f"{what} {reference!r}", module_name, name, advice="correct the name, or install its package")


def _parts(what: str, reference: str) -> tuple[str, str]:
    module_name, _, name = reference.partition(":") if ":" in reference else reference.rpartition(".")
    if not is_path(module_name.removeprefix("."), name):
        raise InvalidInput(
            f"{what} {reference!r} names nothing; write it as package.module:name, or as .module:name for a module beside"
            " defs.yaml"
        )
    return module_name, name
