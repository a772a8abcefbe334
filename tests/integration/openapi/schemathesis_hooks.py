"""Hooks of schemathesis: they record the status of each call (see `schemathesis_run`)."""

import json
import os
from typing import Any

import schemathesis
from schemathesis.openapi.checks import UnsupportedMethodResponse

from codehub.domain.waking import MOST_WAIT_SECONDS

LONGEST_WAIT = 1
_RECORD = os.environ["SCHEMATHESIS_RECORD"]


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Record every call, also those of a run that is ended."""
    with open(_RECORD, "a") as file:
        file.write(json.dumps([case.operation.label, response.status_code]) + "\n")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Shorten the waits for a workspace to wake, of up to 55 s each, which would be most of a run."""
    if isinstance(body, dict) and body.get("wake") in (True, "restore"):
        asked = body.get("wake_timeout_seconds", LONGEST_WAIT)
        if isinstance(asked, int | float) and LONGEST_WAIT < asked <= MOST_WAIT_SECONDS:
            body["wake_timeout_seconds"] = LONGEST_WAIT
        body.setdefault("wake_timeout_seconds", LONGEST_WAIT)
    return body


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Accept 414 where 405 is expected: the gateway refuses long addresses before it looks at methods."""
    return not (isinstance(failure, UnsupportedMethodResponse) and response.status_code == 414)
