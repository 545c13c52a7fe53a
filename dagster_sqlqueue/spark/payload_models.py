"""A queue's payload model as the data source knows it: its columns for reads, itself for writes.

It is pickled by itself, inside the source: a read does not need its module where Spark runs, a write loads it there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel
from pyspark import cloudpickle

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.payload_columns import payload_schema


@dataclass(frozen=True, slots=True)
class PayloadModel:
    """A model on its way to Spark.

    Attributes:
        name: of its class.
        columns: its fields in Spark's notation; or why it has none, and the option `payload` has to name them.
        pickled: the class, by reference where a module has it, by value where a script or a notebook does; or why it is not
            to be had.
    """

    name: str
    columns: str | InvalidInput
    pickled: bytes | InvalidInput = field(repr=False)

    def schema(self) -> str:
        """Return the columns of a read.

        Raises:
            InvalidInput: the model has a field that no one type of column holds.
        """
        if isinstance(self.columns, InvalidInput):
            raise self.columns
        return self.columns

    def load(self) -> type[BaseModel]:
        """Return the class.

        Raises:
            InvalidInput: its module is not there, or it could not be pickled.
        """
        if isinstance(self.pickled, InvalidInput):
            raise self.pickled
        try:
            found: type[BaseModel] = cloudpickle.loads(self.pickled)
        except Exception as error:
            raise InvalidInput(
                f"the payload's model {self.name} cannot be loaded where Spark runs ({type(error).__name__}: {error}):"
                " install the module that defines it for Spark's driver and its executors"
            ) from error
        return found


@dataclass(frozen=True, slots=True)
class PayloadModels:
    """The models that the source was registered with.

    Attributes:
        by_queue: by the queue's name.
        of_all: of every other queue.
    """

    by_queue: Mapping[str, PayloadModel] = field(default_factory=dict)
    of_all: PayloadModel | None = None

    def of(self, queue: str | None) -> PayloadModel | None:
        """Return the model of a queue, if there is one."""
        return self.by_queue.get(queue or "", self.of_all)


def payload_models(payload: type[BaseModel] | Mapping[str, type[BaseModel]] | None) -> PayloadModels:
    """Return the models to register a source with.

    Raises:
        InvalidInput: one is no pydantic model.
    """
    if payload is None:
        return PayloadModels()
    if isinstance(payload, Mapping):
        return PayloadModels({queue: _packed(model) for queue, model in payload.items()})
    return PayloadModels(of_all=_packed(payload))


def _packed(model: type[BaseModel]) -> PayloadModel:
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InvalidInput(f"payload is {model!r:.100}; it must be a pydantic model, or one for each queue by its name")
    columns: str | InvalidInput
    pickled: bytes | InvalidInput
    try:
        columns = payload_schema(model)
    except InvalidInput as error:
        columns = error
    try:
        pickled = cloudpickle.dumps(model)  # type: ignore[no-untyped-call]
    except Exception as error:
        # Pydantic keeps what stands around a model in a function, connections and all.
        pickled = InvalidInput(
            f"the payload's model {model.__name__} cannot be pickled for Spark's tasks ({type(error).__name__}: {error}):"
            " define it in a module, not in a function"
        )
    return PayloadModel(model.__name__, columns, pickled)
