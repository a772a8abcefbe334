"""Every action leaves one audit entry with its actor, address and target, and without secrets."""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import httpx
import pytest
from sqlalchemy import func, select, text

from codehub import log
from codehub.database import audit
from codehub.database.tables import audit_log, users, workspaces
from codehub.domain.audit import CLI, Action
from codehub.domain.states import Role
from tests.integration.api.conftest import PASSWORD, Api

LOGIN = "/api/v1/login"
LOG = "/api/v1/admin/audit"
NEW = "another good password"
WRONG = "a wrong password"
NOW = datetime.now(UTC)


@dataclass
class AuditFixture:
    """An admin, alice with a workspace, and every secret that a test uses.

    Several can share an API: the number makes names and addresses unique.
    """

    api: Api
    number: int
    root: httpx.AsyncClient
    alice: httpx.AsyncClient
    workspace: str
    secrets: set[str] = field(default_factory=lambda: {PASSWORD, NEW, WRONG})

    @classmethod
    async def set(cls, api: Api, number: int = 0) -> Self:
        root = await api.quick_client(f"root{number}", Role.ADMIN)
        alice = await api.quick_client(f"alice{number}", Role.USER)
        workspace = (await api.workspace(alice, name="notes"))["id"]
        made = cls(api, number, root, alice, workspace)
        root.headers["X-Forwarded-For"], alice.headers["X-Forwarded-For"] = (
            made.admin_address,
            made.user_address,
        )
        made.secrets |= {root.cookies["session"], alice.cookies["session"]}
        return made

    @property
    def admin_address(self) -> str:
        """The address of the admin."""
        return f"192.0.2.{self.number}"

    @property
    def user_address(self) -> str:
        """The address of alice."""
        return f"2001:db8:{self.number}::2"

    @property
    def path(self) -> str:
        return f"/api/v1/workspaces/{self.workspace}"

    @property
    def user(self) -> str:
        return f"/api/v1/users/{self.api.ids[f'alice{self.number}']}"

    async def sign_in(self, name: str, password: str, address: str | None = None) -> httpx.Response:
        client = await self.api.client(**{"X-Forwarded-For": address or self.user_address})
        body = {"username": f"{name}{self.number}", "password": password}
        answer = await client.post(LOGIN, json=body)
        self.secrets |= {password, *answer.cookies.values()}
        return answer

    async def break_workspace(self) -> None:
        await self.api.set(self.workspace, phase="ERROR", error_reason="Timeout", error_count=1)

    async def entries(self) -> list[Any]:
        async with self.api.engine.connect() as conn:
            return list((await conn.execute(select(audit_log).order_by(audit_log.c.id))).all())

    def describe(self, row: Any) -> str:
        """Return actor, address, action and target as text, without the number."""
        actor = f"{row.actor_kind} {row.actor_name}".strip()
        address = {self.admin_address: "admin-address", self.user_address: "user-address"}.get(
            str(row.address), str(row.address)
        )
        text = f"{actor} from {address}: {row.action} {row.target_kind or ''} {row.target_name or ''}"
        return text.replace(f"root{self.number}", "root").replace(f"alice{self.number}", "alice").rstrip()


@pytest.fixture
async def fixture(api: Api) -> AuditFixture:
    return await AuditFixture.set(api)


Step = Callable[[AuditFixture], Awaitable[object]]


async def do_nothing(_fixture: AuditFixture) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """An action, after `first`, and the entry that it leaves, or None, as `describe` returns it."""

    action: Step
    entry: str | None
    details: dict[str, object] = field(default_factory=dict)
    first: Step = do_nothing


async def fail_four_times(fixture: AuditFixture) -> None:
    for _ in range(4):
        await fixture.sign_in("alice", WRONG)


async def fail_five_times(fixture: AuditFixture) -> None:
    await fail_four_times(fixture)
    await fixture.sign_in("alice", WRONG)


async def delete_by_alice(fixture: AuditFixture) -> None:
    assert (await fixture.alice.delete(fixture.path)).status_code == 204


STORED = f"{1:026}"


async def stop_with_archive(fixture: AuditFixture) -> None:
    await fixture.api.set(fixture.workspace, phase="STANDBY")
    await fixture.api.add_archive(fixture.workspace, 1, archive_op_id=STORED)


async def run(fixture: AuditFixture) -> None:
    await fixture.api.set(fixture.workspace, phase="RUNNING", desired_state="RUNNING")


