"""What `dg scaffold defs dagster_sqlqueue.SqlQueueComponent` writes."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dagster_sqlqueue.model.queue import check_queue_name

URL_VARIABLE = "SQLQUEUE_URL"

_HANDLER = '''"""The jobs of the queue `{queue}`: what they carry, and what is done for each."""

from pydantic import BaseModel

from dagster_sqlqueue import Done, Job


class {model}(BaseModel):
    """What a job carries."""

    text: str


def handle(job: Job[{model}]) -> Done:
    """Do one job. After a crash it may run again for the same job: `job.id` tells a repetition."""
    return Done({{"characters": len(job.payload.text)}})
'''

_COMPONENT = """import dagster as dg

from dagster_sqlqueue import SqlQueueComponent


@dg.component_instance
def load(context: dg.ComponentLoadContext) -> SqlQueueComponent:
    return SqlQueueComponent({arguments})
"""


class SqlQueueScaffoldParams(BaseModel):
    """What `dg scaffold defs` can be told."""

    queue: str | None = Field(default=None, description="The queue's name; else made from the last part of the path.")
    handler: str | None = Field(
        default=None,
        description="A handler that there is, as package.module:function; else one is written beside defs.yaml.",
    )


class SqlQueueScaffolder(dg.Scaffolder[SqlQueueScaffoldParams]):
    """Writes `defs.yaml`, or `component.py`, and a handler to begin with."""

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
            file.write(f"\nrequirements:\n  env:\n    - {URL_VARIABLE}\n")


def _handler_beside(directory: Path, queue: str) -> str:
    """The name of a module in that directory with a handler, which is written; a file that is there is left alone."""
    name: Any = next(name for name in ("handler", f"{queue}_handler") if not (directory / f"{name}.py").exists())
    model = "".join(part.capitalize() for part in queue.split("_"))
    (directory / f"{name}.py").write_text(_HANDLER.format(queue=queue, model=model), encoding="utf-8")
    return str(name)
