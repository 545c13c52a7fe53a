"""The steps of a run that have not ended: from its execution plan and its events.

Dagster tells a hook nothing about the other steps. Where plan and events leave a step in doubt, it counts as open.
"""

import enum
from collections.abc import Mapping

import dagster as dg
from dagster._core.execution.plan.inputs import FromDynamicCollect, FromMultipleSources
from dagster._core.snap.execution_plan_snapshot import ExecutionPlanSnapshot, ExecutionStepInputSnap, ExecutionStepSnap

_MAPPED = "[?]"
_EVENTS = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_UP_FOR_RETRY,
    dg.DagsterEventType.STEP_RESTARTED,
    dg.DagsterEventType.STEP_OUTPUT,
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
}


class _State(enum.Enum):
    OPEN = enum.auto()
    """It runs, waits for its next attempt, or can still start."""
    SUCCEEDED = enum.auto()
    SKIPPED = enum.auto()
    """An output that it needs was not produced."""
    FAILED = enum.auto()
    """Or it depends on one that failed, and never starts."""


_ENDS = {
    dg.DagsterEventType.STEP_SUCCESS: _State.SUCCEEDED,
    dg.DagsterEventType.STEP_FAILURE: _State.FAILED,
    dg.DagsterEventType.STEP_SKIPPED: _State.SKIPPED,
}


def open_steps(instance: dg.DagsterInstance, run: dg.DagsterRun, *, failed: str) -> list[str]:
    """Find the steps of a run that are running or can still run. Returns their keys; of a step that is mapped over dynamic
    outputs which do not exist yet, the key is `name[?]`.

    Args:
        instance: that has the run.
        run: with its plan.
        failed: the key of a step that has failed for good; its own event may not be there yet.
    """
    if run.execution_plan_snapshot_id is None:
        return ["of an unknown plan"]
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    states: dict[str, _State] = {}
    outputs: set[tuple[str, str, str | None]] = set()
    for entry in instance.all_logs(run.run_id, of_type=_EVENTS):
        event = entry.dagster_event
        if event is None or event.step_key is None:
            continue
        if event.event_type is dg.DagsterEventType.STEP_OUTPUT:
            made = event.step_output_data
            outputs.add((event.step_key, made.output_name, made.mapping_key))
        else:
            states[event.step_key] = _ENDS.get(event.event_type, _State.OPEN)
    return _Steps(plan, {**states, failed: _State.FAILED}, outputs).open()


class _Steps:
    """A plan, and what its steps have done."""

    def __init__(
        self, plan: ExecutionPlanSnapshot, states: Mapping[str, _State], outputs: set[tuple[str, str, str | None]]
    ) -> None:
        self._steps = {step.key: step for step in plan.steps}
        self._chosen = frozenset(plan.step_keys_to_execute or self._steps)
        self._outputs = outputs
        self._states = dict(states)

    def open(self) -> list[str]:
        """The keys of the steps that have not ended."""
        keys = [key for one in sorted(self._chosen) for key in self._instances(one)]
        return [key for key in dict.fromkeys([*self._states, *keys]) if self._of(key) is _State.OPEN]

    def _instances(self, key: str) -> list[str]:
        """The step, or one for each of the dynamic outputs over which it is mapped; itself while there is none."""
        if not key.endswith(_MAPPED) or key not in self._steps:
            return [key]
        return [_resolved(key, one) for one in self._mapping_keys(self._steps[key])] or [key]

    def _of_mapped(self, step: ExecutionStepSnap) -> list[_State]:
        """The states of a mapped step's instances."""
        return [self._of(key) for key in self._instances(step.key)]

    def _mapping_keys(self, step: ExecutionStepSnap) -> list[str]:
        produced = {
            (handle.step_key, handle.output_name) for one in step.inputs for handle in one.upstream_output_handles
        }
        keys = {key for of, name, key in self._outputs if key is not None and (of, name) in produced}
        # In a re-execution the outputs may be those of an earlier run.
        keys |= {key[len(step.key) - 2 : -1] for key in self._chosen if _is_of(key, step.key)}
        for of, _ in produced:
            if of.endswith(_MAPPED) and of in self._steps:
                keys |= set(self._mapping_keys(self._steps[of]))
        return sorted(keys)

    def _of(self, key: str) -> _State:
        if key not in self._states:
            step, mapping_key = self._find(key)
            self._states[key] = _State.OPEN if step is None else self._by_inputs(step, mapping_key)
        return self._states[key]

    def _find(self, key: str) -> tuple[ExecutionStepSnap | None, str | None]:
        if key in self._steps:
            return self._steps[key], None
        name, _, mapping_key = key.removesuffix("]").rpartition("[")
        return self._steps.get(name + _MAPPED), mapping_key

    def _by_inputs(self, step: ExecutionStepSnap, mapping_key: str | None) -> _State:
        """The state of a step that has not started."""
        skipped = False
        states: list[_State] = []
        for one in step.inputs:
            its, missing = self._of_input(one, mapping_key)
            states += its
            skipped = skipped or missing
        if _State.FAILED in states:
            return _State.FAILED
        return _State.SKIPPED if skipped and _State.OPEN not in states else _State.OPEN

    def _of_input(self, one: ExecutionStepInputSnap, mapping_key: str | None) -> tuple[list[_State], bool]:
        """The states of the steps that an input is from, and whether its value was not produced."""
        states: list[_State] = []
        missing: list[bool] = []
        for handle in one.upstream_output_handles:
            above = handle.step_key
            if above.endswith(_MAPPED) and above in self._steps:
                if mapping_key is None:
                    mapped = self._of_mapped(self._steps[above])
                    states += mapped
                    missing.append(all(state is _State.SKIPPED for state in mapped))
                    continue
                above = _resolved(above, mapping_key)
            if above not in self._chosen and not self._is_mapped(above):
                # An earlier run produced it.
                continue
            states.append(self._of(above))
            there = {key for of, name, key in self._outputs if (of, name) == (above, handle.output_name)}
            missing.append(states[-1] in (_State.SUCCEEDED, _State.SKIPPED) and not there)
        if isinstance(one.source, FromDynamicCollect) or not missing:
            # A collection of no outputs is a value.
            return states, False
        return states, all(missing) if isinstance(one.source, FromMultipleSources) else any(missing)

    def _is_mapped(self, key: str) -> bool:
        """Whether a key is of a mapped step of this run."""
        return key.endswith("]") and f"{key.rpartition('[')[0]}{_MAPPED}" in self._chosen


def _resolved(unresolved: str, mapping_key: str) -> str:
    return f"{unresolved.removesuffix(_MAPPED)}[{mapping_key}]"


def _is_of(key: str, unresolved: str) -> bool:
    return key != unresolved and key.endswith("]") and key.startswith(unresolved.removesuffix("?]"))
