"""Two of each part, with separate servers, from an empty database, volumes and store."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from codehub import internal_http
from codehub.domain.internal_key_header import INTERNAL_KEY
from tests.integration.cli.conftest import Program, outcome, program
from tests.integration.coordinator.conftest import IDE
from tests.s3 import S3Server
from tests.services import free_port, kill_processes_of, short_temp_dir
from tests.waiting import PATIENCE, wait_for

KEY = "only-for-tests-" * 3
MOST_REDIRECTS = 10
NAVIGATION = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
SAVE_ENVIRONMENT = 'env > "$HOME/environment"; exec "$@"'
COMMAND = ["/bin/sh", "-c", SAVE_ENVIRONMENT, "sh", "/usr/bin/python3", "-c", IDE, "{socket}"]
IMAGES = f"""
[[image]]
name = "tiny"
ready_path = "/"
process = {json.dumps(COMMAND)}
"""


class Parts:
    """Two of each part.

    Gateway and API are paired over TCP; both gateways serve one public name.
    """

    def __init__(self, environment: dict[str, str], stack: ExitStack) -> None:
        self.environment = environment
        self.api_ports = [free_port(), free_port()]
        self.ports = [free_port(), free_port()]
        self.platform = f"localhost:{self.ports[0]}"
        given = environment | {"PUBLIC_BASE_URL": f"http://{self.platform}", "INTERNAL_KEY": KEY}
        self.programs: list[Program] = []
        self.internal: list[str] = []
        self._stack, self._given = stack, given
        for api, port in zip(self.api_ports, self.ports, strict=True):
            self._start("coordinator")
            self._start("api", API_LISTEN=f"tcp:127.0.0.1:{api}")
            self._start("gateway", API_UPSTREAM=f"tcp:localhost:{api}", PORT=str(port))

    def _start(self, part: str, **more: str) -> None:
        self.internal.append(f"tcp:127.0.0.1:{free_port()}")
        started = program("serve", part, INTERNAL_LISTEN=self.internal[-1], **self._given, **more)
        self.programs.append(self._stack.enter_context(started))

    def client(self, number: int) -> httpx.Client:
        """A client of one gateway, as a load balancer in front of both would reach it."""
        address = f"http://127.0.0.1:{self.ports[number]}"
        return httpx.Client(base_url=address, headers={"Host": self.platform}, timeout=PATIENCE)

    def wait_until_ready(self) -> None:
        for address in self.internal:
            wait_for(lambda: _is_ready(address), f"the part at {address} to be ready")  # noqa: B023 - at once
        for number in range(2):
            with self.client(number) as client:
                assert client.get("/healthz").status_code == 200

    def kill_first_pair(self) -> None:
        """Kill the first API and the gateway in front of it."""
        _, api, gateway, *_ = self.programs
        for part in (api, gateway):
            part.process.kill()

    def leader(self) -> Program:
        return next(part for part in self.programs if "this coordinator leads" in part.stderr())

    def logs(self) -> str:
        return "\n".join(f"== {part.process.args}\n{part.stderr()[-3000:]}" for part in self.programs)


def _is_ready(address: str) -> bool:
    try:
        return internal_http.get(address, "/readyz")[0] == 200
    except OSError:
        return False


@pytest.fixture
def data_dir() -> Iterator[Path]:
    made = short_temp_dir()
    (made / "images.toml").write_text(IMAGES)
    yield made
    wait_for(lambda: not kill_processes_of(made), "every workspace to end")
    shutil.rmtree(made)


@pytest.fixture
def parts(
    data_dir: Path, empty_database_url: str, redis_url: str, s3_server: S3Server, s3_url: str
) -> Iterator[Parts]:
    environment = {
        **s3_server.environment(),
        "DATABASE_URL": empty_database_url, "REDIS_URL": redis_url, "ARCHIVE_URL": s3_url,
        "CODEHUB_DATA_DIR": str(data_dir), "IMAGES_FILE": str(data_dir / "images.toml"),
        "GATEWAY_WORKERS": "1", "DISK_RESERVE_BYTES": "0", "COORDINATOR_LEADER_RETRY_INTERVAL": "0.3",
    }  # fmt: skip
    migrated = outcome(["migrate"], environment)
    assert migrated.code == 0, migrated.stderr
    assert "codehub users create-admin" in migrated.stdout
    with ExitStack() as stack:
        yield Parts(environment, stack)


def sign_in(parts: Parts, number: int, password: str) -> httpx.Client:
    client = parts.client(number)
    answer = client.post("/api/v1/login", json={"username": "admin", "password": password})
    assert answer.status_code == 200, answer.text
    return client


def wait_for_phase(client: httpx.Client, path: str, phase: str, parts: Parts) -> None:
    def has_settled() -> bool:
        workspace: dict[str, Any] = client.get(path).json()
        assert workspace["error_message"] is None, (workspace, parts.logs())
        return workspace["phase"] == phase and workspace["operation"] == "NONE"

    try:
        wait_for(has_settled, phase)
    except AssertionError as error:
        error.add_note(parts.logs())
        raise


def set_desired_state(client: httpx.Client, path: str, desired: str, parts: Parts) -> None:
    assert client.patch(path, json={"desired_state": desired}).status_code == 200
    wait_for_phase(client, path, desired, parts)


def open_page(parts: Parts, session: str, url: str, gateways: Sequence[int]) -> str:
    """Open a page as a browser behind a load balancer does.

    Each request may reach another gateway.
    """
    jar: dict[str, dict[str, str]] = {parts.platform: {"session": session}}
    for number in itertools.islice(itertools.cycle(gateways), MOST_REDIRECTS):
        target = urlsplit(url)
        cookies = "; ".join(f"{name}={value}" for name, value in jar.get(target.netloc, {}).items())
        answer = httpx.get(
            f"http://127.0.0.1:{parts.ports[number]}{target.path}?{target.query}",
            headers={"Host": target.netloc, "Cookie": cookies, **NAVIGATION},
            timeout=PATIENCE,
        )
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            jar.setdefault(target.netloc, {})[name] = value
        if not answer.is_redirect:
            return answer.text
        url = answer.headers["location"]
    raise AssertionError(f"too many redirects, the last one to {url}")


def test_a_workspace_works_with_two_of_each_part_from_empty_servers(parts: Parts, data_dir: Path) -> None:
    made = outcome(["users", "create-admin", "--generate"], parts.environment)
    assert made.code == 0, made.stderr
    password = made.stdout.rpartition("password: ")[2].strip()
    parts.wait_until_ready()
    with closing(sign_in(parts, 0, password)) as client:
        created = client.post("/api/v1/workspaces", json={"name": "one"})
        assert created.status_code == 201, created.text
        path = f"/api/v1/workspaces/{created.json()['id']}"
        wait_for_phase(client, path, "RUNNING", parts)
        (home,) = (data_dir / "volumes").glob("users/*/workspaces/*/home")
        assert KEY not in (home / "environment").read_text()
        page, session = created.json()["url"], client.cookies["session"]
        assert open_page(parts, session, page, [0, 1]) == "ok", "the IDE, through both gateways in turn"
        set_desired_state(client, path, "STANDBY", parts)
        (home / "notes.txt").write_text("still here")

    parts.leader().process.kill()
    with closing(sign_in(parts, 1, password)) as client:
        set_desired_state(client, path, "ARCHIVED", parts)
        assert not home.exists()
        set_desired_state(client, path, "RUNNING", parts)
        assert (home / "notes.txt").read_text() == "still here"
        parts.kill_first_pair()
        assert open_page(parts, client.cookies["session"], page, [1]) == "ok"

        direct = f"http://127.0.0.1:{parts.api_ports[1]}/api/v1/session"
        for headers in ({}, {INTERNAL_KEY: KEY[:-1]}):
            refused = httpx.get(direct, headers=headers, cookies=client.cookies, timeout=PATIENCE)
            assert refused.status_code == 403 and "INTERNAL_KEY" in refused.json()["error"]["message"]
        assert client.get("/api/v1/session", headers={INTERNAL_KEY: "theirs"}).status_code == 200

        assert client.delete(path).status_code == 204
        wait_for(lambda: not home.exists(), "the deleted workspace's home to go")
    assert all(KEY not in part.stderr() for part in parts.programs)
