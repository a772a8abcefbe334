"""Convergence: without further disturbances, a workspace settles in its desired state or in ERROR.

Without disturbances the next step is a function of the state: everything that happens on its own
happens before the leader observes again. A state that repeats is a cycle, which never settles.
"""

from codehub.domain.judge import level_of
from codehub.domain.states import DesiredState, Operation, Phase
from tests.simulation.model.engine import INDEX, Model, State
from tests.simulation.model.row_conversion import to_workspace
from tests.simulation.model.state_parts import Leader, Row

MAX_STEPS = 600
"""Steps of leaders and jobs within which everything must settle, back-off included."""


def settles(model: Model, state: State) -> str | None:
    """Return None if the workspace settles, or else what is wrong."""
    path: list[State] = []
    labels: list[str] = []
    known = model.settled_states
    quiet: State | None = None
    while state not in known and not _is_purged(state):
        if len(path) > MAX_STEPS:
            return "it converges without help: not within\n  " + "\n  ".join(labels[-40:])
        path.append(state)
        if _is_idle(state):
            if quiet is not None and _compared_parts(state) == _compared_parts(quiet):
                late = _timed_out(model, state)
                if late is not None:
                    state, quiet = late, None
                    labels.append("time passes until the operation times out")
                    continue
                wrong = _wrong_end(model, state)
                if wrong is not None:
                    return f"it converges to its desired state: {wrong}\n  " + "\n  ".join(labels[-40:])
                break
            quiet = state
        step = model.undisturbed_step(state)
        if step is None:
            return "it converges without help: no step applies\n  " + "\n  ".join(labels[-40:])
        label, state = step
        labels.append(label)
    known.update(path)
    return None


def _is_purged(state: State) -> bool:
    """Return whether no contract protects the workspace any longer."""
    return bool(state[INDEX["row"]].value.purged)


def _timed_out(model: Model, state: State) -> State | None:
    """Return the state after the timeout of an operation that waits in vain."""
    row: Row = state[INDEX["row"]].value
    if row.operation is Operation.NONE or row.op_due == 2:
        return None
    return (model.part(INDEX["row"], row._replace(op_due=2)), *state[1:])


def _is_idle(state: State) -> bool:
    lead: Leader = state[INDEX["lead"]].value
    return lead.at == "idle" and state[INDEX["stale"]].value is None and not _has_running_jobs(state)


def _has_running_jobs(state: State) -> bool:
    return any(job.is_running for job in state[INDEX["jobs"]].value)


def _compared_parts(state: State) -> tuple[object, ...]:
    """Return the parts that a complete reconcile must leave unchanged."""
    return tuple(state[INDEX[name]] for name in ("row", "container", "disk", "store", "jobs", "lead"))


def _wrong_end(model: Model, state: State) -> str | None:
    row: Row = state[INDEX["row"]].value
    if row.operation is not Operation.NONE or row.request is not None:
        return f"{row.operation} with the request {row.request} never ends"
    if row.phase is Phase.ERROR:
        return None if _error_has_a_cause(model, state) else f"ERROR ({row.error}) without what ends in it"
    if row.deleted:
        return None if row.phase is Phase.DELETED else f"deleted, and still {row.phase}"
    level = level_of(to_workspace(row).conditions)
    settled = row.desired is DesiredState.PENDING or row.desired.value == level.value
    return None if settled else f"{level} where {row.desired} is desired"


def _error_has_a_cause(model: Model, state: State) -> bool:
    """Return whether enough happened to explain ERROR: passing faults are retried three times."""
    given, left = model.budget, state[INDEX["budget"]].value
    spent = given.trouble - left.trouble
    return spent >= 3 or left.outside < given.outside or left.timeout < given.timeout
