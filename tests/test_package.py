"""What `import dagster_sqlqueue` gives, and what it costs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dagster_sqlqueue
import dagster_sqlqueue.spark

SOURCE = Path(dagster_sqlqueue.__file__)


@pytest.mark.parametrize(("package", "least"), [(dagster_sqlqueue, 20), (dagster_sqlqueue.spark, 10)])
def test_every_public_name_is_there_under_the_type_that_checkers_see(package: ModuleType, least: int) -> None:
    (checked,) = (node for node in ast.parse(Path(str(package.__file__)).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    declared = {str(name.asname): str(node.module) for node in imports for name in node.names}
    assert len(declared) > least
    for name, module in declared.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(declared) <= set(dir(package))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(dagster_sqlqueue, "Quue")


def test_what_the_tasks_of_spark_import_stays_small() -> None:
    code = """
import importlib, sys
for module in ("source", "batch_reader", "streaming", "sealed_read"):
    importlib.import_module(f"dagster_sqlqueue.spark.{module}")
    print(module, *(name for name in ("dagster", "pandas", "psycopg", "sqlalchemy") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["source", "batch_reader", "streaming", "sealed_read"]
