"""A start with wrong settings or servers ends with one line of advice and a non-zero exit code."""

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from codehub.database import gate
from codehub.database.engine import asyncpg_dsn, create_engine
from codehub.domain.states import DesiredState
from codehub.domain.user_limits import Limits
from tests.integration.cli.conftest import FakeServer, Outcome, images_file, outcome
from tests.selection import sample
from tests.services import Services, run

AT_ONCE = 3
UP: Final = ("up", "--runtime", "process")
API: Final = ("serve", "api")
GATEWAY: Final = ("serve", "gateway")
COORDINATOR: Final = ("serve", "coordinator")

IMAGE = '[[image]]\nname = "one"\nprocess = ["true"]\n'
IMAGES = {
    "unknown key": f'{IMAGE}colour = "red"\n',
    "wrong type": '[[image]]\nname = "one"\nprocess = "true"\n',
    "duplicate": IMAGE * 2,
    "not TOML": "image: one\n",
    "docker only": '[[image]]\nname = "one"\ndocker = "one:1"\n',
}
PLAIN_HTTP = {"PUBLIC_BASE_URL": "http://hub.example.org", "APPS_DOMAIN": "apps.example.net"}
START_IT = "is a PostgreSQL running there, and is DATABASE_URL right?"
START_REDIS = "is a Redis running there, and is REDIS_URL right?"