def set_password(own: dict[str, str]) -> Step:
    return lambda fixture: fixture.root.patch(fixture.user, json={"password": NEW} | own)


def patch_user(**changes: str) -> Step:
    return lambda fixture: fixture.root.patch(fixture.user, json=changes)


def stop(client: str) -> Step:
    return lambda fixture: getattr(fixture, client).patch(fixture.path, json={"desired_state": "STANDBY"})


def post(client: str, action: str, body: dict[str, str] | None = None) -> Step:
    return lambda fixture: getattr(fixture, client).post(f"{fixture.path}/{action}", json=body or {})


def change_own(current: str) -> Step:
    body = {"current": current, "new": NEW}
    return lambda fixture: fixture.alice.post("/api/v1/session/password", json=body)


async def make_token(fixture: AuditFixture) -> None:
    answer = await fixture.alice.post("/api/v1/tokens", json={"name": "ci", "scopes": ["read"]})
    fixture.secrets.add(answer.json()["token"])


async def revoke_token(fixture: AuditFixture) -> None:
    (token,) = (await fixture.alice.get("/api/v1/tokens")).json()["items"]
    await fixture.alice.delete(f"/api/v1/tokens/{token['id']}")


ALICE, ROOT = "user alice from user-address", "admin root from admin-address"
OF_ALICE = {"owner": "alice"}
CASES = {
    "a user signs in": Case(lambda s: s.sign_in("alice", PASSWORD), f"{ALICE}: session.opened"),
    "an admin signs in": Case(
        lambda s: s.sign_in("root", PASSWORD, s.admin_address), f"{ROOT}: session.opened"
    ),
    "a wrong password": Case(
        lambda s: s.sign_in("ALICE", WRONG), "anonymous from user-address: session.failed user alice"
    ),
    "an IPv4 address in IPv6": Case(
        lambda s: s.sign_in("alice", WRONG, f"::ffff:{s.admin_address}"),
        "anonymous from admin-address: session.failed user alice",
    ),
    "an invalid address": Case(
        lambda s: s.sign_in("alice", WRONG, "<script>"), "anonymous from None: session.failed user alice"
    ),
    "a name that no user has": Case(
        lambda s: s.sign_in("hunter", WRONG), "anonymous from user-address: session.failed"
    ),
    "the fifth failure": Case(
        lambda s: s.sign_in("alice", WRONG), "anonymous from user-address: session.locked user alice",
        {"failures": 5, "seconds": 30}, fail_four_times,
    ),
    "a sign-in while locked": Case(lambda s: s.sign_in("alice", PASSWORD), None, first=fail_five_times),
    "a user changes their password": Case(
        change_own(PASSWORD), f"{ALICE}: user.password_changed user alice"
    ),
    "a user enters another current password": Case(
        change_own(WRONG), f"{ALICE}: session.confirmation_failed user alice"
    ),
    "an admin sets a password": Case(
        set_password({"your_password": PASSWORD}), f"{ROOT}: user.password_set user alice"
    ),
    "an admin sets a password with a wrong one": Case(
        set_password({"your_password": WRONG}), f"{ROOT}: session.confirmation_failed user root"
    ),
    "an admin sets a password without their own": Case(set_password({}), None),
    "an admin creates a user": Case(
        lambda s: s.root.post("/api/v1/users", json={"username": "Bob", "password": NEW, "role": "admin"}),
        f"{ROOT}: user.created user bob", {"role": "admin"},
    ),
    "an admin creates a user who exists": Case(
        lambda s: s.root.post("/api/v1/users", json={"username": "bob", "password": NEW}), None
    ),
    "an admin changes a role": Case(
        patch_user(role="admin"), f"{ROOT}: user.role_changed user alice",
        {"before": "user", "after": "admin"},
    ),
    "an admin sets the same role": Case(patch_user(role="user"), None),
    "an admin deletes a user": Case(
        lambda s: s.root.delete(s.user), f"{ROOT}: user.deleted user alice", {"workspaces": 1}
    ),
    "an owner stops": Case(stop("alice"), None, first=run),
    "an admin stops": Case(
        stop("root"), f"{ROOT}: workspace.stopped workspace notes",
        OF_ALICE | {"desired_state": "STANDBY"}, run,
    ),
    "an admin stops a workspace in STANDBY": Case(
        stop("root"), None, first=lambda s: s.api.set(s.workspace, phase="STANDBY")
    ),
    "an owner recovers": Case(
        post("alice", "recover"), f"{ALICE}: workspace.recovered workspace notes", OF_ALICE,
        AuditFixture.break_workspace,
    ),
    "an admin recovers": Case(
        post("root", "recover"), f"{ROOT}: workspace.recovered workspace notes", OF_ALICE,
        AuditFixture.break_workspace,
    ),
    "a recovery without an error": Case(post("alice", "recover"), None),
    "an owner recovers with an empty home": Case(
        post("alice", "recover", {"from": "empty"}), f"{ALICE}: workspace.recovered workspace notes",
        OF_ALICE | {"source": "empty"},
        lambda s: s.api.set(s.workspace, phase="ERROR", error_reason="DataLost"),
    ),
    "an owner restores an archive": Case(
        post("alice", "restore", {"archive_op_id": STORED}), f"{ALICE}: workspace.restored workspace notes",
        OF_ALICE | {"archive_op_id": STORED}, stop_with_archive,
    ),
    "an owner restores an archive that does not exist": Case(
        post("alice", "restore", {"archive_op_id": "0" * 26}), None,
        first=lambda s: s.api.set(s.workspace, phase="STANDBY"),
    ),
    "an owner deletes": Case(
        lambda s: s.alice.delete(s.path), f"{ALICE}: workspace.deleted workspace notes", OF_ALICE
    ),
    "an admin deletes": Case(
        lambda s: s.root.delete(s.path), f"{ROOT}: workspace.deleted workspace notes", OF_ALICE
    ),
    "an owner undeletes": Case(
        post("alice", "undelete"), f"{ALICE}: workspace.undeleted workspace notes", OF_ALICE, delete_by_alice
    ),
    "an admin undeletes": Case(
        post("root", "undelete"), f"{ROOT}: workspace.undeleted workspace notes", OF_ALICE, delete_by_alice
    ),
    "a user makes a token": Case(
        make_token, f"{ALICE}: token.created token ci", OF_ALICE | {"scopes": ["read"]}
    ),
    "a user makes a token that cannot be": Case(
        lambda s: s.alice.post("/api/v1/tokens", json={"name": "ci", "scopes": ["admin"]}), None
    ),
    "a user revokes a token": Case(
        revoke_token, f"{ALICE}: token.revoked token ci", OF_ALICE, make_token
    ),
    "a user enters a wrong password to confirm": Case(
        lambda s: s.alice.post("/api/v1/session/confirm", json={"password": WRONG}),
        f"{ALICE}: session.confirmation_failed user alice",
    ),
    "an admin creates a service account": Case(
        lambda s: s.root.post("/api/v1/users", json={"username": "robot", "service": True}),
        f"{ROOT}: user.created user robot", {"role": "user", "service": 1},
    ),
    "a user may not delete a user": Case(lambda s: s.alice.delete(s.user), None),
}  # fmt: skip


