"""Every verb that people call, as an attempt of somebody with one role, and who of the four may do it."""

from tests.roles.attempts import looking, operating, people, publishing, putting, taking, telling
from tests.roles.desk import TABLE as TABLE

MODULES = (putting, taking, looking, operating, publishing, people, telling)
