"""Resources with fields that are set in the code and are no part of a run's configuration."""

import os
from typing import Annotated, Any, ClassVar

import dagster as dg
from dagster._config.field_utils import IntEnvVar
from pydantic import WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.descriptions import summary_of


def _unless_variable(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return given if isinstance(given, IntEnvVar) else check(given)


UnlessVariable = Annotated[int, WrapValidator(_unless_variable)]
"""A whole number whose limits do not apply to `dagster.EnvVar.int(…)`, which is 0 until Dagster resolves it. They apply to
the value of the variable."""


class CodeOnlyResource(dg.ConfigurableResource[Any]):
    """A resource with fields that the launchpad neither shows nor accepts: secrets, which it would fill in masked and submit
    masked, and settings that decide which database a run uses.

    Dagster resolves an `EnvVar` in such a field when a run or a tick begins; outside of them it stays an `EnvVar`.

    Its description in the UI is the first paragraph of the class's docstring.

    Attributes:
        code_only: the names of these fields.
    """

    code_only: ClassVar[frozenset[str]] = frozenset()

    def get_resource_definition(self) -> Any:
        """The resource as Dagster's pages show it."""
        # Dagster caches it, and has no parameter for the description, which would be the whole docstring.
        made: Any = super().get_resource_definition()
        made._description = summary_of(type(self))
        return made

    @property
    def _config_schema(self) -> Any:
        """The schema of a run's configuration, without these fields."""
        schema: Any = super()._config_schema
        whole = schema.as_field()
        fields = {name: field for name, field in whole.config_type.fields.items() if name not in self.code_only}
        default = {name: value for name, value in whole.default_value.items() if name not in self.code_only}
        shape = dg.Shape(fields)  # type: ignore[no-untyped-call]
        return type(schema)(
            dg.Field(shape, default_value=default, is_required=False, description=summary_of(type(self)))
        )

    def _convert_to_config_dictionary(self) -> Any:
        made = super()._convert_to_config_dictionary()
        # While it constructs the resource, Dagster needs all of them.
        if "_state__internal__" not in (self.__pydantic_private__ or {}):
            return made
        return {name: value for name, value in made.items() if name not in self.code_only}

    def _with_updated_values(self, values: Any) -> Any:
        """The resource that Dagster makes of the one in the code and the configuration of a launch."""
        in_code = {name: getattr(self, name) for name in self.code_only}
        found = {
            name: looked_up(one, f"{name} of {type(self).__name__}") for name, one in in_code.items() if one is not None
        }
        return super()._with_updated_values({**(values or {}), **found})


def looked_up(given: str, what: str) -> str:
    """Return a text, or the value of the environment variable in its place.

    Args:
        given: the text, or a `dagster.EnvVar`.
        what: the name of the setting, for the message.

    Raises:
        InvalidInput: the variable is not set.
    """
    if not isinstance(given, dg.EnvVar):
        return given
    text = os.environ.get(given.env_var_name)
    if not text:
        raise InvalidInput(
            f"the environment variable {given.env_var_name}, which is to hold {what}, is not set where this process runs;"
            " set it for the daemon, the code server and the runs"
        )
    return text


def looked_up_number(given: int, what: str) -> int:
    """Return a whole number, or that in the environment variable in its place.

    Args:
        given: the number, or a `dagster.EnvVar.int`.
        what: the name of the setting, for the message.

    Raises:
        InvalidInput: the variable is not set, or is no whole number.
    """
    if not isinstance(given, IntEnvVar):
        return given
    text = looked_up(dg.EnvVar(given.name), what)
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(
            f"the environment variable {given.name} is {text!r:.100}, and is to hold {what}; give a whole number"
        ) from None