@dataclass(frozen=True)
class Case:
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Environment variables. A value may be a name from the fixture `values`."""
    message: str
    advice: str


CASES = {
    "a number out of range, up": Case(UP, {"PORT": "70000"}, "PORT: must be less than", "65535"),
    "a number out of range, api": Case(
        API, {"LIMITS_MAX_RUNNING_PER_USER": "-1"}, "LIMITS_MAX_RUNNING_PER_USER: must be greater", "0"
    ),
    "settings at odds": Case(
        COORDINATOR, {"TTL_STANDBY_SECONDS": "1"}, "TTL_STANDBY_SECONDS is 1", "raise it"
    ),
    "plain http on a public name, up": Case(
        UP, PLAIN_HTTP, "PUBLIC_BASE_URL is http://hub.example.org", "ALLOW_INSECURE_HTTP=1"
    ),
    "plain http on a public name, gateway": Case(
        GATEWAY, PLAIN_HTTP, "PUBLIC_BASE_URL is http://hub.example.org", "TLS_CERT_FILE"
    ),
    "plain http on a public name, api": Case(API, PLAIN_HTTP, "without https", "ALLOW_INSECURE_HTTP=1"),
    "an unknown word": Case(GATEWAY, {"LOG_LEVEL": "loud"}, "LOG_LEVEL: must be 'debug'", "'info'"),
    "an API on TCP without a key": Case(
        API, {"API_LISTEN": "tcp:127.0.0.1:1"}, "API_LISTEN is tcp:127.0.0.1:1", "set INTERNAL_KEY"
    ),
    "a gateway of an API on TCP without a key": Case(
        GATEWAY, {"API_UPSTREAM": "tcp:api:1"}, "API_UPSTREAM is tcp:api:1", "set INTERNAL_KEY"
    ),
    "a short key": Case(API, {"INTERNAL_KEY": "s3cret"}, "INTERNAL_KEY: must have", "at least 32 characters"),
    "no services": Case(COORDINATOR, {"DATABASE_URL": ""}, "DATABASE_URL must be set", "codehub up"),
    "not a database's URL": Case(API, {"DATABASE_URL": "here"}, "DATABASE_URL: must be", "postgresql://"),
    "an image with an unknown key": Case(
        UP, {"IMAGES_FILE": "unknown key"}, "'colour' is unknown", "correct"
    ),
    "an image with a wrong type": Case(
        COORDINATOR, {"IMAGES_FILE": "wrong type"}, "key 'process' must be a list", "correct the file"
    ),
    "an image twice": Case(GATEWAY, {"IMAGES_FILE": "duplicate"}, "another image has this name", "correct"),
    "images that are no TOML": Case(API, {"IMAGES_FILE": "not TOML"}, "is not TOML", "correct the file"),
    "no images file": Case(UP, {"IMAGES_FILE": "/nowhere"}, "IMAGES_FILE /nowhere cannot be read", "correct"),
    "no image for this runtime": Case(
        API, {"IMAGES_FILE": "docker only"}, "no image that the process runtime can start", "`process` key"
    ),
    "an engine on another machine": Case(
        COORDINATOR,
        {"RUNTIME": "docker", "DOCKER_HOST": "tcp://192.0.2.1:2375"},
        "tcp://192.0.2.1:2375 runs on another machine",
        "homes that containers mount",
    ),
    "other users than the homes'": Case(
        COORDINATOR,
        {"DATABASE_URL": "settled", "WORKSPACE_UID_BASE": "3000000"},
        "WORKSPACE_UID_BASE is 3000000, but",
        "set it to 2000000",
    ),
    "other users than the homes', up": Case(
        UP,
        {"DATABASE_URL": "settled", "WORKSPACE_UID_BASE": "3000000"},
        "WORKSPACE_UID_BASE is 3000000, but",
        "set it to 2000000",
    ),
    "a newer database, up": Case(UP, {"DATABASE_URL": "newer"}, "newer CodeHub (schema 9999", "install that"),
    "a newer database, api": Case(
        API, {"DATABASE_URL": "newer"}, "newer CodeHub (schema 9999", "install that"
    ),
    "a database without a schema": Case(
        COORDINATOR, {"DATABASE_URL": "empty"}, "the database is empty", "codehub migrate"
    ),
    "no PostgreSQL there": Case(UP, {"DATABASE_URL": "refused"}, "does not answer ([Errno 111]", START_IT),
    "PostgreSQL's host is unknown": Case(
        API,
        {"DATABASE_URL": "postgresql://u:s3cret@nowhere.invalid/d"},
        "at nowhere.invalid does not",
        START_IT,
    ),
    "a wrong password for PostgreSQL": Case(
        GATEWAY, {"DATABASE_URL": "wrong password"}, "password authentication failed", "correct DATABASE_URL"
    ),
    "no such database": Case(
        COORDINATOR, {"DATABASE_URL": "no such database"}, "does not exist", "correct DATABASE_URL"
    ),
    "something else in PostgreSQL's place": Case(
        COORDINATOR, {"DATABASE_URL": "babbling"}, "does not answer", START_IT
    ),
    "a silent PostgreSQL": Case(COORDINATOR, {"DATABASE_URL": "silent"}, "no answer within 10 s", START_IT),
    "no Redis there, up": Case(UP, {"REDIS_URL": "redis refused"}, "does not answer (Error 111", START_REDIS),
    "no Redis there": Case(
        COORDINATOR, {"REDIS_URL": "redis refused"}, "does not answer (Error 111", START_REDIS
    ),
    "Redis' host is unknown": Case(
        GATEWAY, {"REDIS_URL": "redis://u:s3cret@nowhere.invalid/0"}, "at nowhere.invalid/0 does", START_REDIS
    ),
    "a wrong password for Redis": Case(
        API, {"REDIS_URL": "redis wrong password"}, "invalid username-password pair", "correct REDIS_URL"
    ),
    "something else in Redis' place": Case(
        COORDINATOR, {"REDIS_URL": "redis babbling"}, "Protocol Error", START_REDIS
    ),
    "a silent Redis": Case(COORDINATOR, {"REDIS_URL": "redis silent"}, "does not answer", START_REDIS),
}
FURTHEST = "a newer database, up"
"""The case that fails latest: some parts of the system run by then."""
OTHERS = [name for name in CASES if name != FURTHEST]


@pytest.fixture(scope="module")
def values(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Values of the names that the cases use."""
    good, newer, settled = (run(services.migrated_database()) for _ in range(3))
    empty = run(services.empty_database())
    run(_make_newer(newer))
    run(_add_workspace(settled))
    refusing, redis_refusing = socket.socket(), socket.socket()
    for item in (refusing, redis_refusing):
        item.bind(("127.0.0.1", 0))  # and does not listen
    babbling, silent = FakeServer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), FakeServer()
    password = good.split(":")[2].split("@")[0]
    yield {
        "good": good,
        "empty": empty,
        "newer": newer,
        "settled": settled,
        "refused": f"postgresql://u:s3cret@127.0.0.1:{refusing.getsockname()[1]}/d",
        "wrong password": good.replace(password, "s3cret"),
        "no such database": good.replace("/codehub_", "/nowhere_"),
        "babbling": f"postgresql://u:s3cret@127.0.0.1:{babbling.port}/d",
        "silent": f"postgresql://u:s3cret@127.0.0.1:{silent.port}/d",
        "redis": services.redis.url,
        "redis refused": f"redis://u:s3cret@127.0.0.1:{redis_refusing.getsockname()[1]}/0",
        "redis wrong password": services.redis.url.replace("unix://", "unix://u:s3cret@"),
        "redis babbling": f"redis://u:s3cret@127.0.0.1:{babbling.port}/0",
        "redis silent": f"redis://u:s3cret@127.0.0.1:{silent.port}/0",
        **_images(tmp_path_factory.mktemp("images")),
    }
    for item in (refusing, redis_refusing):
        item.close()
    babbling.close()
    silent.close()
    for url in (good, empty, newer, settled):
        run(services.drop_database(url))


