"""The API as its OpenAPI document describes it, called by schemathesis on a whole running system.

`make test` calls a part of the operations, chosen by the commit, with few examples; `make test-all`
calls all with many. New routes are called without a change here. Not called:

- WebSockets, which no OpenAPI tool can open: test_terminals.py opens them.
- `follow=true`, which has no end while a command runs: test_commands_system.py follows output.
- POST /logout with a cookie, which ends the session of the run: test_authorization.py calls it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from codehub.openapi_document import WEBSOCKET
from codehub.ulids import new_id
from tests.integration.access.conftest import IMAGES, Workspace
from tests.integration.openapi.schemathesis_run import Credential, Outcome, Run, execute
from tests.selection import EVERYTHING, SEED, sample
from tests.services import System
from tests.waiting import wait_for

V1 = "/api/v1"
W = f"{V1}/workspaces/{{workspace_id}}"
E = f"{W}/execs/{{exec_id}}"
F = f"{W}/files"
PASSWORD = "a good password"
SCOPES = ("read", "manage", "use", "admin")
LOGOUT = f"POST {V1}/logout"
MAY_REJECT = {
    f"POST {V1}/login": "a username has a form",
    f"POST {V1}/workspaces": "the image and the shortest TTL are settings",
    f"PATCH {W}": "the shortest TTL is a setting",
    f"DELETE {W}": "the name must be confirmed",
    f"POST {W}/recover": "an archive is named for a recovery from it only",
    f"POST {W}/restore": "the archive must be one of the workspace",
    f"POST {W}/leases": "the longest lease is a setting",
    f"PUT {W}/leases/{{lease_id}}": "the longest lease is a setting",
    f"POST {V1}/users": "a service account has no password and no role",
    f"PATCH {V1}/users/{{user_id}}": "a password needs the caller's own",
    f"POST {V1}/session/password": "a password has a length",
    f"POST {V1}/tokens": "a bound token is bound to own workspaces, and not for admins",
    f"POST {V1}/users/{{user_id}}/tokens": "a bound token is bound to own workspaces, and not for admins",
    f"GET {V1}/admin/audit": "a time must be before the other",
    f"POST {W}/execs": "a command has a program, and some variables are CodeHub's",
    f"GET {F}": "a path is given in one way and has at most 4,095 bytes",
    f"GET {F}/content": "a path is given in one way and has at most 4,095 bytes",
    f"PUT {F}/content": "a path is given in one way and has at most 4,095 bytes",
    f"DELETE {F}/content": "the home cannot be removed",
    f"POST {F}/move": "the home cannot be moved",
    f"POST {F}/directory": "a path is given in one way and has at most 4,095 bytes",
    f"GET {F}/search": "a path is given in one way and has at most 4,095 bytes",
    f"GET {F}/tar": "a path is given in one way and has at most 4,095 bytes",
    f"PUT {F}/tar": "not all bytes are a tar archive",
}
"""Operations whose valid data may get 422 for what a schema does not express, each with the reason."""
OF_TRASH = (f"GET {W}/timeline", f"GET {W}/archives", f"POST {W}/undelete", f"DELETE {W}")
"""Operations that a deleted workspace still has."""
REACHED = (
    *(f"GET {W}", f"GET {W}/execs", f"POST {W}/execs", f"GET {E}", f"GET {E}/output", f"GET {W}/logs"),
    *(f"GET {F}", f"GET {F}/tar", f"GET {V1}/session", f"GET {V1}/workspaces"),
)
"""Operations that must have succeeded at least once: otherwise the run has reached no workspace."""


@dataclass
class Caller:
    """A new admin, a running workspace, and ids of own things that a run may change or delete."""

    system: System
    name: str
    api: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        with closing(self.system.client()) as root:
            account = {"username": self.name, "password": PASSWORD, "role": "admin"}
            assert root.post(f"{V1}/users", json=account).status_code == 201
        self.api = self.system.client(self.name, PASSWORD)

    @cached_property
    def running(self) -> Workspace:
        made = Workspace(self.system, self.api, self.make("workspaces", name="running"))
        wait_for(lambda: made.is_in("RUNNING"), "the workspace to run")
        return made

    def make(self, path: str, **body: Any) -> str:
        answer = self.api.post(f"{V1}/{path}", json=body)
        assert answer.status_code == 201, answer.text
        made: str = answer.json()["id"]
        return made

    def token(self, *scopes: str) -> Credential:
        confirmed = self.api.post(f"{V1}/session/confirm", json={"password": PASSWORD})
        assert confirmed.status_code == 204, confirmed.text
        answer = self.api.post(f"{V1}/tokens", json={"name": new_id(), "scopes": scopes})
        assert answer.status_code == 201, answer.text
        return Credential("token", answer.json()["token"])

    @property
    def cookie(self) -> Credential:
        return Credential("session", self.api.cookies["session"])

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Ids of things that no operation changes or ends, but for those of `own_parameters`."""
        self.service = self.make("users", username=f"{self.name}-service", service=True)
        ended = self.running.start("echo output")
        assert self.running.output(ended).content == b"output\n"
        return {
            "path.workspace_id": self.running.id,
            "path.exec_id": ended,
            "path.user_id": self.service,
            "path.lease_id": self._lease(),
            "query.follow": False,
        }

    @cached_property
    def own_parameters(self) -> dict[str, dict[str, Any]]:
        stopped = self._stopped()
        terminal = self.running.start("cat", tty={"rows": 24, "cols": 80})
        token_of_service = self.make(f"users/{self.service}/tokens", name="one", scopes=["read"])
        return {
            **{f"{call}": {"path.workspace_id": stopped} for call in self._changing_calls()},
            f"DELETE {W}": {"path.workspace_id": self._stopped()},
            f"DELETE {E}": {"path.exec_id": self.running.start("true")},
            f"POST {E}/stdin": {"path.exec_id": self.running.start("cat >/dev/null")},
            f"POST {E}/signal": {"path.exec_id": self.running.start("cat")},
            f"POST {E}/resize": {"path.exec_id": terminal},
            f"DELETE {W}/leases/{{lease_id}}": {"path.lease_id": self._lease()},
            f"DELETE {V1}/users/{{user_id}}": {
                "path.user_id": self.make("users", username=f"{self.name}-deleted", service=True)
            },
            f"DELETE {V1}/tokens/{{token_id}}": {
                "path.token_id": self.make("tokens", name="revoked", scopes=["read"])
            },
            f"DELETE {V1}/users/{{user_id}}/tokens/{{token_id}}": {"path.token_id": token_of_service},
        }

    def _changing_calls(self) -> Sequence[str]:
        actions = ("recover", "restore", "cancel", "undelete")
        return (f"PATCH {W}", *(f"POST {W}/{action}" for action in actions))

    def _stopped(self) -> str:
        return self.make("workspaces", name="stopped", desired_state="STANDBY")

    def _lease(self) -> str:
        return self.make(f"workspaces/{self.running.id}/leases", seconds=86_400, reason="a test")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGES)
    limits = {"LIMITS_MAX_RUNNING_PER_USER": "3", "LIMITS_MAX_WORKSPACES_PER_USER": "12"}
    system = System({"IMAGES_FILE": str(images), "GATEWAY_WORKERS": "1", **limits})
    try:
        yield system.start()
    finally:
        system.close()


