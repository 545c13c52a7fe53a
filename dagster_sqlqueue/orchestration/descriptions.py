"""Descriptions for Dagster's pages, made of docstrings. The pages render Markdown, in which indented lines are code."""

import functools
import inspect
from typing import Any


def description_of(function: Any) -> str:
    """Return a function's docstring without its indentation; of a `functools.partial`, that of the function in it. Empty:
    it has none.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.cleandoc(getattr(function, "__doc__", None) or "")


def summary_of(documented: type) -> str:
    """Return the first paragraph of a class's docstring, in one line: what follows is for those who write code."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
