"""Requests that PostgreSQL or Redis takes part in are bounded for each user and network."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from codehub.bus.tickets import Ticket
from codehub.database.gateway_queries import Route, StatusPageData
from codehub.domain.states import Phase
from codehub.gateway.route_cache import LOOKUPS_AT_ONCE, LOOKUPS_WAITING
from codehub.gateway.server import TICKET_CONNECTIONS, RedisTickets, redis_for_tickets
from codehub.gateway.workspace_entry import TICKETS_AT_ONCE, TICKETS_WAITING
from tests.integration.gateway.browser import Browser
from tests.integration.gateway.harness import (
    BOB,
    MINE,
    NAVIGATE,
    THEIRS,
    Client,
    World,
    header,
    make_workspace,
    status,
)
from tests.waiting import until

SOME = 20
MANY = LOOKUPS_AT_ONCE + LOOKUPS_WAITING + SOME


class HeldCalls:
    """Calls that wait until the test releases them."""

    def __init__(self) -> None:
        self.waiting = 0
        self.most = 0
        self.count = 0
        self.released = asyncio.Event()

    def hold(self, call: Callable[..., Awaitable[Any]], *but_for: str) -> Callable[..., Awaitable[Any]]:
        async def held(*arguments: Any) -> Any:
            if but_for and arguments[0] in but_for:
                return await call(*arguments)
            self.count += 1
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            await self.released.wait()
            self.waiting -= 1
            return await call(*arguments)

        return held


@pytest.fixture
def held() -> HeldCalls:
    return HeldCalls()


@pytest.fixture(autouse=True)
def workspace_of_bob(origin_mode: World) -> None:
    facts, upstream = origin_mode.facts, origin_mode.ide.address
    facts.routes[THEIRS] = Route(
        THEIRS, BOB, Phase.RUNNING, origin_mode.facts.routes[MINE].operation, upstream, ""
    )
    facts.page_data[THEIRS] = StatusPageData(make_workspace(THEIRS, Phase.RUNNING), [])


def entrance(made: World, workspace_id: str, session: str = "alice-session", more: str = NAVIGATE) -> str:
    cookie = f"Cookie: session={session}\r\n"
    return f"GET /w/{workspace_id}/ HTTP/1.1\r\nHost: {made.platform}\r\n{cookie}{more}\r\n"


async def send_each(made: World, requests: list[str], source: str = "127.0.0.2") -> list[Client]:
    clients = []
    for request in requests:
        streams = await asyncio.open_connection("127.0.0.1", made.gateway.port, local_addr=(source, 0))
        clients.append(Client(*streams))
        clients[-1].send(request)
    return clients


async def statuses_of(clients: list[Client]) -> list[int]:
    return [status((await client.response())[0]) for client in clients]


@contextmanager
def counted_rejections(made: World) -> Iterator[list[object]]:
    rejected: list[object] = []
    refusals, answer = made.gateway.router._refusals, made.gateway.router._refusals.too_many_requests

    def count(*arguments: Any) -> Any:
        rejected.append(arguments)
        return answer(*arguments)

    refusals.too_many_requests = count  # type: ignore[method-assign]
    yield rejected


async def test_lookups_of_one_user_are_bounded_and_do_not_delay_another_user(
    origin_mode: World, held: HeldCalls
) -> None:
    made = origin_mode
    made.gateway.route_cache._routes._read = held.hold(made.facts.route, THEIRS)
    missing = [f"01hzy{number:021d}" for number in range(MANY)]
    with counted_rejections(made) as rejected:
        clients = await send_each(made, [entrance(made, workspace_id) for workspace_id in missing])
        await until(lambda: len(rejected) == SOME, "the queue to be full")
        assert (held.waiting, held.count) == (LOOKUPS_AT_ONCE, LOOKUPS_AT_ONCE)
        head, _ = await made.ask(entrance(made, THEIRS, "bob-session"))
        assert status(head) == 302, "another user is served at once"
        held.released.set()
        statuses = await statuses_of(clients)
    assert (statuses.count(429), statuses.count(404)) == (SOME, MANY - SOME)
    assert held.most == LOOKUPS_AT_ONCE


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STANDBY])
async def test_a_user_who_reloads_thirty_tabs_at_once_gets_all_of_them(
    origin_mode: World, held: HeldCalls, phase: Phase
) -> None:
    """The gateway has just started, and each tab sends as many requests as a browser has connections."""
    made, tabs, requests = origin_mode, 30, 6
    made.set_phase(MINE, phase)
    users = made.gateway.route_cache._session_users
    users._read = held.hold(made.facts.session_user)
    clients = await send_each(made, [entrance(made, MINE) for _ in range(tabs * requests)])
    await until(lambda: held.waiting == LOOKUPS_AT_ONCE, "the first look-ups")
    limit = made.gateway.route_cache._limit
    await until(
        lambda: sum(state.admitted for state in limit._keys.values()) == tabs * requests,
        "the requests to wait",
    )
    held.released.set()
    assert set(await statuses_of(clients)) == {302 if phase is Phase.RUNNING else 200}
    assert held.count == LOOKUPS_AT_ONCE, "the others find in memory what the first ones loaded"
    assert not limit._keys


@pytest.mark.parametrize("action", ["visit", "form"])
async def test_wakes_of_one_user_are_bounded(origin_mode: World, held: HeldCalls, action: str) -> None:
    made = origin_mode
    made.set_phase(MINE, Phase.STANDBY)
    made.facts.wake = held.hold(made.facts.wake)  # type: ignore[method-assign]
    request = entrance(made, MINE)
    if action == "form":
        own = f"Origin: http://{made.platform}\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 0\r\n"
        request = made.entrance("/.codehub/do?action=start&to=/", more=own).replace("GET", "POST", 1)
    with counted_rejections(made) as rejected:
        clients = await send_each(made, [request] * MANY)
        await until(lambda: len(rejected) == SOME, "the queue to be full")
        assert held.waiting == LOOKUPS_AT_ONCE
        held.released.set()
        statuses = await statuses_of(clients)
    assert statuses.count(429) == SOME
    assert held.most == LOOKUPS_AT_ONCE


async def test_invented_tickets_of_one_network_do_not_keep_others_from_entering(
    origin_mode: World, held: HeldCalls
) -> None:
    made = origin_mode
    consume = made.tickets.consume
    owner = Browser(made)
    link = await owner.find_ticket(made.config.origins.entry_url(MINE) + "/")
    made.tickets.consume = held.hold(consume)  # type: ignore[method-assign]
    invented = f"GET /.codehub/enter?ticket={'x' * 43} HTTP/1.1\r\nHost: {made.host}\r\n{NAVIGATE}\r\n"
    with counted_rejections(made) as rejected:
        clients = await send_each(made, [invented] * (TICKETS_AT_ONCE + TICKETS_WAITING + SOME))
        await until(lambda: len(rejected) == SOME, "the queue to be full")
        assert held.waiting == TICKETS_AT_ONCE
        entering = asyncio.create_task(owner.navigate(link))
        await until(lambda: len(rejected) == SOME + 1, "the flood to make room")
        held.released.set()
        answer = await entering
        assert (answer.status, bool(header(answer.head, "set-cookie"))) == (302, True)
        statuses = await statuses_of(clients)
    assert (statuses.count(429), held.most) == (SOME + 1, TICKETS_AT_ONCE)


async def test_tickets_wait_for_a_connection_to_redis(redis_url: str) -> None:
    redis = redis_for_tickets(redis_url)
    store = RedisTickets(redis, 30)
    ticket = Ticket("00", MINE, "host", "nonce")
    tokens = await asyncio.gather(*(store.issue(ticket) for _ in range(300)))
    assert len(set(tokens)) == 300
    assert await asyncio.gather(*map(store.consume, tokens)) == [ticket] * 300
    other = Redis.from_url(redis_url)
    clients = await other.client_list()
    assert len(clients) <= TICKET_CONNECTIONS + 1, json.dumps(clients)
    await other.aclose()
    await redis.aclose()
