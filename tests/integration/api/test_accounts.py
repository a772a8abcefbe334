"""Sign-in, sessions, lockout and users."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import func, select, update

from codehub.database import accounts
from codehub.database.tables import sessions, users
from codehub.domain.audit import CLI
from codehub.domain.problems import TooManyRequests, Unauthorized
from codehub.domain.states import Role
from tests.integration.api.conftest import PASSWORD, Api

LOGIN = "/api/v1/login"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_sign_in_sets_a_host_only_cookie_whose_value_is_stored_as_a_hash(api: Api) -> None:
    await api.signed_in_client("alice")
    client = await api.client()
    answer = await client.post(LOGIN, json={"username": "ALICE", "password": PASSWORD})
    assert answer.json() == {"user": {"id": api.ids["alice"], "username": "alice", "role": "user"}}
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("session=") and "httponly" in cookie and "samesite=lax" in cookie
    assert "path=/" in cookie and "secure" not in cookie and "domain" not in cookie
    async with api.engine.connect() as conn:
        stored = (await conn.execute(select(sessions.c.id_hash))).scalars().all()
    value = answer.cookies["session"]
    assert all(value.encode() not in id_hash for id_hash in stored) and len(value) == 43


async def test_wrong_password_and_unknown_name_look_alike(api: Api) -> None:
    await api.signed_in_client("alice")
    client = await api.client()
    answers = [
        await client.post(LOGIN, json={"username": name, "password": "a wrong password"})
        for name in ("alice", "nobody", "no such name!", "\u0130")
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1


async def test_logout_ends_the_session(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    token = alice.cookies["session"]
    answer = await alice.post("/api/v1/logout")
    assert answer.status_code == 204 and 'session=""' in answer.headers["set-cookie"]
    alice.cookies.set("session", token)
    assert (await alice.get("/api/v1/session")).status_code == 401


async def test_a_session_lasts_a_day(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    async with api.engine.begin() as conn:
        row = (await conn.execute(select(sessions))).one()
        assert row.expires_at - row.created_at == timedelta(hours=24)
        await conn.execute(update(sessions).values(expires_at=datetime.now(UTC)))
    assert (await alice.get("/api/v1/session")).status_code == 401


async def _attempt(api: Api, name: str, password: str, address: str, now: datetime) -> str:
    try:
        await accounts.sign_in(api.engine, name, password, address, now=now)
    except Unauthorized:
        return "wrong"
    except TooManyRequests as problem:
        return f"locked {problem.retry_after}"
    return "in"


@pytest.mark.parametrize("name", ["alice", "nobody"])
async def test_five_failures_lock_a_name_for_one_address(api: Api, name: str) -> None:
    await api.signed_in_client("alice")
    for _ in range(5):
        assert await _attempt(api, name, "a wrong password", "192.0.2.1", NOW) == "wrong"
    assert await _attempt(api, name, PASSWORD, "192.0.2.1", NOW) == "locked 30"
    assert await _attempt(api, name, PASSWORD, "192.0.2.1", NOW + timedelta(seconds=29)) == "locked 1"
    elsewhere = "in" if name == "alice" else "wrong"
    assert await _attempt(api, name, PASSWORD, "192.0.2.2", NOW) == elsewhere
    later = NOW + timedelta(seconds=31)
    assert await _attempt(api, name, "a wrong password", "192.0.2.1", later) == "wrong"
    assert await _attempt(api, name, "a wrong password", "192.0.2.1", later) == "locked 60"


async def test_a_successful_sign_in_clears_the_failures(api: Api) -> None:
    await api.signed_in_client("alice")
    for _ in range(2):
        for _ in range(4):
            assert await _attempt(api, "alice", "a wrong password", "192.0.2.1", NOW) == "wrong"
        assert await _attempt(api, "alice", PASSWORD, "192.0.2.1", NOW) == "in"


async def test_parallel_guesses_get_no_more_than_five(api: Api) -> None:
    await api.signed_in_client("alice")
    guesses = (_attempt(api, "alice", f"wrong number {n}", "192.0.2.1", NOW) for n in range(12))
    outcomes = await asyncio.gather(*guesses)
    assert outcomes.count("wrong") == 5 and outcomes.count("locked 30") == 7


async def test_a_locked_sign_in_has_a_retry_after_header(api: Api) -> None:
    client = await api.client(**{"X-Forwarded-For": "10.0.0.1, 192.0.2.9"})
    body = {"username": "alice", "password": "a wrong password"}
    statuses = [(await client.post(LOGIN, json=body)).status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    locked = await client.post(LOGIN, json=body)
    assert (
        locked.json()["error"]["code"] == "TOO_MANY_REQUESTS" and 0 < int(locked.headers["retry-after"]) <= 30
    )
    elsewhere = await api.client(**{"X-Forwarded-For": "192.0.2.10"})
    assert (await elsewhere.post(LOGIN, json=body)).status_code == 401


async def test_a_new_password_ends_the_other_sessions(api: Api) -> None:
    here, there = await api.signed_in_client("alice"), await api.signed_in_client("alice")
    change = "/api/v1/session/password"
    wrong = await here.post(change, json={"current": "a wrong password", "new": "another good one"})
    assert wrong.status_code == 422
    short = await here.post(change, json={"current": PASSWORD, "new": "short"})
    assert short.status_code == 422
    assert (await here.post(change, json={"current": PASSWORD, "new": "another good one"})).status_code == 204
    assert (await here.get("/api/v1/session")).status_code == 200
    assert (await there.get("/api/v1/session")).status_code == 401
    assert (await there.post(LOGIN, json={"username": "alice", "password": PASSWORD})).status_code == 401


async def test_the_first_admin_is_created_once(api: Api) -> None:
    made = await asyncio.gather(
        *(accounts.ensure_admin(api.engine, "admin", None, actor=CLI, now=NOW) for _ in range(5))
    )
    passwords = [password for password in made if password is not None]
    assert len(passwords) == 1
    await accounts.sign_in(api.engine, "admin", passwords[0], "", now=datetime.now(UTC))
    again = await accounts.ensure_admin(api.engine, "admin", "another password", actor=CLI, now=NOW)
    assert again is None
    await accounts.sign_in(api.engine, "admin", passwords[0], "", now=datetime.now(UTC))
    with pytest.raises(Unauthorized):
        await accounts.sign_in(api.engine, "admin", "another password", "", now=datetime.now(UTC))
    async with api.engine.connect() as conn:
        assert await conn.scalar(select(func.count()).select_from(users)) == 1


async def test_a_given_admin_password_is_not_returned(api: Api) -> None:
    assert await accounts.ensure_admin(api.engine, "chief", "the given one", actor=CLI, now=NOW) is None
    assert (
        await accounts.sign_in(api.engine, "chief", "the given one", "", now=datetime.now(UTC))
    ).account.role is Role.ADMIN


async def test_an_admin_creates_changes_and_deletes_users(api: Api) -> None:
    root = await api.signed_in_client("root", Role.ADMIN)
    new = {"username": "Carol", "password": PASSWORD}
    made = await root.post("/api/v1/users", json=new)
    assert made.status_code == 201 and made.json()["username"] == "carol" and made.json()["role"] == "user"
    assert (await root.post("/api/v1/users", json=new)).json()["error"]["code"] == "INVALID_STATE"
    listed = (await root.get("/api/v1/users")).json()
    assert [user["username"] for user in listed["items"]] == ["carol", "root"] and listed["total"] == 2
    api.ids["carol"] = made.json()["id"]
    carol = await api.signed_in_client("carol")
    path = f"/api/v1/users/{made.json()['id']}"
    assert (await root.patch(path, json={"role": "admin"})).json()["role"] == "admin"
    assert (await carol.get("/api/v1/users")).status_code == 200
    new_password = {"password": "a brand new one", "your_password": PASSWORD}
    assert (await root.patch(path, json=new_password)).status_code == 200
    assert (await carol.get("/api/v1/session")).status_code == 401
    assert (await root.delete(path)).status_code == 204
    assert (await root.delete(path)).status_code == 404
    assert (await root.post("/api/v1/users", json=new)).status_code == 201


async def test_the_last_admin_cannot_be_removed(api: Api) -> None:
    root = await api.signed_in_client("root", Role.ADMIN)
    second = await api.signed_in_client("second", Role.ADMIN)
    for name in ("root", "second"):
        assert (await root.patch(f"/api/v1/users/{api.ids[name]}", json={"role": "admin"})).status_code == 200

    async def demote(client: httpx.AsyncClient, name: str) -> int:
        return (await client.patch(f"/api/v1/users/{api.ids[name]}", json={"role": "user"})).status_code

    assert sorted(await asyncio.gather(demote(root, "second"), demote(second, "root"))) in (
        [200, 403],
        [200, 409],
    )
    async with api.engine.connect() as conn:
        left = (await conn.scalars(select(users.c.id).where(users.c.role == "admin"))).all()
    assert len(left) == 1
    survivor = root if left[0] == api.ids["root"] else second
    for answer in (
        await survivor.patch(f"/api/v1/users/{left[0]}", json={"role": "user"}),
        await survivor.delete(f"/api/v1/users/{left[0]}"),
    ):
        assert answer.status_code == 409 and answer.json()["error"]["code"] == "INVALID_STATE"


async def test_deleting_a_user_deletes_their_workspaces(api: Api) -> None:
    root, alice = await api.signed_in_client("root", Role.ADMIN), await api.signed_in_client("alice")
    first, second = await api.workspace(alice), await api.workspace(alice)
    path = f"/api/v1/users/{api.ids['alice']}"
    await api.set(second["id"], operation="PROVISIONING", op_id="x", op_started_at=NOW)
    busy = await root.delete(path)
    assert busy.status_code == 409 and busy.json()["error"]["code"] == "OPERATION_IN_PROGRESS"
    assert (await alice.get(f"/api/v1/workspaces/{first['id']}")).status_code == 200
    await api.set(second["id"], operation="NONE", op_id=None, op_started_at=None)
    assert (await root.delete(path)).status_code == 204
    assert (await alice.get("/api/v1/session")).status_code == 401
    trash = (await root.get("/api/v1/admin/workspaces?trash=true")).json()
    assert trash["total"] == 2
    undelete = await root.post(f"/api/v1/workspaces/{first['id']}/undelete")
    assert undelete.status_code == 409 and undelete.json()["error"]["code"] == "INVALID_STATE"
