"""The authorization matrix of the access part: every call by each kind of caller.

A route without a row fails. The workspace is in STANDBY, so that a permitted call goes no further
than a 409 and changes nothing.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from codehub.access.app import create_app
from codehub.database import tokens
from codehub.domain.states import Role
from codehub.settings import Settings
from codehub.ulids import new_id
from tests.integration.api.conftest import BASE, Api

EXECS = "/api/v1/workspaces/{workspace_id}/execs"
EXEC = EXECS + "/{exec_id}"
FILES = "/api/v1/workspaces/{workspace_id}/files"
ARCHIVE = "/api/v1/workspaces/{workspace_id}/archive"
PORT = "/api/v1/workspaces/{workspace_id}/ports/{port}"
LOGS = "/api/v1/workspaces/{workspace_id}/logs"
SCOPES = ("read", "manage", "use")
FOREIGN = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
NOT_RENDERED = {
    "content-security-policy": "sandbox; default-src 'none'",
    "content-disposition": "attachment",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
NO_ACCESS = frozenset((401, 403))


@dataclass(frozen=True)
class Row:
    """The scope that permits a call, and what makes the call valid. Admins may make those of `read`."""

    scope: str = "use"
    body: dict[str, Any] | None = None
    content: bytes | None = None
    query: dict[str, str] = field(default_factory=dict)


MATRIX = {
    f"POST {EXECS}": Row(body={"command": "true"}),
    f"GET {EXECS}": Row("read"),
    f"GET {EXEC}": Row("read"),
    f"DELETE {EXEC}": Row(),
    f"GET {EXEC}/output": Row(),
    f"POST {EXEC}/stdin": Row(content=b"x"),
    f"POST {EXEC}/signal": Row(body={"signal": "TERM"}),
    f"POST {EXEC}/resize": Row(body={"rows": 24, "cols": 80}),
    f"GET {EXEC}/attach": Row(),
    f"WEBSOCKET {EXEC}/attach": Row(),
    f"GET {PORT}/connect": Row(),
    f"WEBSOCKET {PORT}/connect": Row(),
    f"GET {LOGS}": Row(),
    f"GET {ARCHIVE}": Row(),
    f"GET {FILES}": Row(),
    f"GET {FILES}/content": Row(query={"path": "a"}),
    f"PUT {FILES}/content": Row(query={"path": "a"}, content=b"x"),
    f"DELETE {FILES}/content": Row(query={"path": "a"}),
    f"POST {FILES}/move": Row(body={"path": "a", "to": "b"}),
    f"POST {FILES}/directory": Row(body={"path": "a"}),
    f"GET {FILES}/search": Row(query={"q": "x"}),
    f"GET {FILES}/tar": Row(query={"path": "a"}),
    f"PUT {FILES}/tar": Row(query={"path": "a"}, content=b"x"),
}


@dataclass
class Fixture:
    """The access part, an API on the same database, and a workspace of the owner."""

    api: Api
    app: FastAPI
    workspace_id: str
    cookies: dict[str, str]

    async def status(self, call: str, **headers: str) -> int:
        """Return the status of a call with these header fields; 101 for a WebSocket that opens."""
        method, path = call.split(" ")
        row = MATRIX[call.replace("HEAD ", "GET ")]
        path = path.format(workspace_id=self.workspace_id, exec_id=new_id(), port=3000)
        if method == "WEBSOCKET":
            return await websocket_status(self.app, path, headers)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            answer = await client.request(
                method, f"{path}?{urlencode(row.query)}", json=row.body, content=row.content, headers=headers
            )
        return answer.status_code

    async def bearer(self, username: str, *scopes: str, **options: Any) -> dict[str, str]:
        _, secret = await self.api.token(username, *scopes, **options)
        return {"Authorization": f"Bearer {secret}"}

    def cookie(self, username: str) -> dict[str, str]:
        return {"Cookie": f"session={self.cookies[username]}"}


async def websocket_status(app: FastAPI, path: str, headers: dict[str, str]) -> int:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.disconnect"} if sent else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "ws",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": None, "server": None, "subprotocols": [], "state": {},
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    await app(scope, receive, send)
    first = sent[0]
    if first["type"] == "websocket.http.response.start":
        return int(first["status"])
    return 101 if first["type"] == "websocket.accept" else 403


@pytest.fixture
async def fixture(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Fixture]:
    settings = Settings(
        database_url=database_url, redis_url=redis_url, data_dir=tmp_path, port=8080, runtime="process"
    )
    app = create_app(settings)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api.running(settings))
        await stack.enter_async_context(app.router.lifespan_context(app))
        clients = {
            name: await api.quick_client(name, role)
            for name, role in (("owner", Role.USER), ("other", Role.USER), ("root", Role.ADMIN))
        }
        workspace_id = (await api.workspace(clients["owner"]))["id"]
        await api.set(workspace_id, phase="STANDBY", desired_state="STANDBY")
        cookies = {name: client.cookies["session"] for name, client in clients.items()}
        yield Fixture(api, app, workspace_id, cookies)


async def test_every_route_has_a_row(fixture: Fixture) -> None:
    found = set()
    for context in iter_route_contexts(fixture.app.routes):
        if isinstance(context.original_route, APIRoute | APIWebSocketRoute):
            found |= {f"{method} {context.path}" for method in context.methods or ("WEBSOCKET",)}
    assert found == set(MATRIX)


async def test_every_call_checks_its_caller(fixture: Fixture) -> None:
    """Admins see which commands run, and open no workspace of others."""
    wrong = []
    admin_scope = await fixture.bearer("root", "admin")
    elsewhere = (await fixture.api.workspace(await fixture.api.token_client("owner", "manage")))["id"]
    bound = await fixture.bearer("owner", *SCOPES, workspaces=[elsewhere])
    by_scope = {scope: await fixture.bearer("owner", scope) for scope in SCOPES}
    for call, row in MATRIX.items():
        admin = row.scope == "read"
        expected = {
            "nobody": ({}, 401),
            "the owner": (fixture.cookie("owner"), None),
            "another user": (fixture.cookie("other"), 403),
            "an admin": (fixture.cookie("root"), None if admin else 403),
            "a token of an admin": (admin_scope, None if admin else 403),
            "a bound token": (bound, 403),
        } | {
            f"a token to {scope}": (headers, None if scope == row.scope else 403)
            for scope, headers in by_scope.items()
        }
        for caller, (headers, refusal) in expected.items():
            status = await fixture.status(call, **headers)
            if (status if status in NO_ACCESS else None) != refusal:
                wrong.append(f"{call} by {caller}: {status}, not {refusal or 'permitted'}")
    assert not wrong, "\n".join(wrong)


async def test_an_invalid_token_is_401_for_every_call_even_beside_a_valid_cookie(fixture: Fixture) -> None:
    token_id, revoked = await fixture.api.token("owner", *SCOPES)
    async with fixture.api.engine.begin() as conn:
        await tokens.revoke_token(conn, fixture.api.ids["owner"], token_id)
    expired = (await fixture.bearer("owner", *SCOPES, lifetime=-1))["Authorization"]
    wrong = []
    for call in MATRIX:
        for field_value in (f"Bearer {revoked}", expired, f"Bearer chub_{'a' * 40}", "Bearer x", "Bearer"):
            status = await fixture.status(call, **fixture.cookie("owner"), Authorization=field_value)
            if status != 401:
                wrong.append(f"{call} with {field_value[:13]}: {status}, not 401")
    assert not wrong, "\n".join(wrong)


async def test_a_foreign_origin_is_refused_with_a_cookie_whatever_the_method(fixture: Fixture) -> None:
    """With a token it does not matter: no page can add one to the calls of another."""
    wrong = []
    token = await fixture.bearer("owner", *SCOPES)
    for call in MATRIX:
        with_cookie = await fixture.status(call, **fixture.cookie("owner"), **FOREIGN)
        with_token = await fixture.status(call, **token, **FOREIGN)
        if with_cookie != 403 or with_token in NO_ACCESS:
            wrong.append(f"{call}: {with_cookie} with a cookie, {with_token} with a token")
    assert not wrong, "\n".join(wrong)


async def test_head_is_permitted_to_the_callers_of_get(fixture: Fixture) -> None:
    elsewhere = (await fixture.api.workspace(await fixture.api.token_client("owner", "manage")))["id"]
    callers = {
        "nobody": {},
        "the owner": fixture.cookie("owner"),
        "the owner from another site": fixture.cookie("owner") | FOREIGN,
        "another user": fixture.cookie("other"),
        "an admin": fixture.cookie("root"),
        "a bound token": await fixture.bearer("owner", *SCOPES, workspaces=[elsewhere]),
        "a token to read": await fixture.bearer("owner", "read"),
    }
    wrong = []
    for call in MATRIX:
        if call.startswith("GET "):
            for caller, headers in callers.items():
                get = await fixture.status(call, **headers)
                head = await fixture.status(call.replace("GET ", "HEAD "), **headers)
                if head != get:
                    wrong.append(f"{call} by {caller}: {get}, but {head} for HEAD")
    assert not wrong, "\n".join(wrong)


async def test_no_answer_is_rendered_as_a_page(fixture: Fixture) -> None:
    """Lists and errors too carry names and lines that a workspace has chosen."""
    wrong = []
    transport = httpx.ASGITransport(app=fixture.app)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        for call, row in MATRIX.items():
            method, path = call.split(" ")
            if method != "WEBSOCKET":
                url = path.format(workspace_id=fixture.workspace_id, exec_id=new_id(), port=3000)
                answer = await client.request(
                    method, url, params=row.query, json=row.body, headers=fixture.cookie("owner")
                )
                wrong += [
                    f"{call}: {name}"
                    for name in NOT_RENDERED
                    if answer.headers.get(name) != NOT_RENDERED[name]
                ]
    assert not wrong, "\n".join(wrong)
