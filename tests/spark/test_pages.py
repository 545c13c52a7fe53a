"""The Python of two pages about Spark in the session of these tests; tests/docs runs each page in a process of its own."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.test_guide import written
from tests.support.few import few


@pytest.mark.parametrize("page", few(["spark_cluster", "spark_consuming"], 1))
def test_every_block_runs(
    session: SparkSession, url: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setenv("SQLQUEUE_URL", url)
    monkeypatch.setenv("SQLQUEUE_SCHEMA", schema)
    script = written(tmp_path, page)
    exec(compile(script.read_text(), script, "exec"), {"__name__": "__main__"})
    assert session.range(1).count() == 1, "the session is there for the tests that follow"
