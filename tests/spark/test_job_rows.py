"""Which columns of a data frame may be a payload's field and a setting of the job: told without Spark."""

from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, create_model
from pyspark.sql.types import StringType, StructField, StructType

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.job_rows import JobRows
from dagster_sqlqueue.spark.payload_models import payload_models

COLUMNS = StructType([StructField("region", StringType()), StructField("n", StringType())])


def rows_of(model: type[BaseModel]) -> JobRows:
    return JobRows("work", COLUMNS, "*", payload_models(model).of("work"))


def parcel(field: Any, name: str = "place", *, by_name: bool = False) -> type[BaseModel]:
    config = ConfigDict(validate_by_name=by_name, validate_by_alias=True)
    made: type[BaseModel] = create_model("Parcel", __config__=config, **{name: (str, field)})
    return made


@pytest.mark.parametrize(
    "model",
    [
        parcel(Field(""), "region"),
        parcel(Field("", alias="region")),
        parcel(Field("", validation_alias="region")),
        parcel(Field("", alias="other", validation_alias="region")),
        parcel(Field("", validation_alias=AliasChoices("other", "region"))),
        parcel(Field("", validation_alias=AliasPath("region", 0))),
        parcel(Field("", validation_alias=AliasChoices("other", AliasPath("region", "name")))),
        parcel(Field("", validation_alias="other"), "region", by_name=True),
    ],
)
def test_a_column_that_a_model_reads_and_that_is_a_setting_is_asked_for(model: type[BaseModel]) -> None:
    with pytest.raises(InvalidInput, match="column 'region' is a field of Parcel and a setting of the job"):
        rows_of(model)


@pytest.mark.parametrize(
    "model",
    [
        parcel(Field("")),
        parcel(Field("", serialization_alias="region")),
        parcel(Field("", alias="region", validation_alias="other")),
        parcel(Field("", validation_alias="other"), "region"),
    ],
)
def test_a_column_that_a_model_does_not_read_is_a_setting(model: type[BaseModel]) -> None:
    rows_of(model)