@pytest.fixture(scope="module")
def operations(system: System) -> list[str]:
    """All operations of the document that the system serves, but for WebSockets."""
    document = httpx.get(f"{system.base_url}{V1}/openapi.json").json()
    found = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if WEBSOCKET not in operation
    ]
    assert len(found) > 50 and set(MAY_REJECT) <= set(found)
    return found


@pytest.fixture(scope="module")
def caller(system: System) -> Caller:
    return Caller(system, "caller")


def check(outcome: Outcome, caller: Caller, credential: Credential) -> None:
    """Check that nothing was found, and that the run still had its credential and its workspace."""
    assert not outcome.failed, f"seed {SEED}\n{outcome.failures}"
    session = httpx.get(f"{caller.system.base_url}{V1}/session", headers=credential.headers)
    assert session.status_code == 200, f"the run has lost its credential: {session.text}"
    assert caller.running.is_in("RUNNING"), "the run has lost its workspace"


@pytest.mark.parametrize("kind", ["token", "cookie"])
def test_every_call_behaves_as_documented(
    system: System, operations: list[str], caller: Caller, kind: str, tmp_path: Path
) -> None:
    """With a token of every scope, and with a cookie: valid data is accepted, invalid data rejected."""
    credential = caller.token(*SCOPES) if kind == "token" else caller.cookie
    reached = REACHED if kind == "token" else REACHED[:3]
    called = {*sample(operations, 10 if kind == "token" else 4, f"calls with a {kind}"), *reached}
    run = Run(
        sorted(called if kind == "token" else called - {LOGOUT}),
        credential,
        "coverage,fuzzing",
        30 if EVERYTHING else 3,
        parameters=caller.parameters,
        own_parameters=caller.own_parameters,
        may_reject=MAY_REJECT,
    )
    outcome = execute(run, system.base_url, tmp_path)
    check(outcome, caller, credential)
    unreached = [
        f"{call}: {dict(outcome.statuses.get(call, {}))}"
        for call in reached
        if not any(200 <= status < 300 for status in outcome.statuses.get(call, ()))
    ]
    assert not unreached, "\n".join(unreached)


def test_no_path_is_a_server_error(
    system: System, operations: list[str], caller: Caller, tmp_path: Path
) -> None:
    """Ids of any text. Valid ones that name nothing are 404."""
    credential = caller.token(*SCOPES)
    with_ids = sample([call for call in operations if "{" in call], 6, "paths")
    run = Run(with_ids, credential, "fuzzing", 30 if EVERYTHING else 5, may_reject=MAY_REJECT)
    check(execute(run, system.base_url, tmp_path), caller, credential)


@pytest.mark.sampled(1, "test_a_call_without_its_scope")
@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_without_its_scope_is_a_documented_403(
    system: System, operations: list[str], caller: Caller, scope: str, tmp_path: Path
) -> None:
    credential = caller.token(scope)
    run = Run(
        sample(operations, 10, f"calls with the scope {scope}"),
        credential,
        "fuzzing",
        10 if EVERYTHING else 2,
        parameters=caller.parameters,
        own_parameters=caller.own_parameters,
        may_reject=MAY_REJECT,
    )
    check(execute(run, system.base_url, tmp_path), caller, credential)


def test_what_is_made_is_found_and_what_is_deleted_is_gone(
    system: System, operations: list[str], tmp_path: Path
) -> None:
    """Chains of calls about workspaces: the ids of answers are the parameters of further calls."""
    caller = Caller(system, "by-links")
    run = Run(
        [call for call in operations if f"{V1}/workspaces" in call],
        caller.token(*SCOPES),
        "stateful",
        40 if EVERYTHING else 8,
        mode="positive",
        parameters={"query.follow": False, "query.wake_timeout_seconds": 0},
        may_reject=MAY_REJECT,
        of_trash=OF_TRASH,
    )
    outcome = execute(run, system.base_url, tmp_path)
    assert not outcome.failed, f"seed {SEED}\n{outcome.failures}"
    made = outcome.statuses[f"POST {V1}/workspaces"]
    assert made[201], outcome.output
