"""The authorization matrix: every call by each kind of caller. A route without a row fails."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from codehub.domain.states import Role
from tests.integration.api.conftest import PASSWORD, Api

CALLERS = ("anonymous", "owner", "other", "admin")


@dataclass(frozen=True)
class Row:
    """The status for each of CALLERS, and the state of the owner's workspace during the call."""

    statuses: tuple[int, int, int, int]
    body: dict[str, Any] | None = None
    state: str = "active"


V1 = "/api/v1"
W = f"{V1}/workspaces/{{workspace_id}}"
U = f"{V1}/users"

MATRIX: dict[str, tuple[Row, ...]] = {
    f"POST {V1}/login": (Row((200, 200, 200, 200), {"username": "owner", "password": PASSWORD}),),
    f"POST {V1}/logout": (Row((401, 204, 204, 204)),),
    f"GET {V1}/session": (Row((401, 200, 200, 200)),),
    f"POST {V1}/session/password": (
        Row((401, 204, 204, 204), {"current": PASSWORD, "new": "another good password"}),
    ),
    f"GET {V1}/workspaces": (Row((401, 200, 200, 200)),),
    f"POST {V1}/workspaces": (Row((401, 201, 201, 201), {"name": "new"}),),
    f"GET {W}": (Row((401, 200, 403, 200)), Row((401, 404, 404, 404), state="deleted")),
    f"PATCH {W}": (
        Row((401, 200, 403, 403), {"name": "renamed"}),
        Row((401, 200, 403, 403), {"desired_state": "RUNNING"}),
        Row((401, 200, 403, 200), {"desired_state": "STANDBY"}, "running"),
        Row((401, 404, 404, 404), {"name": "renamed"}, "deleted"),
    ),
    f"DELETE {W}": (Row((401, 204, 403, 204)), Row((401, 404, 404, 404), state="deleted")),
    f"POST {W}/recover": (Row((401, 200, 403, 200), {}, "error"), Row((401, 404, 404, 404), {}, "deleted")),
    f"POST {W}/restore": (
        Row((401, 422, 403, 403), {"archive_op_id": "0" * 26}, "stopped"),
        Row((401, 409, 403, 403), {"archive_op_id": "0" * 26}, "running"),
        Row((401, 404, 404, 404), {"archive_op_id": "0" * 26}, "deleted"),
    ),
    f"POST {W}/cancel": (Row((401, 200, 403, 403), {}, "busy"), Row((401, 404, 404, 404), {}, "deleted")),
    f"POST {W}/undelete": (Row((401, 200, 403, 200), {}, "deleted"),),
    f"POST {W}/extend": (
        Row((401, 200, 403, 403), {"seconds": 60}),
        Row((401, 404, 404, 404), {"seconds": 60}, "deleted"),
    ),
    f"GET {W}/timeline": (Row((401, 200, 403, 200)), Row((401, 200, 403, 200), state="deleted")),
    f"GET {W}/archives": (Row((401, 200, 403, 200)), Row((401, 200, 403, 200), state="deleted")),
    f"GET {V1}/images": (Row((401, 200, 200, 200)),),
    f"GET {U}": (Row((401, 403, 403, 200)),),
    f"POST {U}": (Row((401, 403, 403, 201), {"username": "fresh", "password": PASSWORD}),),
    f"PATCH {U}/{{user_id}}": (
        Row((401, 403, 403, 200), {"role": "admin"}),
        Row((401, 403, 403, 200), {"password": "a brand new one", "your_password": PASSWORD}),
        Row((401, 403, 403, 403), {"password": "a brand new one", "your_password": "a wrong password"}),
        Row((401, 403, 403, 422), {"password": "a brand new one"}),
    ),
    f"DELETE {U}/{{user_id}}": (Row((401, 403, 403, 204)),),
    f"GET {V1}/admin/workspaces": (Row((401, 403, 403, 200)),),
    f"GET {V1}/admin/audit": (Row((401, 403, 403, 200)),),
    f"GET {V1}/admin/overview": (Row((401, 403, 403, 200)),),
    "GET /healthz": (Row((200, 200, 200, 200)),),
}
STREAMS = {f"GET {V1}/events"}
"""Calls that do not end. test_events.py tests their authorization."""

STATES: dict[str, dict[str, Any]] = {
    "error": {"phase": "ERROR", "error_reason": "Timeout", "error_count": 1, "error_message": "too slow"},
    "stopped": {"phase": "STANDBY"},
    "running": {"phase": "RUNNING", "desired_state": "RUNNING"},
    "busy": {"operation": "PROVISIONING", "op_id": "x", "op_started_at": datetime.now(UTC)},
}


async def test_every_route_has_a_row(api: Api) -> None:
    routes = {
        f"{method.upper()} {path}" for path, calls in api.app.openapi()["paths"].items() for method in calls
    }
    assert routes == set(MATRIX) | STREAMS


async def test_every_call_checks_its_caller(api: Api) -> None:
    wrong = []
    for call, rows in MATRIX.items():
        for row in rows:
            for caller, expected in zip(CALLERS, row.statuses, strict=True):
                answer = await _call(Users(api), caller, call, row)
                if answer.status_code != expected:
                    wrong.append(f"{call} ({row.state}) by {caller}: {answer.status_code}, not {expected}")
                if answer.status_code >= 400:
                    assert set(answer.json()["error"]) == {"code", "message"}
    assert not wrong, "\n".join(wrong)


async def test_an_invented_session_is_rejected(api: Api) -> None:
    client = await api.client()
    for value in ("x", "a" * 5000, "../../etc", "%00"):
        client.cookies.set("session", value)
        assert (await client.get("/api/v1/session")).status_code == 401


class Users:
    """Users of one cell of the matrix, created on first use, so that no cell affects the next."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._number = len(api.ids)
        self._clients: dict[str, httpx.AsyncClient] = {}

    def name(self, caller: str) -> str:
        return f"{caller}-{self._number}"

    async def client(self, caller: str) -> httpx.AsyncClient:
        if caller not in self._clients:
            role = Role.ADMIN if caller == "admin" else Role.USER
            anonymous = caller == "anonymous"
            made = self.api.client() if anonymous else self.api.quick_client(self.name(caller), role)
            self._clients[caller] = await made
        return self._clients[caller]

    async def user_id(self, caller: str) -> str:
        await self.client(caller)
        return self.api.ids[self.name(caller)]


async def _call(users: Users, caller: str, call: str, row: Row) -> httpx.Response:
    method, path = call.split(" ")
    if "{workspace_id}" in path:
        path = path.format(workspace_id=await _workspace(users, row.state))
    if "{user_id}" in path:
        path = path.format(user_id=await users.user_id("bystander"))
    body = row.body
    if body is not None and "username" in body:
        name = users.name("new")
        if call.endswith("/login"):
            await users.client("owner")
            name = users.name("owner")
        body = body | {"username": name}
    return await (await users.client(caller)).request(method, path, json=body)


async def _workspace(users: Users, state: str) -> str:
    api, owner = users.api, await users.client("owner")
    workspace_id: str = (await api.workspace(owner))["id"]
    if state == "deleted":
        assert (await owner.delete(f"/api/v1/workspaces/{workspace_id}")).status_code == 204
    elif state != "active":
        await api.set(workspace_id, **STATES[state])
    return workspace_id