async def test_every_action_leaves_exactly_one_entry(api: Api) -> None:
    wrong = []
    for number, (name, case) in enumerate(CASES.items(), 1):
        fixture = await AuditFixture.set(api, number)
        await case.first(fixture)
        before = len(await fixture.entries())
        await case.action(fixture)
        added = (await fixture.entries())[before:]
        expected = [] if case.entry is None else [(case.entry, case.details)]
        found = [(fixture.describe(row), _without_number(row.details, number)) for row in added]
        if found != expected:
            wrong.append(f"{name}: {found}, not {expected}")
        failed = case.entry is not None and any(word in case.entry for word in ("failed", "locked"))
        assert {row.outcome for row in added} <= {"failure" if failed else "success"}
    assert not wrong, "\n".join(wrong)


def _without_number(details: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        name: value.removesuffix(str(number)) if name == "owner" else value for name, value in details.items()
    }


async def test_the_ids_of_actor_and_target_are_recorded(fixture: AuditFixture) -> None:
    await fixture.root.delete(fixture.path)
    last = (await fixture.entries())[-1]
    assert (last.actor_id, last.target_id) == (fixture.api.ids["root0"], fixture.workspace)


@pytest.fixture
def printed() -> io.StringIO:
    """The audit lines that a process prints, at a log level that drops all others."""
    output = io.StringIO()
    log.configure("api", "error", terminal=False, audit=output)
    return output


