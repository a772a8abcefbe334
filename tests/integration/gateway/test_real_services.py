"""The gateway with real PostgreSQL and Redis: pushes, tickets, activity and the gate."""

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.bus import tickets
from codehub.bus.activity import KEY, ActivityLog
from codehub.bus.tickets import Ticket
from codehub.clock import utc_now
from codehub.database import accounts, gate, gateway_reports, installation, sessions, tokens
from codehub.database.accounts import AccountChanges
from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.database.tables import audit_log, workspaces
from codehub.domain.audit import CLI, Action, Actor
from codehub.domain.gateway_reports import ActivitySnapshot
from codehub.domain.new_token import NewToken
from codehub.domain.problems import Problem
from codehub.domain.scopes import Scope
from codehub.domain.states import DesiredState, Role
from codehub.domain.user_limits import Limits
from codehub.gateway.config import GatewayConfig
from codehub.gateway.metrics import GatewayMetrics
from codehub.gateway.postgres_source import PostgresSource
from codehub.gateway.server import run_gateway_worker
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import HELLO, NAVIGATE, Client, Upstream, header, status
from tests.services import free_port
from tests.waiting import PATIENCE, eventually, until

LIMITS = Limits(1, 100)


class Installation:
    """Gateway on a real schema, with one user, one session and one workspace."""

    def __init__(self, directory: Path, engine: AsyncEngine, database_url: str, redis_url: str) -> None:
        self.engine = engine
        self.ide = Upstream(directory / "ide.sock", HELLO)
        port = free_port()
        self.platform = f"localhost:{port}"
        self.config = GatewayConfig(
            host="127.0.0.1",
            port=port,
            public_base_url=f"http://{self.platform}",
            apps_domain=self.platform,
            api_upstream=f"unix:{directory / 'api.sock'}",
            database_url=database_url,
            redis_url=redis_url,
            limits=LIMITS,
            activity_flush_interval=0.1,
        )
        self.stopping = asyncio.Event()
        self.metrics = GatewayMetrics(1)
        self.serving: asyncio.Task[None] | None = None
        self.user_id = ""
        self.session = ""
        self.workspace_id = ""

    async def populate(self) -> None:
        await installation.load_or_create_installation(self.engine, "01installation000000000000", 2_000_000)
        account = await accounts.create_account(
            self.engine, "alice", "password!", Role.USER, actor=CLI, now=datetime.now(UTC)
        )
        self.user_id = account.id
        async with self.engine.begin() as conn:
            self.session = await sessions.open_session(conn, account.id, datetime.now(UTC))
        self.workspace_id = await self.create("one")

    async def create(self, name: str) -> str:
        async with self.engine.begin() as conn:
            workspace = await gate.create(
                conn,
                owner_id=self.user_id,
                name=name,
                description="",
                image_ref="other-ide",
                standby_ttl=None,
                archive_ttl=None,
                desired=DesiredState.STANDBY,
                actor="alice",
                limits=LIMITS,
                backends=gate.Backends("process", "local-dir"),
                now=datetime.now(UTC),
            )
        return workspace.id

    async def change(self, **values: object) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(
                update(workspaces).where(workspaces.c.id == self.workspace_id).values(**values)
            )

    async def run(self) -> None:
        await self.change(phase="RUNNING", desired_state="RUNNING", upstream=self.ide.address)

    async def stop(self) -> None:
        self.stopping.set()
        assert self.serving is not None
        await asyncio.wait_for(self.serving, PATIENCE)

    async def report_ages(self) -> list[float]:
        """Return the seconds since the last report of each worker."""
        async with self.engine.connect() as conn:
            reports = (await gateway_reports.read_reports(conn)).values()
        return [report.silence.total_seconds() for report in reports if not report.ended]

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.config.port))

    async def get(self, host: str, target: str, cookie: str, more: str = NAVIGATE) -> tuple[str, bytes]:
        client = await self.connect()
        client.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n{more}\r\n")
        try:
            return await client.response()
        finally:
            client.close()

    async def wait_for_status(self, cookie: str, expected: int) -> None:
        """Wait until the workspace's origin returns this status."""

        async def current_status() -> int:
            return status((await self.get(self.host, "/", cookie, ""))[0])

        await eventually(current_status, f"a {expected}", lambda code: code == expected)

    async def visit(self, more: str = NAVIGATE) -> tuple[str, bytes]:
        return await self.get(self.platform, f"/w/{self.workspace_id}/", f"session={self.session}", more)

    @property
    def host(self) -> str:
        return self.config.origins.workspace_host(self.workspace_id)

    async def enter(self) -> str:
        """Enter the workspace through all redirects, and return its cookie."""
        browser = Browser(self, self.session)
        answer = await browser.navigate(
            await browser.find_ticket(f"{self.config.origins.entry_url(self.workspace_id)}/")
        )
        return (header(answer.head, "set-cookie") or "").split(";")[0]


