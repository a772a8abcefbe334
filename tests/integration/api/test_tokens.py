"""API tokens and service accounts: making, binding, using and ending them."""

import logging
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import select, update

from codehub.database import accounts, credentials, lockout
from codehub.database import tokens as stored_tokens
from codehub.database.accounts import AccountChanges
from codehub.database.tables import audit_log, sessions, tokens
from codehub.domain.audit import CLI
from codehub.domain.states import Role
from codehub.rate_limits import TokenBuckets
from tests.integration.api.conftest import PASSWORD, Api

TOKENS = "/api/v1/tokens"
USERS = "/api/v1/users"
WORKSPACES = "/api/v1/workspaces"
EVERY_SCOPE = ("read", "manage", "use")


async def made(client: httpx.AsyncClient, path: str = TOKENS, **body: object) -> dict[str, object]:
    answer = await client.post(path, json={"name": "ci", "scopes": ["read"]} | body)
    assert answer.status_code == 201, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_a_token_is_shown_once_and_stored_as_a_hash(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    answer = await made(alice, scopes=["use", "read"], expires_in_days=30)
    secret = str(answer["token"])
    assert secret.startswith("chub_") and len(secret) == 45
    (listed,) = (await alice.get(TOKENS)).json()["items"]
    assert listed == {name: value for name, value in answer.items() if name != "token"}
    assert (listed["prefix"], listed["scopes"]) == (secret[:8], ["read", "use"])
    async with api.engine.connect() as conn:
        row = (await conn.execute(select(tokens))).one()
    assert row.token_hash == stored_tokens.hash_token(secret)
    assert secret not in str(row)
    assert row.expires_at - row.created_at == timedelta(days=30)


async def test_making_a_token_needs_a_password_entered_within_five_minutes(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    async with api.engine.begin() as conn:
        await conn.execute(update(sessions).values(password_at=datetime.now(UTC) - timedelta(minutes=6)))
    body = {"name": "ci", "scopes": ["read"]}
    refused = await alice.post(TOKENS, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "PASSWORD_REQUIRED")
    wrong = await alice.post("/api/v1/session/confirm", json={"password": "a wrong password"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert (await alice.post(TOKENS, json=body)).status_code == 403
    assert (await alice.post("/api/v1/session/confirm", json={"password": PASSWORD})).status_code == 204
    assert (await alice.post(TOKENS, json=body)).status_code == 201


async def test_wrong_confirmations_lock_as_failed_sign_ins_do(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for _ in range(lockout.FREE_FAILURES + 1):
        await alice.post("/api/v1/session/confirm", json={"password": "a wrong password"})
    locked = await alice.post("/api/v1/session/confirm", json={"password": PASSWORD})
    assert (locked.status_code, locked.json()["error"]["code"]) == (429, "TOO_MANY_REQUESTS")


IMPOSSIBLE: tuple[dict[str, object], ...] = (
    {"scopes": []},
    {"scopes": ["everything"]},
    {"scopes": ["read"], "workspaces": []},
    {"scopes": ["read"], "workspaces": ["../x"]},
    {"scopes": ["read"], "expires_in_days": 0},
    {"scopes": ["read"], "name": "a\nb"},
    {"scopes": ["read"], "workspaces": ["01hzzzzzzzzzzzzzzzzzzzzzzz"]},
)


async def test_an_impossible_token_is_rejected(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for body in IMPOSSIBLE:
        answer = await alice.post(TOKENS, json={"name": "ci"} | body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR"), body
    assert (await alice.get(TOKENS)).json()["items"] == []


async def test_a_token_is_bound_only_to_workspaces_of_its_owner(api: Api) -> None:
    alice, bob = await api.quick_client("alice", Role.USER), await api.quick_client("bob", Role.USER)
    foreign = (await api.workspace(bob))["id"]
    answer = await alice.post(TOKENS, json={"name": "ci", "scopes": ["read"], "workspaces": [foreign]})
    assert answer.status_code == 422


async def test_two_tokens_of_one_user_have_different_names(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    await made(alice)
    again = await alice.post(TOKENS, json={"name": "ci", "scopes": ["use"]})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "INVALID_STATE")


async def test_a_bound_token_lists_and_counts_only_its_workspaces(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    mine = await api.workspace(alice, name="mine")
    other = await api.workspace(alice, name="other", desired_state="RUNNING")
    await api.add_archive(other["id"], 1000)
    bound = await api.token_client("alice", *EVERY_SCOPE, workspaces=[mine["id"]])
    for query in ("", "?q=m", "?limit=1", "?offset=1"):
        page = (await bound.get(WORKSPACES + query)).json()
        assert page["total"] == 1
        assert {item["id"] for item in page["items"]} <= {mine["id"]}
    assert (await bound.get(f"{WORKSPACES}?q=other")).json() == {"items": [], "total": 0}
    session = (await bound.get("/api/v1/session")).json()
    assert (session["limits"]["running"], session["archives"]["bytes"]) == (0, 0)
    assert session["token"]["workspaces"] == [mine["id"]]
    unknown = await bound.get(f"{WORKSPACES}/01hzzzzzzzzzzzzzzzzzzzzzzz")
    existing = await bound.get(f"{WORKSPACES}/{other['id']}")
    assert (unknown.status_code, unknown.json()) == (existing.status_code, existing.json())
    assert (await bound.patch(f"{WORKSPACES}/{mine['id']}", json={"name": "renamed"})).status_code == 200


async def test_an_admins_token_without_the_scope_admin_reaches_no_other_workspace(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    await api.quick_client("root", Role.ADMIN)
    path = f"{WORKSPACES}/{(await api.workspace(alice))['id']}"
    ordinary = await api.token_client("root", *EVERY_SCOPE)
    assert [(await ordinary.get(path)).status_code, (await ordinary.delete(path)).status_code] == [403, 403]
    full = await api.token_client("root", *EVERY_SCOPE, "admin")
    assert (await full.patch(path, json={"name": "x"})).status_code == 403, "no admin edits another's"
    assert (await full.delete(path)).status_code == 204


async def test_the_scope_admin_alone_sees_and_stops_any_workspace_and_edits_none(api: Api) -> None:
    alice, root = await api.quick_client("alice", Role.USER), await api.quick_client("root", Role.ADMIN)
    admin = await api.token_client("root", "admin")
    for owner in (alice, root):
        workspace_id = (await api.workspace(owner))["id"]
        await api.set(workspace_id, phase="RUNNING", desired_state="RUNNING")
        path = f"{WORKSPACES}/{workspace_id}"
        assert (await admin.get(path)).status_code == 200
        assert (await admin.patch(path, json={"name": "renamed"})).status_code == 403
        assert (await admin.patch(path, json={"desired_state": "STANDBY"})).status_code == 200
    assert (await admin.post(WORKSPACES, json={"name": "new"})).status_code == 403


async def test_a_demoted_admins_token_loses_the_scope_admin_and_keeps_the_others(api: Api) -> None:
    await api.quick_client("root", Role.ADMIN)
    await api.quick_client("chief", Role.ADMIN)
    client = await api.token_client("chief", "read", "admin")
    assert (await client.get(USERS)).status_code == 200
    changes = AccountChanges(role=Role.USER)
    await accounts.change_account(api.engine, api.ids["chief"], changes, actor=CLI, now=datetime.now(UTC))
    assert (await client.get(USERS)).status_code == 403
    assert (await client.get(WORKSPACES)).status_code == 200
    assert (await client.get("/api/v1/session")).json()["token"]["scopes"] == ["read"]


async def test_what_a_token_did_is_told_with_its_name(api: Api) -> None:
    await api.quick_client("alice", Role.USER)
    ci = await api.token_client("alice", *EVERY_SCOPE)
    workspace = await api.workspace(ci)
    timeline = (await ci.get(f"{WORKSPACES}/{workspace['id']}/timeline")).json()["items"]
    assert {item["actor"] for item in timeline} == {"alice (token ci)"}
    assert (await ci.delete(f"{WORKSPACES}/{workspace['id']}")).status_code == 204
    async with api.engine.connect() as conn:
        (entry,) = await conn.execute(select(audit_log).where(audit_log.c.action == "workspace.deleted"))
    assert (entry.actor_name, entry.actor_id, entry.actor_kind) == (
        "alice (token ci)",
        api.ids["alice"],
        "user",
    )


async def test_making_and_revoking_are_audited_and_no_entry_or_log_line_holds_a_token(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    alice = await api.quick_client("alice", Role.USER)
    token = await made(alice)
    secret = str(token["token"])
    ci = await api.client(Authorization=f"Bearer {secret}")
    assert (await ci.get(f"{WORKSPACES}?q={secret}")).status_code == 200
    error = await ci.get(f"{WORKSPACES}/{secret}")
    await api.workspace(alice, name=f"named {secret}")
    workspace = (await alice.get(WORKSPACES)).json()["items"][0]["id"]
    assert (await alice.delete(f"{WORKSPACES}/{workspace}")).status_code == 204
    assert (await alice.delete(f"{TOKENS}/{token['id']}")).status_code == 204
    assert (await ci.get(WORKSPACES)).status_code == 401
    async with api.engine.connect() as conn:
        entries = list(await conn.execute(select(audit_log)))
    made_and_revoked = [(e.action, e.target_kind, e.target_name) for e in entries if e.target_kind == "token"]
    assert made_and_revoked == [("token.created", "token", "ci"), ("token.revoked", "token", "ci")]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("codehub")]
    assert len(lines) >= len(entries)
    for text in (error.text, str(lines), str(entries)):
        assert secret not in text
        assert secret.removeprefix("chub_") not in text


async def test_the_last_use_is_recorded_about_once_a_minute(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    ci = await api.client(Authorization=f"Bearer {(await made(alice))['token']}")

    async def last_use() -> str | None:
        used: str | None = (await alice.get(TOKENS)).json()["items"][0]["last_used_at"]
        return used

    assert await last_use() is None
    await ci.get(WORKSPACES)
    first = await last_use()
    await ci.get(WORKSPACES)
    assert first is not None and await last_use() == first
    async with api.engine.begin() as conn:
        await conn.execute(update(tokens).values(last_used_at=datetime.now(UTC) - timedelta(minutes=2)))
    await ci.get(WORKSPACES)
    assert str(await last_use()) >= first


async def test_unknown_tokens_cost_bounded_look_ups_and_malformed_ones_none(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.app.state.services.credential_lookup._limit._buckets = TokenBuckets(3, 1e-6, "Too many.")
    looked_up: list[bytes] = []
    find_token = credentials.find_token

    async def record(conn: object, token_hash: bytes, *rest: object) -> object:
        looked_up.append(token_hash)
        return await find_token(conn, token_hash, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(credentials, "find_token", record)
    await api.quick_client("alice", Role.USER)
    valid = await api.token_client("alice", "read")
    valid.headers["X-Forwarded-For"] = "192.0.2.66"
    assert (await valid.get(WORKSPACES)).status_code == 200
    looked_up.clear()

    async def status(token: str) -> int:
        client = await api.client(**{"X-Forwarded-For": "192.0.2.66", "Authorization": f"Bearer {token}"})
        return (await client.get(WORKSPACES)).status_code

    assert [await status("short"), await status("chub_" + "!" * 40)] == [401, 401]
    assert looked_up == []
    assert [await status(f"chub_{number:040}") for number in range(6)] == [401] * 3 + [429] * 3
    assert len(looked_up) == 3
    assert (await valid.get(WORKSPACES)).status_code == 200


async def test_a_session_id_is_no_token_and_a_token_is_no_session(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    _, secret = await api.token("alice", *EVERY_SCOPE)
    as_cookie, as_bearer = await api.client(), await api.client()
    as_cookie.cookies.set("session", secret)
    as_bearer.headers["Authorization"] = f"Bearer {alice.cookies['session']}"
    for client in (as_cookie, as_bearer):
        assert (await client.get("/api/v1/session")).status_code == 401


async def test_another_scheme_leaves_the_cookie_in_force(api: Api) -> None:
    """Such as the credentials of a reverse proxy in front of CodeHub."""
    alice = await api.quick_client("alice", Role.USER)
    alice.headers["Authorization"] = "Basic dXNlcjpwdw=="
    assert (await alice.get("/api/v1/session")).status_code == 200


async def test_a_service_account_works_by_its_tokens_and_cannot_sign_in(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    account = (await root.post(USERS, json={"username": "robot", "service": True})).json()
    assert (account["service"], account["role"]) == (True, "user")
    anonymous = await api.client()
    for password in ("", "!", "robot", PASSWORD):
        answer = await anonymous.post("/api/v1/login", json={"username": "robot", "password": password})
        assert answer.status_code == 401
    token = await made(root, f"{USERS}/{account['id']}/tokens", scopes=["read", "manage"])
    robot = await api.client(Authorization=f"Bearer {token['token']}")
    workspace = await api.workspace(robot)
    assert workspace["owner"]["username"] == "robot"
    (listed,) = (await root.get(f"{USERS}/{account['id']}/tokens")).json()["items"]
    assert listed["id"] == token["id"]
    assert (await root.delete(f"{USERS}/{account['id']}/tokens/{token['id']}")).status_code == 204
    assert (await robot.get(WORKSPACES)).status_code == 401


async def test_a_token_makes_service_accounts_and_nobody_who_can_sign_in_or_is_an_admin(api: Api) -> None:
    """Such an admin could set any user's password, and sign in as them."""
    await api.quick_client("root", Role.ADMIN)
    await api.quick_client("alice", Role.USER)
    admin = await api.token_client("root", *EVERY_SCOPE, "admin")
    for role in ("user", "admin"):
        refused = await admin.post(USERS, json={"username": "mallory", "password": PASSWORD, "role": role})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
        assert "token" in refused.json()["error"]["message"]
    path = f"{USERS}/{api.ids['alice']}"
    assert (await admin.patch(path, json={"role": "admin"})).status_code == 403
    assert (await admin.post(USERS, json={"username": "robot", "service": True})).status_code == 201
    roles = {user["username"]: user["role"] for user in (await admin.get(USERS)).json()["items"]}
    assert roles == {"alice": "user", "robot": "user", "root": "admin"}


async def test_an_unattended_session_makes_nobody_who_can_sign_in_or_is_an_admin(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    await api.quick_client("alice", Role.USER)
    path, new = f"{USERS}/{api.ids['alice']}", {"username": "bob", "password": PASSWORD}
    async with api.engine.begin() as conn:
        await conn.execute(update(sessions).values(password_at=datetime.now(UTC) - timedelta(minutes=6)))
    for answer in (await root.post(USERS, json=new), await root.patch(path, json={"role": "admin"})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PASSWORD_REQUIRED")
    assert (await root.patch(path, json={"role": "user"})).status_code == 200
    assert (await root.post(USERS, json={"username": "robot", "service": True})).status_code == 201
    assert (await root.post("/api/v1/session/confirm", json={"password": PASSWORD})).status_code == 204
    assert (await root.post(USERS, json=new)).status_code == 201
    assert (await root.patch(path, json={"role": "admin"})).status_code == 200


async def test_deleting_a_user_ends_and_removes_their_tokens(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    await api.quick_client("alice", Role.USER)
    ci = await api.token_client("alice", "read")
    assert (await ci.get(WORKSPACES)).status_code == 200
    assert (await root.delete(f"{USERS}/{api.ids['alice']}")).status_code == 204
    assert (await ci.get(WORKSPACES)).status_code == 401
    async with api.engine.connect() as conn:
        assert (await conn.execute(select(tokens))).first() is None


async def test_a_new_password_keeps_tokens(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    ci = await api.token_client("alice", "read")
    body = {"current": PASSWORD, "new": "another good password"}
    assert (await alice.post("/api/v1/session/password", json=body)).status_code == 204
    assert (await ci.get(WORKSPACES)).status_code == 200