async def test_no_entry_and_no_printed_line_holds_a_secret(
    fixture: AuditFixture, printed: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """One case even enters a password as the user name."""
    await fixture.sign_in("my-secret-password", WRONG)
    for number, case in enumerate(CASES.values(), 1):
        other = await AuditFixture.set(fixture.api, number)
        await case.first(other)
        await case.action(other)
        fixture.secrets |= other.secrets
    async with fixture.api.engine.connect() as conn:
        rows = "\n".join(await conn.scalars(text("SELECT audit_log::text FROM audit_log")))
        hashes = list(await conn.scalars(select(users.c.password_hash)))
    everything = rows + printed.getvalue() + "".join(capfd.readouterr())
    assert "user.password_set" in rows and "user.password_set" in printed.getvalue()
    leaked = [secret for secret in {*fixture.secrets, *hashes, "my-secret-password"} if secret in everything]
    assert not leaked


async def test_every_committed_entry_is_one_json_line_whatever_the_log_level(
    fixture: AuditFixture, printed: io.StringIO
) -> None:
    before = len(await fixture.entries())
    await fixture.sign_in("alice", WRONG)
    await fixture.root.patch(fixture.user, json={"role": "admin"})
    assert (await fixture.root.post(f"{fixture.path}/recover", json={})).status_code == 409
    lines = [json.loads(line) for line in printed.getvalue().splitlines()]
    rows = (await fixture.entries())[before:]
    assert [(line["id"], line["action"]) for line in lines] == [(row.id, row.action) for row in rows]
    changed = lines[-1]
    assert (
        changed["event"] == "audit"
        and changed["component"] == "api"
        and changed["address"] == fixture.admin_address
    )
    assert changed["details"] == {"before": "user", "after": "admin"} and changed["actor_name"] == "root0"


async def test_an_action_that_is_rolled_back_leaves_no_entry_and_no_line(
    fixture: AuditFixture, printed: io.StringIO
) -> None:
    before = len(await fixture.entries())
    with pytest.raises(RuntimeError):
        async with audit.transaction(fixture.api.engine, CLI, NOW) as transaction:
            await transaction.record(Action.USER_PASSWORD_SET)
            raise RuntimeError
    await fixture.api.set(fixture.workspace, operation="STARTING", op_id="x", op_started_at=NOW)
    assert (await fixture.root.delete(fixture.user)).status_code == 409
    assert len(await fixture.entries()) == before and printed.getvalue() == ""


async def test_an_action_whose_entry_cannot_be_written_does_not_happen(fixture: AuditFixture) -> None:
    async with fixture.api.engine.begin() as conn:
        await conn.execute(text("ALTER TABLE audit_log ADD CONSTRAINT full_disk CHECK (false) NOT VALID"))
    assert (await fixture.root.delete(fixture.path)).status_code == 500
    assert (await fixture.root.patch(fixture.user, json={"role": "admin"})).status_code == 500
    answer = await fixture.sign_in("alice", PASSWORD)
    assert answer.status_code == 500 and not answer.cookies
    async with fixture.api.engine.connect() as conn:
        query = select(func.count()).select_from(workspaces).where(workspaces.c.deleted_at.is_not(None))
        assert await conn.scalar(query) == 0
        assert await conn.scalar(select(users.c.role).where(users.c.username == "alice0")) == "user"


async def test_setting_a_password_needs_the_admins_own(fixture: AuditFixture) -> None:
    missing = await fixture.root.patch(fixture.user, json={"password": NEW})
    assert missing.status_code == 422 and "your_password" in missing.json()["error"]["message"]
    wrong = await fixture.root.patch(fixture.user, json={"password": NEW, "your_password": WRONG})
    assert wrong.status_code == 403 and "Your own password" in wrong.json()["error"]["message"]
    own = f"/api/v1/users/{fixture.api.ids['root0']}"
    assert (await fixture.root.patch(own, json={"password": NEW, "your_password": WRONG})).status_code == 403
    for name in ("alice", "root"):
        assert (await fixture.sign_in(name, PASSWORD)).status_code == 200
    right = await fixture.root.patch(fixture.user, json={"password": NEW, "your_password": PASSWORD})
    assert right.status_code == 200
    assert (await fixture.sign_in("alice", NEW)).status_code == 200


async def test_a_guessed_password_of_an_admin_is_locked_like_a_sign_in(fixture: AuditFixture) -> None:
    guess = {"password": NEW, "your_password": WRONG}
    statuses = [(await fixture.root.patch(fixture.user, json=guess)).status_code for _ in range(6)]
    assert statuses == [403] * 5 + [429]
    right = await fixture.root.patch(fixture.user, json={"password": NEW, "your_password": PASSWORD})
    assert right.status_code == 429 and 0 < int(right.headers["retry-after"]) <= 30
    assert (await fixture.sign_in("root", PASSWORD, "192.0.2.99")).status_code == 200


async def pages(root: httpx.AsyncClient, **query: object) -> AsyncIterator[list[dict[str, Any]]]:
    before = None
    while True:
        parameters = query | ({} if before is None else {"before": before})
        answer = await root.get(LOG, params=parameters)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        yield answer.json()["items"]
        before = answer.json()["next"]
        if before is None:
            return


async def test_pages_stay_in_place_while_entries_arrive(fixture: AuditFixture) -> None:
    for number in range(7):
        await fixture.root.post("/api/v1/users", json={"username": f"u{number}", "password": NEW})
    expected = [row.id for row in reversed(await fixture.entries())]
    read: list[int] = []
    async for page in pages(fixture.root, limit=3):
        assert len(page) <= 3
        read += [item["id"] for item in page]
        await fixture.sign_in("alice", PASSWORD)
    assert read == expected


async def test_each_filter_limits_the_entries(fixture: AuditFixture) -> None:
    await fixture.sign_in("alice", PASSWORD)
    await fixture.root.delete(fixture.path)
    await fixture.sign_in("alice", WRONG)

    async def actions(**query: object) -> list[str]:
        return [item["action"] async for page in pages(fixture.root, limit=200, **query) for item in page]

    everything = await actions()
    assert everything == ["session.failed", "workspace.deleted", "session.opened"]
    assert await actions(action="workspace.deleted") == ["workspace.deleted"]
    assert await actions(actor="root0", target="notes") == ["workspace.deleted"]
    assert await actions(target=fixture.workspace) == ["workspace.deleted"]
    assert await actions(actor=fixture.api.ids["alice0"]) == ["session.opened"]
    assert await actions(actor="nobody") == []
    middle = (await fixture.entries())[-1].at.isoformat()
    assert await actions(**{"from": middle}) == everything[:1]
    assert await actions(to=middle) == everything[1:]


async def test_an_entry_has_the_fields_of_the_api(fixture: AuditFixture) -> None:
    await fixture.root.delete(fixture.path)
    [[entry]] = [page async for page in pages(fixture.root, action="workspace.deleted")]
    assert entry.pop("id") > 0 and entry.pop("at").endswith("Z")
    assert entry == {
        "actor": {"kind": "admin", "id": fixture.api.ids["root0"], "name": "root0"},
        "address": fixture.admin_address,
        "action": "workspace.deleted",
        "target": {"kind": "workspace", "id": fixture.workspace, "name": "notes"},
        "outcome": "success",
        "details": {"owner": "alice0"},
    }


INVALID = (
    "action=user.exploded", "limit=0", "limit=201", "limit=x", "before=0", "before=x",
    "before=99999999999999999999", "from=yesterday", "from=2026-01-01T00:00:00", "to=1e999",
    f"actor={'a' * 201}", "target=%00", "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
)  # fmt: skip


async def test_an_invalid_filter_is_rejected(fixture: AuditFixture) -> None:
    for query in INVALID:
        answer = await fixture.root.get(f"{LOG}?{query}")
        assert answer.status_code == 422, query
        assert answer.json()["error"]["code"] == "VALIDATION_ERROR"


async def test_only_admins_read_the_audit_log(fixture: AuditFixture) -> None:
    assert (await fixture.alice.get(LOG)).status_code == 403
    assert (await (await fixture.api.client()).get(LOG)).status_code == 401


async def test_an_action_of_a_newer_version_can_be_read(fixture: AuditFixture) -> None:
    async with fixture.api.engine.begin() as conn:
        values = {"actor_name": "x", "actor_kind": "system", "outcome": "success", "details": {}}
        await conn.execute(
            audit_log.insert().values(at=func.now(), action="rocket.launched", target_kind="moon",
                                      target_name="m", **values)
        )  # fmt: skip
    answer = await fixture.root.get(f"{LOG}?limit=1")
    assert answer.json()["items"][0]["action"] == "rocket.launched"