@pytest.fixture
async def served(database_url: str, redis_url: str) -> AsyncIterator[Installation]:
    engine = create_engine(database_url)
    with tempfile.TemporaryDirectory(prefix="gw-") as directory:
        made = Installation(Path(directory), engine, database_url, redis_url)
        await made.populate()
        await made.ide.start()
        ready = asyncio.Event()
        made.serving = asyncio.create_task(
            run_gateway_worker(
                made.config, stop=made.stopping, ready=ready.set, metrics=made.metrics.of_worker(0)
            )
        )
        await asyncio.wait_for(ready.wait(), PATIENCE)
        try:
            yield made
        finally:
            await made.stop()
            await made.ide.stop()
            await engine.dispose()


async def test_a_workspace_is_entered_with_real_services(served: Installation) -> None:
    await served.run()
    cookie = await served.enter()
    head, body = await served.get(served.host, "/", cookie)
    assert (status(head), body) == (200, b"hello")


async def test_logout_is_pushed_to_open_connections(served: Installation) -> None:
    async def endless(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    await served.run()
    cookie = await served.enter()
    served.ide.script = endless
    client = await served.connect()
    client.send(f"GET / HTTP/1.1\r\nHost: {served.host}\r\nCookie: {cookie}\r\n\r\n")
    await client.head()
    async with served.engine.begin() as conn:
        await sessions.end_session(conn, sessions.hash_session_id(served.session))
    await client.rest()
    await until(lambda: served.ide.open == 0, "the upstream connection to be closed")
    assert status((await served.get(served.host, "/", cookie, ""))[0]) == 401


async def _change(served: Installation, changes: AccountChanges, keep: bytes | None = None) -> None:
    now = datetime.now(UTC)
    await accounts.change_account(served.engine, served.user_id, changes, keep=keep, actor=CLI, now=now)


async def _new_password(served: Installation) -> None:
    await _change(served, AccountChanges(password="another password"))


async def _new_role(served: Installation) -> None:
    await _change(served, AccountChanges(role=Role.ADMIN))


async def _deletion(served: Installation) -> None:
    now = datetime.now(UTC)
    await accounts.create_account(served.engine, "root", "password!", Role.ADMIN, actor=CLI, now=now)
    await accounts.delete_account(served.engine, served.user_id, actor=CLI, now=now)


async def test_a_recovery_by_a_form_is_in_the_audit_log(served: Installation) -> None:
    """Forms of pages without scripts do not call the API."""
    await served.change(phase="ERROR", error_reason="Timeout", error_message="too slow")
    source = PostgresSource(served.engine, Limits(2, 2), count_wake=lambda: None)
    alice = Actor.person(served.user_id, "alice", Role.USER, "192.0.2.7")
    await source.recover(served.workspace_id, alice, None)
    with pytest.raises(Problem):
        await source.recover(served.workspace_id, alice, None)
    async with served.engine.connect() as conn:
        c = audit_log.c
        found = await conn.execute(select(audit_log).where(c.action == Action.WORKSPACE_RECOVERED.value))
        [row] = found.all()
    assert (row.actor_name, row.target_id, str(row.address)) == ("alice", served.workspace_id, "192.0.2.7")


async def _stop(served: Installation) -> None:
    await served.change(phase="STANDBY", desired_state="STANDBY", upstream=None)


@pytest.mark.parametrize("revoke", [_new_password, _new_role, _deletion, _stop])
async def test_a_revoked_permission_closes_open_streams(
    served: Installation, revoke: Callable[[Installation], Awaitable[None]]
) -> None:
    """Only a push can close them, because the gateway does not poll open streams."""

    async def endless(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"upgrade: websocket" in await upstream.read_head(reader):
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    await served.run()
    cookie = await served.enter()
    served.ide.script = endless
    upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://{served.host}\r\n"
    clients = [await served.connect() for _ in range(2)]
    for client, more in zip(clients, ("", upgrade), strict=True):
        client.send(f"GET / HTTP/1.1\r\nHost: {served.host}\r\nCookie: {cookie}\r\n{more}\r\n")
        await client.head()
    await revoke(served)
    await asyncio.gather(*(client.rest() for client in clients))
    await until(lambda: served.ide.open == 0, "the upstream connection to be closed")


async def _token(served: Installation, *scopes: Scope) -> tuple[str, str]:
    wanted = NewToken.requested("ci", scopes, None, None)
    async with served.engine.begin() as conn:
        made, secret = await tokens.make_token(
            conn, served.user_id, wanted, created_by=served.user_id, now=utc_now()
        )
    return made.id, secret


async def _revoke_token(served: Installation, token_id: str) -> None:
    async with served.engine.begin() as conn:
        await tokens.revoke_token(conn, served.user_id, token_id)


async def _promote_owner(served: Installation, _token_id: str) -> None:
    await _new_role(served)


async def _delete_owner(served: Installation, _token_id: str) -> None:
    await _deletion(served)


@pytest.mark.parametrize("end", [_revoke_token, _promote_owner, _delete_owner])
async def test_an_event_stream_ends_with_the_token_that_opened_it(
    served: Installation, end: Callable[[Installation, str], Awaitable[None]]
) -> None:
    """The gateway ends it: this API does nothing. A valid cookie beside the token keeps nothing open."""

    async def endless(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    api = Upstream(Path(served.config.api_upstream.removeprefix("unix:")), HELLO)
    api.script = endless
    await api.start()
    token_id, secret = await _token(served, Scope.READ)
    client = await served.connect()
    client.send(
        f"GET /api/v1/events HTTP/1.1\r\nHost: {served.platform}\r\n"
        f"Authorization: Bearer {secret}\r\nCookie: session={served.session}\r\n\r\n"
    )
    await client.head()
    await end(served, token_id)
    await client.rest()
    await api.stop()


async def test_a_token_opens_no_page_and_no_origin_of_a_workspace(served: Installation) -> None:
    """Neither as a Bearer token nor in the place of the session or of the workspace's cookie."""
    await served.run()
    _, secret = await _token(served, Scope.READ, Scope.MANAGE, Scope.USE)
    bearer = f"Authorization: Bearer {secret}\r\n"
    for more in (NAVIGATE + bearer, bearer):
        for cookie in ("a=b", f"session={secret}", f"codehub-workspace={secret}"):
            entry = await served.get(served.platform, f"/w/{served.workspace_id}/", cookie, more)
            assert status(entry[0]) in (302, 401), entry
            assert "/login" in entry[0] or status(entry[0]) == 401
            origin = await served.get(served.host, "/", cookie, more)
            assert status(origin[0]) in (302, 401, 403), origin
    assert not served.ide.heads


async def test_a_token_in_the_address_of_a_call_is_refused(served: Installation) -> None:
    """Proxies and browsers write addresses to logs and histories."""
    _, secret = await _token(served, Scope.READ)
    for target in (f"/api/v1/workspaces?token={secret}", f"/api/v1/workspaces/{secret}", f"/?t={secret}"):
        head, body = await served.get(served.platform, target, "a=b", "")
        assert status(head) == 400
        assert secret not in head and secret.encode() not in body


async def test_a_new_password_keeps_the_streams_of_the_session_that_set_it(served: Installation) -> None:
    """The other sessions of the user end."""
    go_on = asyncio.Event()

    async def endless(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await go_on.wait()
        writer.write(b"3\r\nyes\r\n0\r\n\r\n")

    await served.run()
    kept, cookies = served.session, [await served.enter()]
    async with served.engine.begin() as conn:
        served.session = await sessions.open_session(conn, served.user_id, datetime.now(UTC))
    cookies.append(await served.enter())
    served.ide.script = endless
    kept_stream, ended_stream = [await served.connect() for _ in cookies]
    for client, cookie in zip((kept_stream, ended_stream), cookies, strict=True):
        client.send(f"GET / HTTP/1.1\r\nHost: {served.host}\r\nCookie: {cookie}\r\n\r\n")
        await client.head()
    await _change(served, AccountChanges(password="another password"), sessions.hash_session_id(kept))
    await ended_stream.rest()
    assert status((await served.visit())[0]) == 302  # to the login: the gateway has received the pushes
    go_on.set()
    assert await kept_stream.reader.readuntil(b"0\r\n\r\n") == b"3\r\nyes\r\n0\r\n\r\n"
    kept_stream.close()


async def test_a_changed_route_is_pushed(served: Installation) -> None:
    await served.run()
    cookie = await served.enter()
    assert status((await served.get(served.host, "/", cookie, ""))[0]) == 200
    await served.change(phase="STANDBY", upstream=None)
    await served.wait_for_status(cookie, 503)


async def test_a_navigation_wakes_through_the_gate_within_the_limit(served: Installation) -> None:
    await served.change(phase="STANDBY")
    assert status((await served.visit(""))[0]) == 503
    head, body = await served.visit()
    assert status(head) == 200 and b"<progress" in body
    async with served.engine.connect() as conn:
        found = (await conn.execute(workspaces.select().where(workspaces.c.id == served.workspace_id))).one()
    assert found.desired_state == "RUNNING"
    assert status((await served.visit())[0]) == 200
    assert b"\ncodehub_gateway_wakes_total 1.0\n" in served.metrics.exposition()[0], (
        "a second tab wakes nothing"
    )
    first, served.workspace_id = served.workspace_id, await served.create("two")
    await served.change(phase="STANDBY")
    head, body = await served.visit()
    assert status(head) == 502
    assert first.encode() in body and b">Stop<" in body


async def test_a_deleted_workspace_is_not_found(served: Installation) -> None:
    await served.run()
    async with served.engine.begin() as conn:
        await gate.delete(conn, served.workspace_id, actor="alice", now=datetime.now(UTC))
    assert status((await served.visit())[0]) == 404


async def test_a_lost_push_channel_reconnects(served: Installation) -> None:
    await served.run()
    cookie = await served.enter()
    assert status((await served.get(served.host, "/", cookie, ""))[0]) == 200
    admin = await asyncpg.connect(asyncpg_dsn(served.config.database_url))
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
    )
    assert await admin.fetchval(cut)
    await served.engine.dispose()
    await admin.execute("DELETE FROM sessions")
    await admin.close()
    await served.wait_for_status(cookie, 401)


async def test_activity_reaches_redis(served: Installation, redis_url: str) -> None:
    await served.run()
    cookie = await served.enter()
    before = time.time()
    await served.get(served.host, "/asset.js", cookie, "")
    redis: Redis = Redis.from_url(redis_url)
    seen = await eventually(
        ActivityLog(redis).read, "the request", lambda seen: seen.uses.get(served.workspace_id, 0) >= before
    )
    assert seen.uses[served.workspace_id] <= time.time()
    await redis.aclose()


@asynccontextmanager
async def rejecting_writes(redis_url: str) -> AsyncIterator[None]:
    """Make Redis accept reads and reject writes, as it does without free memory."""
    redis: Redis = Redis.from_url(redis_url)
    await redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await redis.config_set("maxmemory", 0)
        await redis.aclose()


async def test_a_worker_that_cannot_flush_to_redis_sends_no_report(
    served: Installation, redis_url: str
) -> None:
    """A report without its activity would make workspaces look idle."""
    await served.run()
    cookie = await served.enter()
    async with rejecting_writes(redis_url):
        before = time.time()
        await served.get(served.host, "/asset.js", cookie, "")
        await eventually(served.report_ages, "the reports to stop", lambda found: found[0] > 1)
    redis: Redis = Redis.from_url(redis_url)
    await eventually(served.report_ages, "the reports to resume", lambda found: found[0] < 1)
    seen = await ActivityLog(redis).read()
    assert seen.uses[served.workspace_id] >= before, "activity is kept until then"
    await redis.aclose()


async def test_a_worker_that_stops_flushes_its_activity_and_ends_its_registration(
    served: Installation, redis_url: str
) -> None:
    assert len(await served.report_ages()) == 1, "registered before its port answers"
    await served.run()
    cookie = await served.enter()
    before = time.time()
    await served.get(served.host, "/asset.js", cookie, "")
    await served.stop()
    redis: Redis = Redis.from_url(redis_url)
    assert (await ActivityLog(redis).read()).uses[served.workspace_id] >= before
    assert await served.report_ages() == []
    await redis.aclose()


async def test_a_worker_that_stops_without_its_last_flush_stays_registered(
    served: Installation, redis_url: str
) -> None:
    await served.run()
    cookie = await served.enter()
    async with rejecting_writes(redis_url):
        await served.get(served.host, "/asset.js", cookie, "")
        await served.stop()
    assert len(await served.report_ages()) == 1


async def test_activity_that_redis_lost_is_sent_again_until_it_is_in_the_database(
    served: Installation, redis_url: str
) -> None:
    await served.run()
    cookie = await served.enter()
    before = time.time()
    await served.get(served.host, "/asset.js", cookie, "")
    redis: Redis = Redis.from_url(redis_url)

    async def wait_for_flush(what: str, holds: Callable[[ActivitySnapshot], bool]) -> ActivitySnapshot:
        return await eventually(ActivityLog(redis).read, what, holds)

    for _ in range(2):
        seen = await wait_for_flush(
            "the request", lambda seen: seen.uses.get(served.workspace_id, 0) >= before
        )
        await redis.delete(KEY)
    seen = await wait_for_flush("the request", lambda seen: seen.uses.get(served.workspace_id, 0) >= before)

    async with served.engine.begin() as conn:
        await gateway_reports.update_reports(conn, seen.flushes, ())
    [(gateway_id, number)] = seen.flushes.items()
    await wait_for_flush("the next report", lambda seen: seen.flushes[gateway_id] > number + 1)
    await redis.delete(KEY)
    seen = await wait_for_flush("another flush", lambda seen: gateway_id in seen.flushes)
    assert not seen.uses, "activity in the database is not sent again"
    await redis.aclose()


async def test_the_first_gateway_resets_idle_times_and_a_second_one_does_not(served: Installation) -> None:
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    registry = gateway_reports.GatewayRegistry(served.config.database_url)
    await served.run()

    async def last_access_after(gateway_id: str) -> datetime:
        await served.change(last_access_at=long_ago)
        await registry.register(gateway_id)
        async with served.engine.connect() as conn:
            found = await conn.execute(workspaces.select().where(workspaces.c.id == served.workspace_id))
        return found.one().last_access_at

    assert await last_access_after("second") == long_ago
    await registry.report("second", 1, timedelta(0), ended=True)
    assert await last_access_after("third") == long_ago
    await registry.report("third", 1, timedelta(0), ended=True)
    await served.stop()
    assert await last_access_after("first-again") > long_ago


async def test_a_gateway_whose_port_is_in_use_leaves_no_registration(served: Installation) -> None:
    await served.stop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = replace(served.config, port=listener.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await run_gateway_worker(config, stop=asyncio.Event(), ready=lambda: None)
    assert await served.report_ages() == []


async def test_a_worker_that_fails_leaves_no_registration(served: Installation) -> None:
    await served.stop()

    def fail() -> None:
        raise RuntimeError("not today")

    with pytest.raises(ExceptionGroup):
        await run_gateway_worker(served.config, stop=asyncio.Event(), ready=fail)
    assert await served.report_ages() == []


async def test_activity_only_moves_forward_and_a_removal_keeps_newer_activity(redis_url: str) -> None:
    redis: Redis = Redis.from_url(redis_url)
    activity = ActivityLog(redis)
    await activity.flush({"a": 100.25, "b": 100.0}, "g", 1)
    await activity.flush({"a": 50.0, "b": 1763256000.123456}, "g", 2)
    read = await activity.read()
    assert read == ActivitySnapshot({"a": 100.25, "b": 1763256000.123456}, {"g": 2})
    await activity.flush({"b": 1763256000.2}, "g", 3)
    assert await activity.remove(read) == 1
    assert await activity.read() == ActivitySnapshot({"b": 1763256000.2}, {"g": 3})
    assert await activity.remove(ActivitySnapshot({"b": 1763256000.2, "gone": 1.0}, {"g": 3})) == 2
    assert await activity.read() == ActivitySnapshot({}, {})
    assert await activity.remove(ActivitySnapshot({}, {})) == 0
    await redis.aclose()


async def test_parallel_requests_consume_a_ticket_once(redis_url: str) -> None:
    redis: Redis = Redis.from_url(redis_url)
    ticket = Ticket("00" * 32, "01w", "01w.localhost", "11" * 32)
    token = await tickets.issue(redis, ticket, 30)
    results = await asyncio.gather(*(tickets.consume(redis, token) for _ in range(20)))
    assert [found for found in results if found] == [ticket]
    assert 0 < await redis.ttl(f"codehub:ticket:2:{await tickets.issue(redis, ticket, 30)}") <= 30
    assert await tickets.consume(redis, "") is None
    await redis.aclose()
