"""What `import dagster_sqlqueue` gives, and what it costs."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dagster_sqlqueue
import dagster_sqlqueue.spark

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _body(package: str) -> list[ast.stmt]:
    """The statements of a package's `__init__`, without its docstring."""
    found = importlib.util.find_spec(package)
    assert found
    assert found.origin
    return ast.parse(Path(found.origin).read_text()).body[1:]


_PACKAGES = [
    dagster_sqlqueue.__name__,
    *(
        module.name
        for module in pkgutil.walk_packages(dagster_sqlqueue.__path__, f"{dagster_sqlqueue.__name__}.")
        if module.ispkg
    ),
]
_FACES = [package for package in _PACKAGES if _body(package)]


def test_faces_are_found() -> None:
    assert {"", ".orchestration", ".orchestration.launchpad", ".metrics", ".traces", ".spark.batches", ".embedded"} <= {
        package.removeprefix("dagster_sqlqueue") for package in _FACES
    }


@pytest.mark.parametrize("name", _FACES)
def test_all_names_what_a_package_has_and_nothing_is_public_beside_it(name: str) -> None:
    package = importlib.import_module(name)
    public = package.__all__
    assert len(set(public)) == len(public)
    for each in public:
        assert getattr(package, each) is not None
    body = _body(name)
    defined = {node.name for node in body if isinstance(node, _DEFINITIONS)}
    if not defined:
        # One that only imports what its modules define: not even `dir` has more.
        found = {each for each in dir(package) if not isinstance(getattr(package, each), ModuleType)}
        assert {each for each in found if not each.startswith("_")} == set(public) - {"__version__"}
    assigned = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert {each for each in defined | assigned if not each.startswith("_")} <= set(public)


@pytest.mark.parametrize(("package", "least"), [(dagster_sqlqueue, 20), (dagster_sqlqueue.spark, 10)])
def test_every_public_name_is_there_under_the_type_that_checkers_see(package: ModuleType, least: int) -> None:
    (checked,) = (node for node in ast.parse(Path(str(package.__file__)).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    declared = {str(name.asname): str(node.module) for node in imports for name in node.names}
    assert len(declared) > least
    for name, module in declared.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(declared) <= set(dir(package))


@pytest.mark.parametrize("name", _FACES)
def test_help_says_something_of_every_public_name(name: str) -> None:
    package = importlib.import_module(name)
    named = {each: getattr(package, each) for each in package.__all__}
    assert [each for each, value in named.items() if callable(value) and not inspect.getdoc(value)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(dagster_sqlqueue, "Quue")


def test_what_the_tasks_of_spark_import_stays_small() -> None:
    code = """
import importlib, sys
for module in ("source", "batch_reader", "stream_reader", "sealed_read"):
    importlib.import_module(f"dagster_sqlqueue.spark.{module}")
    print(module, *(name for name in ("dagster", "pandas", "psycopg", "sqlalchemy") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["source", "batch_reader", "stream_reader", "sealed_read"]


@pytest.mark.parametrize(
    ("imported", "package", "extra"),
    [
        ("dagster_sqlqueue.metrics", "prometheus_client", "metrics"),
        ("dagster_sqlqueue.traces", "opentelemetry", "traces"),
        ("dagster_sqlqueue.spark; dagster_sqlqueue.spark.SparkResource", "pyspark", "spark"),
        ("dagster_sqlqueue.spark; dagster_sqlqueue.spark.sqlqueue_daily_asset", "pyarrow", "spark"),
    ],
)
def test_without_an_extra_its_packages_say_what_to_install(imported: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import {imported}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = f"ModuleNotFoundError: the package {package} is not installed; install it with: pip install"
    assert done.stderr.splitlines()[-1] == f"{said} 'dagster-sqlqueue[{extra}]'"
