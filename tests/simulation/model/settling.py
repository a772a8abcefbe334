"""Convergence: when nothing disturbs it any more, a workspace comes to rest where it is wanted, or in ERROR.

In good weather the next step is a function of the state: whatever happens by itself happens before the leader
looks again, so that each look shows what has become of the last. A state that comes again is a circle, and
never comes to rest.
"""

from codehub.domain.judge import level_of
from codehub.domain.states import DesiredState, Operation, Phase
from tests.simulation.model.engine import INDEX, Model, State
from tests.simulation.model.parts import Leader, Row
from tests.simulation.model.rows import to_workspace

PATIENCE = 600
"""Steps of leaders and jobs within which everything must have come to rest, back-off included."""


def settles(model: Model, state: State) -> str | None:
    """None when the workspace comes to rest, else what is wrong."""
    path: list[State] = []
    labels: list[str] = []
    known = model.resting
    quiet: State | None = None
    while state not in known and not _is_purged(state):
        if len(path) > PATIENCE:
            return "it converges without help: not within\n  " + "\n  ".join(labels[-40:])
        path.append(state)
        if _is_idle(state):
            if quiet is not None and _world(state) == _world(quiet):
                late = _timed_out(model, state)
                if late is not None:
                    state, quiet = late, None
                    labels.append("time passes until the operation times out")
                    continue
                wrong = _wrong_rest(model, state)
                if wrong is not None:
                    return f"it converges to its wish: {wrong}\n  " + "\n  ".join(labels[-40:])
                break
            quiet = state
        step = model.good_step(state)
        if step is None:
            return "it converges without help: nothing goes on\n  " + "\n  ".join(labels[-40:])
        label, state = step
        labels.append(label)
    known.update(path)
    return None


def _is_purged(state: State) -> bool:
    """Nothing of it is promised any more."""
    return bool(state[INDEX["row"]].value.purged)


def _timed_out(model: Model, state: State) -> State | None:
    """An operation that waits for what will not come, ends by its timeout."""
    row: Row = state[INDEX["row"]].value
    if row.operation is Operation.NONE or row.op_due == 2:
        return None
    return (model.part(INDEX["row"], row._replace(op_due=2)), *state[1:])


def _is_idle(state: State) -> bool:
    lead: Leader = state[INDEX["lead"]].value
    return lead.at == "idle" and state[INDEX["stale"]].value is None and not _has_running_jobs(state)


def _has_running_jobs(state: State) -> bool:
    return any(job.is_running for job in state[INDEX["jobs"]].value)


def _world(state: State) -> tuple[object, ...]:
    """What a whole reconcile must leave as it was."""
    return tuple(state[INDEX[name]] for name in ("row", "container", "disk", "store", "jobs", "lead"))


def _wrong_rest(model: Model, state: State) -> str | None:
    row: Row = state[INDEX["row"]].value
    if row.operation is not Operation.NONE or row.request is not None:
        return f"{row.operation} with the request {row.request} goes nowhere"
    if row.phase is Phase.ERROR:
        return None if _error_has_a_cause(model, state) else f"ERROR ({row.error}) without what ends in it"
    if row.deleted:
        return None if row.phase is Phase.DELETED else f"deleted, and still {row.phase}"
    level = level_of(to_workspace(row).conditions)
    rests = row.desired is DesiredState.PENDING or row.desired.value == level.value
    return None if rests else f"{level} where {row.desired} is wished"


def _error_has_a_cause(model: Model, state: State) -> bool:
    """Passing troubles are tried again: fewer than three of them, and nothing worse, never end in ERROR."""
    given, left = model.budget, state[INDEX["budget"]].value
    spent = given.trouble - left.trouble
    return spent >= 3 or left.outside < given.outside or left.timeout < given.timeout
