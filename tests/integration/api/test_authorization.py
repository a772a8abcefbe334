"""The authorization matrix: every call by each kind of caller. A route without a row fails."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from codehub.database import tokens
from codehub.database.tables import users as user_table
from codehub.domain.states import Role
from codehub.ulids import new_id
from tests.integration.api.conftest import PASSWORD, Api

CALLERS = ("anonymous", "owner", "other", "admin")


TOKENS = ("read", "manage", "use", "admin")
"""Scopes of the tokens: of the owner, and the last one of an admin."""
ORDINARY = ("read", "manage", "use")


@dataclass(frozen=True)
class Row:
    """The status for each of CALLERS, and the state of the owner's workspace during the call.

    Each of `scopes` alone permits a token the call; without one of them it answers 403.
    """

    statuses: tuple[int, int, int, int]
    body: dict[str, Any] | None = None
    state: str = "active"
    scopes: tuple[str, ...] = ()

    def expected(self, scope: str) -> int:
        """Return the status for a token with this scope alone."""
        if scope not in self.scopes:
            return 403
        return self.statuses[3] if scope == "admin" else self.statuses[1]

    @property
    def expected_of_owners_token(self) -> int:
        """The status for a token of the owner with all scopes that they may have."""
        return self.statuses[1] if set(self.scopes) & set(ORDINARY) else 403


V1 = "/api/v1"
W = f"{V1}/workspaces/{{workspace_id}}"
U = f"{V1}/users"
READ, MANAGE, MANAGE_OR_ADMIN, ADMIN = ("read", "admin"), ("manage",), ("manage", "admin"), ("admin",)
USE = ("use",)
LEASE_BODY = {"seconds": 60, "reason": "a build"}
TOKEN_BODY = {"name": "fresh", "scopes": ["read"]}

MATRIX: dict[str, tuple[Row, ...]] = {
    f"POST {V1}/login": (Row((200, 200, 200, 200), {"username": "owner", "password": PASSWORD}),),
    f"POST {V1}/logout": (Row((401, 204, 204, 204)),),
    f"GET {V1}/session": (Row((401, 200, 200, 200), scopes=TOKENS),),
    f"POST {V1}/session/password": (
        Row((401, 204, 204, 204), {"current": PASSWORD, "new": "another good password"}),
    ),
    f"POST {V1}/session/confirm": (
        Row((401, 204, 204, 204), {"password": PASSWORD}),
        Row((401, 403, 403, 403), {"password": "a wrong password"}),
    ),
    f"GET {V1}/tokens": (Row((401, 200, 200, 200)),),
    f"POST {V1}/tokens": (
        Row((401, 201, 201, 201), TOKEN_BODY),
        Row((401, 403, 403, 201), {"name": "fresh", "scopes": ["admin"]}),
    ),
    f"DELETE {V1}/tokens/{{token_id}}": (Row((401, 204, 404, 404)),),
    f"GET {V1}/workspaces": (Row((401, 200, 200, 200), scopes=READ),),
    f"POST {V1}/workspaces": (Row((401, 201, 201, 201), {"name": "new"}, scopes=MANAGE),),
    f"GET {W}": (
        Row((401, 200, 403, 200), scopes=READ),
        Row((401, 404, 404, 404), state="deleted", scopes=READ),
    ),
    f"PATCH {W}": (
        Row((401, 200, 403, 403), {"name": "renamed"}, scopes=MANAGE),
        Row((401, 200, 403, 403), {"awake_cpu_percent": 50}, scopes=MANAGE),
        Row((401, 200, 403, 403), {"desired_state": "RUNNING"}, scopes=MANAGE),
        Row((401, 200, 403, 200), {"desired_state": "STANDBY"}, "running", scopes=MANAGE_OR_ADMIN),
        Row((401, 404, 404, 404), {"name": "renamed"}, "deleted", scopes=MANAGE_OR_ADMIN),
    ),
    f"DELETE {W}": (
        Row((401, 204, 403, 204), scopes=MANAGE_OR_ADMIN),
        Row((401, 404, 404, 404), state="deleted", scopes=MANAGE_OR_ADMIN),
    ),
    f"POST {W}/recover": (
        Row((401, 200, 403, 200), {}, "error", scopes=MANAGE_OR_ADMIN),
        Row((401, 404, 404, 404), {}, "deleted", scopes=MANAGE_OR_ADMIN),
    ),
    f"POST {W}/restore": (
        Row((401, 422, 403, 403), {"archive_op_id": "0" * 26}, "stopped", scopes=MANAGE),
        Row((401, 409, 403, 403), {"archive_op_id": "0" * 26}, "running", scopes=MANAGE),
        Row((401, 404, 404, 404), {"archive_op_id": "0" * 26}, "deleted", scopes=MANAGE),
    ),
    f"POST {W}/cancel": (
        Row((401, 200, 403, 403), {}, "busy", scopes=MANAGE),
        Row((401, 404, 404, 404), {}, "deleted", scopes=MANAGE),
    ),
    f"POST {W}/undelete": (Row((401, 200, 403, 200), {}, "deleted", scopes=MANAGE_OR_ADMIN),),
    f"POST {W}/extend": (
        Row((401, 200, 403, 403), {"seconds": 60}, scopes=MANAGE),
        Row((401, 404, 404, 404), {"seconds": 60}, "deleted", scopes=MANAGE),
    ),
    f"POST {W}/leases": (
        Row((401, 201, 403, 403), LEASE_BODY, "running", scopes=USE),
        Row((401, 409, 403, 403), LEASE_BODY, scopes=USE),
        Row((401, 404, 404, 404), LEASE_BODY, "deleted", scopes=USE),
    ),
    f"GET {W}/leases": (
        Row((401, 200, 403, 403), scopes=USE),
        Row((401, 404, 404, 404), state="deleted", scopes=USE),
    ),
    f"PUT {W}/leases/{{lease_id}}": (Row((401, 200, 403, 403), {"seconds": 60}, "running", scopes=USE),),
    f"DELETE {W}/leases/{{lease_id}}": (Row((401, 204, 403, 403), state="running", scopes=USE),),
    f"GET {W}/timeline": (
        Row((401, 200, 403, 200), scopes=READ),
        Row((401, 200, 403, 200), state="deleted", scopes=READ),
    ),
    f"GET {W}/archives": (
        Row((401, 200, 403, 200), scopes=READ),
        Row((401, 200, 403, 200), state="deleted", scopes=READ),
    ),
    f"GET {W}/stats": (
        Row((401, 200, 403, 200), scopes=READ),
        Row((401, 200, 403, 200), state="running", scopes=READ),
        Row((401, 404, 404, 404), state="deleted", scopes=READ),
    ),
    f"GET {V1}/images": (Row((401, 200, 200, 200), scopes=READ),),
    f"GET {U}": (Row((401, 403, 403, 200), scopes=ADMIN),),
    f"POST {U}": (
        Row((401, 403, 403, 201), {"username": "fresh", "password": PASSWORD}),
        Row((401, 403, 403, 201), {"username": "fresh", "password": PASSWORD, "role": "admin"}),
        Row((401, 403, 403, 201), {"username": "fresh", "service": True}, scopes=ADMIN),
        Row((401, 403, 403, 422), {"username": "fresh", "service": True, "role": "admin"}, scopes=ADMIN),
        Row((401, 403, 403, 422), {"username": "fresh"}, scopes=ADMIN),
    ),
    f"PATCH {U}/{{user_id}}": (
        Row((401, 403, 403, 200), {"role": "admin"}),
        Row((401, 403, 403, 200), {"role": "user"}, scopes=ADMIN),
        Row((401, 403, 403, 409), {"role": "admin"}, "service"),
        Row((401, 403, 403, 200), {"password": "a brand new one", "your_password": PASSWORD}),
        Row((401, 403, 403, 409), {"password": "a brand new one", "your_password": PASSWORD}, "service"),
        Row((401, 403, 403, 403), {"password": "a brand new one", "your_password": "a wrong password"}),
        Row((401, 403, 403, 422), {"password": "a brand new one"}),
    ),
    f"DELETE {U}/{{user_id}}": (Row((401, 403, 403, 204), scopes=ADMIN),),
    f"GET {U}/{{user_id}}/tokens": (Row((401, 403, 403, 200)),),
    f"POST {U}/{{user_id}}/tokens": (
        Row((401, 403, 403, 403), TOKEN_BODY),
        Row((401, 403, 403, 201), TOKEN_BODY, "service"),
        Row((401, 403, 403, 403), {"name": "fresh", "scopes": ["admin"]}, "service"),
    ),
    f"DELETE {U}/{{user_id}}/tokens/{{token_id}}": (Row((401, 403, 403, 204)),),
    f"GET {V1}/admin/workspaces": (Row((401, 403, 403, 200), scopes=ADMIN),),
    f"GET {V1}/admin/audit": (Row((401, 403, 403, 200), scopes=ADMIN),),
    f"GET {V1}/admin/overview": (Row((401, 403, 403, 200), scopes=ADMIN),),
    "GET /healthz": (Row((200, 200, 200, 200), scopes=TOKENS),),
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


async def test_each_scope_alone_permits_its_calls_and_no_others(api: Api) -> None:
    wrong = []
    for call, row in _rows():
        for scope in TOKENS:
            users = Users(api)
            caller = "admin" if scope == "admin" else "owner"
            client = await users.token_client(caller, scope)
            wrong += _differences(
                await _send(users, client, call, row, caller), row.expected(scope), scope, call
            )
    assert not wrong, "\n".join(wrong)


async def test_a_token_that_is_bound_to_another_workspace_reaches_no_other(api: Api) -> None:
    wrong = []
    for call, row in _rows():
        users = Users(api)
        elsewhere = (await api.workspace(await users.client("owner"), name="elsewhere"))["id"]
        client = await users.token_client("owner", *ORDINARY, workspaces=[elsewhere])
        outside = "{workspace_id}" in call or call == f"POST {V1}/workspaces"
        expected = 403 if outside else row.expected_of_owners_token
        wrong += _differences(await _send(users, client, call, row, "owner"), expected, "a bound token", call)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["revoked", "expired", "unknown", "malformed", "of a deleted user"])
async def test_an_invalid_token_is_401_for_every_call_even_beside_a_valid_cookie(api: Api, kind: str) -> None:
    users = Users(api)
    client = await users.client("owner")
    client.headers["Authorization"] = f"Bearer {await _invalid_token(users, kind)}"
    wrong = []
    for call, row in _rows():
        answer = await _send(users, client, call, row, "owner", prepare=False)
        expected = row.statuses[0] if call == "GET /healthz" else 401
        wrong += _differences(answer, expected, kind, call)
    assert not wrong, "\n".join(wrong)


async def test_a_foreign_origin_is_refused_with_a_cookie_and_does_not_matter_with_a_token(api: Api) -> None:
    wrong = []
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for call, row in _rows():
        users = Users(api)
        with_cookie, with_token = await users.client("owner"), await users.token_client("owner", *ORDINARY)
        with_token.headers.update(foreign)
        token_expected = 403 if call == f"POST {V1}/login" else row.expected_of_owners_token
        answer = await _send(users, with_token, call, row, "owner")
        wrong += _differences(answer, token_expected, "a token from a foreign origin", call)
        if not call.startswith("GET"):
            with_cookie.headers.update(foreign)
            answer = await _send(users, with_cookie, call, row, "owner", prepare=False)
            wrong += _differences(answer, 403, "a cookie from a foreign origin", call)
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

    async def token_client(
        self, caller: str, *scopes: str, workspaces: list[str] | None = None
    ) -> httpx.AsyncClient:
        await self.client(caller)
        return await self.api.token_client(self.name(caller), *scopes, workspaces=workspaces)

    async def user_id(self, caller: str) -> str:
        await self.client(caller)
        return self.api.ids[self.name(caller)]


def _rows() -> Iterator[tuple[str, Row]]:
    return ((call, row) for call, rows in MATRIX.items() for row in rows)


def _differences(answer: httpx.Response, expected: int, caller: str, call: str) -> list[str]:
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message"}
    if answer.status_code == expected:
        return []
    return [f"{call} by {caller}: {answer.status_code}, not {expected}: {answer.text[:200]}"]


async def _call(users: Users, caller: str, call: str, row: Row) -> httpx.Response:
    return await _send(users, await users.client(caller), call, row, caller)


async def _send(
    users: Users, client: httpx.AsyncClient, call: str, row: Row, caller: str, *, prepare: bool = True
) -> httpx.Response:
    """Make a call. Without `prepare`, it names a workspace, user and token that do not exist."""
    method, path = call.split(" ")
    ids = await _prepare(users, path, row.state) if prepare else {}
    path = path.format_map(defaultdict(new_id, ids))
    body = row.body
    if body is not None and "username" in body:
        name = users.name("new")
        if call.endswith("/login"):
            await users.client("owner")
            name = users.name("owner")
        body = body | {"username": name}
    return await client.request(method, path, json=body)


async def _prepare(users: Users, path: str, state: str) -> dict[str, str]:
    """Return the ids that a path needs: of the owner's workspace, of a bystander, and of a token."""
    ids = {}
    if "{workspace_id}" in path:
        ids["workspace_id"] = await _workspace(users, state)
    if "{user_id}" in path:
        ids["user_id"] = await users.user_id("bystander")
        if state == "service":
            await _make_service_account(users, ids["user_id"])
    if "{lease_id}" in path:
        ids["lease_id"] = await _lease(users, ids["workspace_id"])
    if "{token_id}" in path:
        holder = "bystander" if "{user_id}" in path else "owner"
        await users.client(holder)
        ids["token_id"], _ = await users.api.token(users.name(holder), "read")
    return ids