async def _make_newer(url: str) -> None:
    connection = await asyncpg.connect(asyncpg_dsn(url))
    await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    await connection.close()


async def _add_workspace(url: str) -> None:
    """Make the database that of an installation with a workspace."""
    connection = await asyncpg.connect(asyncpg_dsn(url))
    await connection.execute("INSERT INTO installation (id, cookie_key) VALUES ('here', 'key')")
    await connection.execute(
        "INSERT INTO users (id, username, password_hash, role) VALUES ('one', 'one', 'x', 'user')"
    )
    await connection.close()
    engine = create_engine(url)
    async with engine.begin() as conn:
        await gate.create(
            conn, owner_id="one", name="a name", description="", image_ref="code-server", standby_ttl=None,
            archive_ttl=None, desired=DesiredState.STANDBY, actor="one", limits=Limits(1, 1),
            backends=gate.Backends("process", "local-dir"), now=datetime.now(UTC),
        )  # fmt: skip
    await engine.dispose()


def _images(directory: Path) -> dict[str, str]:
    return {name: images_file(directory, name.replace(" ", "-"), text) for name, text in IMAGES.items()}


@pytest.fixture(scope="module")
def outcomes(
    values: Mapping[str, str], request: pytest.FixtureRequest
) -> Iterator[Mapping[str, "Future[Outcome]"]]:
    """Run the selected cases, a few at a time: each spends most of its time on starting Python."""
    items = (item for item in request.session.items if _is_case(item))
    chosen = {item.callspec.params["name"] for item in items}  # type: ignore[attr-defined]
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {name: pool.submit(_start, CASES[name], values) for name in CASES if name in chosen}
    pool.shutdown(cancel_futures=True)


def _is_case(item: pytest.Item) -> bool:
    return item.path == Path(__file__) and hasattr(item, "callspec")


def _start(case: Case, values: Mapping[str, str]) -> Outcome:
    services = {"DATABASE_URL": values["good"], "REDIS_URL": values["redis"]}
    given = {name: values.get(value, value) for name, value in case.environment.items()}
    return outcome(case.command, services | given)


@pytest.mark.parametrize("name", [FURTHEST, *sample(OTHERS, 9, "bad input")])
def test_an_impossible_start_ends_with_one_clear_line(
    outcomes: Mapping[str, "Future[Outcome]"], name: str
) -> None:
    case, ended = CASES[name], outcomes[name].result()
    assert ended.code == 1, ended.stderr
    *before, line = ended.stderr.splitlines()
    assert set(before) <= {"Preparing the database"}, ended.stderr
    assert line.startswith("codehub: ")
    assert case.message in line
    assert case.advice in line
    assert "s3cret" not in line
    assert ended.stdout == ""
