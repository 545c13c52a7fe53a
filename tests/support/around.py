"""Standing around an object: to note, delay or lose what it is asked, while everything else goes to it as it is."""

from typing import Any


class Around:
    """What this does not say itself, `inner` says."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