async def _make_service_account(users: Users, user_id: str) -> None:
    async with users.api.engine.begin() as conn:
        await conn.execute(update(user_table).where(user_table.c.id == user_id).values(service=True))


async def _invalid_token(users: Users, kind: str) -> str:
    api = users.api
    await users.client("owner")
    if kind == "malformed":
        return "chub_" + "!" * 40
    if kind == "unknown":
        return "chub_" + "a" * 40
    if kind == "expired":
        return (await api.token(users.name("owner"), *ORDINARY, lifetime=-1))[1]
    holder = "owner" if kind == "revoked" else "bystander"
    await users.client(holder)
    token_id, secret = await api.token(users.name(holder), *ORDINARY)
    async with api.engine.begin() as conn:
        if kind == "revoked":
            await tokens.revoke_token(conn, await users.user_id(holder), token_id)
        else:
            ended = update(user_table).where(user_table.c.id == await users.user_id(holder))
            await conn.execute(ended.values(deleted_at=datetime.now(UTC)))
    return secret


async def _lease(users: Users, workspace_id: str) -> str:
    owner = await users.client("owner")
    answer = await owner.post(f"{V1}/workspaces/{workspace_id}/leases", json=LEASE_BODY)
    lease_id: str = answer.json()["id"]
    return lease_id


async def _workspace(users: Users, state: str) -> str:
    api, owner = users.api, await users.client("owner")
    workspace_id: str = (await api.workspace(owner))["id"]
    if state == "deleted":
        assert (await owner.delete(f"/api/v1/workspaces/{workspace_id}")).status_code == 204
    elif state != "active":
        await api.set(workspace_id, **STATES[state])
    return workspace_id
