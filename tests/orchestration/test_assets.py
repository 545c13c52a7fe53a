"""A queue as an asset: what its page shows, and what a translator may change."""

import enum
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import dagster as dg
import pytest
from pydantic import BaseModel, Field

from dagster_sqlqueue import Backoff, QueueSpec, RateLimit, Sensitive
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import (
    DailyAccount,
    QueueAssetData,
    SqlQueueTranslator,
    asset_key_of,
    build_fanout_asset,
    build_sqlqueue_asset_spec,
    queue_asset_key,
)
from dagster_sqlqueue.payload.serialization import AnyObject


class Country(enum.StrEnum):
    NZ = "NZ"
    AU = "AU"


class Account(BaseModel):
    iban: Annotated[str, Sensitive()]


class Payment(BaseModel):
    """Somebody pays somebody.

    The second paragraph is for readers of the code.
    """

    id: UUID
    amount: Decimal = Field(description="In the currency's main unit.")
    count: int = 1
    urgent: bool = False
    share: float | None = None
    country: Country = Country.NZ
    kind: Literal["card", "cash"] = "card"
    at: datetime = Field(alias="paidAt")
    day: Annotated[date, Field(ge=date(2000, 1, 1))] | None = None
    pin: Annotated[str, Sensitive()] = "0000"
    source: Account | None = None
    others: Sequence[Account] = ()
    notes: dict[str, str] = {}
    reference: int | str = 0


payments = QueueSpec(
    "payments",
    Payment,
    bucket_count=8,
    lease_seconds=30,
    max_attempts=4,
    strategy="fifo",
    backoff=Backoff(seconds=2, factor=3, max_seconds=60),
    rate=RateLimit(100, seconds=60),
    max_running=20,
    retention_days=30,
)


def columns(spec: dg.AssetSpec) -> dict[str, dg.TableColumn]:
    schema = spec.metadata["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchema)
    return {column.name: column for column in schema.columns}


def test_the_columns_are_the_payloads_fields_as_they_are_stored() -> None:
    found = columns(build_sqlqueue_asset_spec(payments))
    assert {name: column.type for name, column in found.items()} == {
        "id": "uuid",
        "amount": "numeric",
        "count": "bigint",
        "urgent": "boolean",
        "share": "double precision",
        "country": "text",
        "kind": "text",
        "paidAt": "timestamp with time zone",
        "day": "date",
        "pin": "text",
        "source": "jsonb",
        "others": "jsonb",
        "notes": "jsonb",
        "reference": "jsonb",
    }
    assert {name for name, column in found.items() if column.constraints.nullable} == {"share", "day", "source"}
    assert found["amount"].description == "In the currency's main unit."
    assert found["count"].constraints.other == ["Python: int", "default: 1"]
    assert found["share"].constraints.other == ["Python: float | None"]
    assert found["day"].constraints.other == ["Python: datetime.date | None"]


def test_sensitive_fields_are_marked_and_show_no_default() -> None:
    spec = build_sqlqueue_asset_spec(payments)
    found = columns(spec)
    assert {name for name, column in found.items() if "sqlqueue/sensitive" in column.tags} == {
        "pin",
        "source",
        "others",
    }
    assert found["pin"].constraints.other == ["Python: str", "sensitive: shown as ***"]
    assert found["source"].constraints.other[1:] == ["sensitive inside, shown as ***: iban"]
    assert found["others"].constraints.other[1:] == ["sensitive inside, shown as ***: iban"]
    assert "0000" not in str(spec)


def test_a_payload_of_any_shape_has_no_columns() -> None:
    assert "dagster/column_schema" not in build_sqlqueue_asset_spec(QueueSpec("any", AnyObject)).metadata


def test_the_page_shows_the_queue_and_its_settings() -> None:
    spec = build_sqlqueue_asset_spec(payments, schema="billing")
    assert spec.key == queue_asset_key("payments") == dg.AssetKey(["queues", "payments"])
    assert spec.group_name == "queues"
    assert spec.kinds == {"postgres", "sqlqueue"}
    assert spec.tags["sqlqueue/queue"] == "payments"
    shown = {name: value for name, value in spec.metadata.items() if not name.endswith("column_schema")}
    assert shown == {
        "dagster/table_name": "billing.job",
        "sqlqueue/buckets": 8,
        "sqlqueue/strategy": "fifo",
        "sqlqueue/ordered": False,
        "sqlqueue/lease_seconds": 30.0,
        "sqlqueue/max_attempts": 4,
        "sqlqueue/payload": f"{__name__}.Payment",
    }
    text = spec.description or ""
    assert "`Payment`: Somebody pays somebody." in text
    assert "second paragraph" not in text
    for row in (
        "| buckets | 8 |",
        "| lease | 30 s |",
        "| backoff | 2 s × 3, up to 60 s |",
        "| rate | 100 starts in 60 s |",
        "| running at a time | 20 |",
        "| finished jobs | kept 30 days |",
    ):
        assert row in text
    ordered = QueueSpec("lines", Account, ordered=True, on_poison="stop", backoff=lambda attempt: 1.0)
    text = build_sqlqueue_asset_spec(ordered).description or ""
    assert "| order | strict for each ordering key; after a job that failed for good: stop |" in text
    assert "| backoff | a function |" in text


def test_what_is_given_replaces_or_adds() -> None:
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
    spec = build_sqlqueue_asset_spec(
        payments,
        description="Ours.",
        group_name="money",
        owners=["team:payments"],
        kinds=["cockroachdb"],
        tags={"tier": "1"},
        metadata={"runbook": "see the wiki"},
        deps=["orders"],
        freshness_policy=policy,
    )
    assert (spec.description, spec.group_name, spec.owners) == ("Ours.", "money", ["team:payments"])
    assert spec.kinds == {"cockroachdb"}
    assert spec.tags.items() >= {("tier", "1"), ("sqlqueue/queue", "payments")}
    assert spec.metadata["runbook"] == "see the wiki"
    assert spec.metadata["sqlqueue/buckets"] == 8
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("orders")]
    assert spec.freshness_policy == policy


