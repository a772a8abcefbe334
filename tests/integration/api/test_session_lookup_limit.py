"""A flood of random session cookies costs bounded look-ups and delays no valid session."""

import asyncio

import httpx
import pytest

from codehub.database import credentials
from codehub.domain.states import Role
from codehub.rate_limits import FairQueue, TokenBuckets
from tests.integration.api.conftest import PASSWORD, Api
from tests.waiting import until

ALLOWED = 5
ATTACKER = "192.0.2.66"


@pytest.fixture
def api(api: Api) -> Api:
    api.app.state.services.credential_lookup._limit._buckets = TokenBuckets(ALLOWED, 1e-6, "Too many.")
    return api


@pytest.fixture
def looked_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The sessions that were looked up in the database."""
    found: list[bytes] = []
    find_session = credentials.find_session

    async def record(conn: object, id_hash: bytes, *rest: object) -> object:
        found.append(id_hash)
        return await find_session(conn, id_hash, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(credentials, "find_session", record)
    return found


async def guess(api: Api, number: int, address: str = ATTACKER) -> httpx.Response:
    client = await api.client(**{"X-Forwarded-For": address, "Cookie": f"session=guess-{number}"})
    return await client.get("/api/v1/session")


async def test_random_sessions_of_one_network_cost_bounded_look_ups(api: Api, looked_up: list[bytes]) -> None:
    answers = [await guess(api, number) for number in range(ALLOWED + 15)]
    assert [answer.status_code for answer in answers] == [401] * ALLOWED + [429] * 15
    assert answers[-1].json()["error"]["code"] == "TOO_MANY_REQUESTS"
    assert int(answers[-1].headers["retry-after"]) > 0
    assert len(looked_up) == ALLOWED
    assert (await guess(api, 0, "192.0.2.7")).status_code == 401, "another network has its own allowance"


async def test_valid_sessions_of_a_blocked_network_keep_working(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    alice.headers["X-Forwarded-For"] = ATTACKER
    assert (await alice.get("/api/v1/session")).status_code == 200
    assert [(await guess(api, number)).status_code for number in range(ALLOWED + 1)][-1] == 429
    assert (await alice.get("/api/v1/session")).status_code == 200
    bob = await api.client(**{"X-Forwarded-For": ATTACKER})
    await api.quick_client("bob", Role.USER)
    assert (await bob.post("/api/v1/login", json={"username": "bob", "password": PASSWORD})).is_success
    assert (await bob.get("/api/v1/session")).status_code == 200
    await bob.post("/api/v1/logout")
    assert (await alice.get("/api/v1/session")).status_code == 200


async def test_valid_sessions_cost_no_tokens(api: Api) -> None:
    for number in range(ALLOWED + 3):
        person = await api.quick_client(f"person-{number}", Role.USER)
        person.headers["X-Forwarded-For"] = ATTACKER
        assert (await person.get("/api/v1/session")).status_code == 200


async def test_random_sessions_from_many_networks_do_not_delay_valid_ones(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = api.app.state.services.credential_lookup._limit
    lookups._queue = FairQueue(2, 10, "Full.")
    alice = await api.quick_client("alice", Role.USER)
    assert (await alice.get("/api/v1/session")).status_code == 200
    blocked, release = 0, asyncio.Event()
    find_session = credentials.find_session

    async def hold(conn: object, id_hash: bytes, *rest: object) -> object:
        nonlocal blocked
        found = await find_session(conn, id_hash, *rest)  # type: ignore[arg-type]
        if found is None:
            blocked += 1
            await release.wait()
        return found

    monkeypatch.setattr(credentials, "find_session", hold)
    guesses = [asyncio.create_task(guess(api, number, f"198.51.100.{number}")) for number in range(40)]
    await until(lambda: sum(task.done() for task in guesses) == 40 - 12, "the queue to be full")
    await until(lambda: blocked == 2, "two look-ups to find nothing")
    assert (await alice.get("/api/v1/session")).status_code == 200
    assert blocked == 2
    release.set()
    statuses = [(await task).status_code for task in guesses]
    assert (statuses.count(401), statuses.count(429)) == (12, 28)
