"""The tests of this folder share a schema."""

from tests.support.claimed_ahead import sending_claims
from tests.support.locked_ahead import quick, sending
from tests.support.shared_schema import filled, ordered, queue, shared, today, whole_day
from tests.support.transactional import effect

__all__ = ["effect", "filled", "ordered", "queue", "quick", "sending", "sending_claims", "shared", "today", "whole_day"]