class Ours(SqlQueueTranslator):
    def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
        made = super().get_asset_spec(data)
        return made.replace_attributes(
            key=["money", data.schema, data.spec.name], owners=["team:payments"], kinds={"sql"}
        )


def test_a_translator_says_what_a_queue_is() -> None:
    spec = build_sqlqueue_asset_spec(payments, translator=Ours(), group_name="given", schema="billing")
    assert spec.key == dg.AssetKey(["money", "billing", "payments"])
    assert (spec.owners, spec.kinds, spec.group_name) == (["team:payments"], {"sql"}, "given")
    assert "paidAt" in columns(spec)
    assert asset_key_of(payments, Ours(), schema="billing") == spec.key
    assert asset_key_of(payments) == queue_asset_key("payments")


def test_a_translator_that_gives_nothing_is_named() -> None:
    class Forgetful(SqlQueueTranslator):
        def get_asset_spec(self, data: QueueAssetData) -> Any:
            super().get_asset_spec(data)

    with pytest.raises(InvalidInput, match=r"Forgetful returned a NoneType for queue 'payments'"):
        build_sqlqueue_asset_spec(payments, translator=Forgetful())


def test_a_fan_out_is_the_queues_asset() -> None:
    daily = QueueSpec("daily", DailyAccount)
    days = dg.DailyPartitionsDefinition(start_date="2013-01-01")
    asset = build_fanout_asset(daily, list, days, translator=Ours())
    assert asset.key == asset_key_of(daily, Ours())
    spec = asset.get_asset_spec(asset.key)
    assert (spec.owners, spec.kinds, spec.group_name) == (["team:payments"], {"sql"}, "queues")
    assert list(columns(spec)) == ["account", "day", "zone"]
    assert build_fanout_asset(daily, list, days).key == queue_asset_key("daily")


def test_the_asset_loads_as_an_external_one() -> None:
    defs = dg.Definitions(assets=[build_sqlqueue_asset_spec(payments)])
    dg.Definitions.validate_loadable(defs)
    node = defs.resolve_asset_graph().get(queue_asset_key("payments"))
    assert node.is_external
    assert not node.is_executable
