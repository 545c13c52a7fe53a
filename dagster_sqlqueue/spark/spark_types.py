"""Spark's types of columns, by the names that this package knows them by."""

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}


def spark_type(kind: str) -> DataType:
    """Return the type of a name, as `kinds.kind` returns it."""
    if kind.startswith("decimal"):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return DecimalType(int(precision), int(scale))
    return _TYPES[kind]
