"""Spark's types of columns, by the names that this package knows them by."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dagster_sqlqueue.spark import kinds

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
    if kinds.is_nested(kind):
        sort, types = kinds.inside(kind)
        if sort == "struct":
            return StructType([StructField(name, spark_type(inner)) for name, inner in types.items()])
        inner = spark_type(types[""])
        return ArrayType(inner) if sort == "array" else MapType(StringType(), inner)
    if kind.startswith("decimal"):
        return DecimalType(*kinds.digits(kind))
    return _TYPES[kind]


def kind_of(found: DataType) -> str:
    """Return the name of a type, as `kinds.kind` returns it; Spark's, if columns cannot be of it."""
    if isinstance(found, ArrayType):
        return f"array<{kind_of(found.elementType)}>"
    if isinstance(found, MapType):
        return f"map<{kind_of(found.keyType)},{kind_of(found.valueType)}>"
    if isinstance(found, StructType):
        return kinds.struct_of({field.name: kind_of(field.dataType) for field in found.fields})
    return found.simpleString()
