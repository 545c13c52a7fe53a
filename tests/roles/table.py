"""Every verb that people call, as an attempt of somebody with one role, and who of the four may do it."""

from tests.roles.attempts import admin, claim, enqueue, people, publish, results, stats
from tests.roles.desk import TABLE as TABLE

MODULES = (enqueue, claim, stats, admin, publish, people, results)
