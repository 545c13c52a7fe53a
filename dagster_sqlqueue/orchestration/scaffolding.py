"""The files of `dg scaffold defs dagster_sqlqueue.SqlQueueComponent`."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dagster_sqlqueue.model.queue import check_queue_name

URL_VARIABLE = "SQLQUEUE_URL"

_HANDLER = '''"""The jobs of the queue `{queue}`: their payload and their handler."""

from pydantic import BaseModel

from dagster_sqlqueue import Done, Job


class {model}(BaseModel):
    """The payload of a job."""

    text: str


def handle(job: Job[{model}]) -> Done:
    """Do one job. After a crash it may run again for the same job: `job.id` identifies a repetition."""
    return Done({{"characters": len(job.payload.text)}})
'''

_SWITCH = """  # The sensors are off until you switch them on, under Automation in the UI. With this line they begin on:
  # default_status: RUNNING
"""

_COMPONENT = """import dagster as dg

from dagster_sqlqueue import SqlQueueComponent


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> SqlQueueComponent:
    # The sensors are off until you switch them on, under Automation in the UI. With this argument they begin on:
    # default_status=dg.DefaultSensorStatus.RUNNING
    return SqlQueueComponent({arguments})
"""


class SqlQueueScaffoldParams(BaseModel):
    """The options of `dg scaffold defs`."""

    queue: str | None = Field(default=None, description="The queue's name; unset: made from the last part of the path.")
    handler: str | None = Field(
        default=None,
        description="An existing handler, as package.module:function; unset: one is written beside defs.yaml.",
    )


class SqlQueueScaffolder(dg.Scaffolder[SqlQueueScaffoldParams]):
    """Writes `defs.yaml`, or `component.py`, and a first handler."""

    @classmethod
    def get_scaffold_params(cls) -> type[SqlQueueScaffoldParams]:
        """The options of the command."""
        return SqlQueueScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[SqlQueueScaffoldParams]) -> None:
        """Write the files.

        Raises:
            InvalidInput: no queue can have that name; nothing was written.
        """
        directory = request.target_path.parent if request.append else request.target_path
        queue = check_queue_name(request.params.queue or re.sub(r"\W+", "_", directory.name).lower())
        attributes = {
            "queue": queue,
            "handler": request.params.handler or f".{_handler_beside(directory, queue)}:handle",
        }
        if request.scaffold_format == "python":
            arguments = ", ".join(f'{name}="{value}"' for name, value in attributes.items())
            (directory / "component.py").write_text(_COMPONENT.format(arguments=arguments), encoding="utf-8")
            return
        dg.scaffold_component(request, attributes)
        written = request.target_path if request.append else directory / "defs.yaml"
        with written.open("a", encoding="utf-8") as file:
            file.write(f"{_SWITCH}\nrequirements:\n  env:\n    - {URL_VARIABLE}\n")


def _handler_beside(directory: Path, queue: str) -> str:
    """Write a module with a handler in the directory, unless the file exists. Returns the module's name."""
    name: Any = next(name for name in ("handler", f"{queue}_handler") if not (directory / f"{name}.py").exists())
    model = "".join(part.capitalize() for part in queue.split("_"))
    (directory / f"{name}.py").write_text(_HANDLER.format(queue=queue, model=model), encoding="utf-8")
    return str(name)
