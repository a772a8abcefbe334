"""`codehub up`, from the first start to the last stop."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from codehub import internal_http
from tests.services import System, descendants, free_port, processes_of
from tests.waiting import PATIENCE, wait_for

PARTS = ("redis", "postgres", "part-forkserver", "coordinator", "gateway", "api")


def run_command(system: System, *arguments: str) -> tuple[int, str]:
    process = system.command(*arguments)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


HUNG = ("coordinator", "api")


def test_a_first_start_prints_the_password_once_and_a_second_up_is_rejected(
    make_system: Callable[..., System],
) -> None:
    system = make_system().start()
    assert f"CodeHub is ready at {system.base_url}" in system.output
    assert system.client().get("/api/v1/session").json()["user"]["username"] == "admin"

    assert '"event": "audit"' not in system.output
    for log, action in (("up", "user.created"), ("api", "session.opened")):
        assert f'"action": "{action}"' in (system.data_dir / "logs" / f"{log}.log").read_text()

    code, output = run_command(system, "up")
    assert code == 1
    assert f"already running on {system.data_dir}" in output
    assert str(system.process.pid if system.process else "") in output

    code, output = run_command(system, "doctor")
    assert code == 0, output
    assert "ok    database: answers" in output
    for check in ("coordinator", "archives", "volumes", "runtime", "disk", "gc"):
        assert f"ok    {check}: " in output

    for part in ("api", "access", "gateway", "coordinator"):
        assert json.loads(system.internal(part, "/healthz")[1]) == {"status": "ok"}
        status, body = system.internal(part, "/readyz")
        assert status == 200 and json.loads(body)["degraded"] == [], body
        assert f"codehub_{part}_" in system.internal(part, "/metrics")[1].decode()
        assert system.internal(part, "/api/v1/session")[0] == 404
    for path in ("/readyz", "/metrics"):
        assert httpx.get(f"{system.base_url}{path}").status_code == 404
        assert httpx.get(f"{system.base_url}{path}", headers={"Host": "10.0.0.1"}).status_code == 404

    code, output = run_command(system, "users", "create", "bob", "--generate")
    assert code == 0, output
    password = output.split("password:")[1].strip()
    assert system.client("bob", password).get("/api/v1/session").json()["user"]["role"] == "user"
    assert "bob" in run_command(system, "users", "list")[1]

    assert run_command(system, "down") == (0, "CodeHub has stopped\n")
    assert processes_of(system.data_dir) == []
    system.start()
    assert "password" not in system.output
    system.client("bob", password)
    assert system.stop() == 0
    assert processes_of(system.data_dir) == []


@pytest.fixture(scope="module")
def running() -> Iterator[System]:
    """A system for tests that leave it running after they have killed it."""
    system = System({"ADMIN_PASSWORD": "a long enough password"})
    try:
        system.admin_password = "a long enough password"
        system.start()
        assert system.admin_password not in system.output
        yield system
    finally:
        system.close()


def test_it_comes_back_after_kill_9(running: System) -> None:
    running.kill9(everything=False)
    wait_for(lambda: not processes_of(running.data_dir), "the parts to end with their supervisor")
    running.start()
    running.client()


@pytest.mark.full
def test_it_comes_back_after_kill_9_of_its_parts_too(running: System) -> None:
    running.kill9()
    running.start()
    running.client()


def test_a_part_that_is_killed_is_started_again(running: System) -> None:
    before = running.pids()
    for name in PARTS:
        os.kill(before[name], signal.SIGKILL)
    wait_for(lambda: _all_are_new(before, running.pids()), "new parts")
    wait_for(lambda: _signs_in(running), "sign-in to work again")


def test_a_part_that_hangs_is_started_again(make_system: Callable[..., System]) -> None:
    """A stopped process is alive, and neither answers nor handles a signal."""
    system = make_system(PART_TIMEOUT_SECONDS="12", GATEWAY_WORKERS="2").start()
    before = system.pids()
    worker = descendants(before["gateway"])[0]
    for pid in (before["coordinator"], before["api"], worker):
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), "the hung worker to be ended")
    wait_for(
        lambda: all(system.pids().get(name, pid) != pid for name, pid in before.items() if name in HUNG),
        "new parts",
    )
    wait_for(lambda: _signs_in(system), "sign-in to work again")
    assert system.pids()["gateway"] == before["gateway"], "only its worker hung"


def test_a_part_that_is_started_again_answers_at_the_same_internal_socket(
    make_system: Callable[..., System],
) -> None:
    """A worker of the killed gateway goes on for a while, and holds the socket of its parent."""
    system = make_system(GATEWAY_WORKERS="2").start()
    gateway = system.pids()["gateway"]
    left = descendants(gateway)
    for pid in left:
        os.kill(pid, signal.SIGSTOP)
    try:
        os.kill(gateway, signal.SIGKILL)
        wait_for(lambda: system.pids().get("gateway", gateway) != gateway, "a new gateway")
        wait_for(lambda: _is_healthy(system, "gateway"), "the new gateway to answer")
        assert not list((system.data_dir / "run").glob("gateway-internal-*.sock"))
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def _is_healthy(system: System, part: str) -> bool:
    try:
        return internal_http.get(f"unix:{system.data_dir}/run/{part}-internal.sock", "/healthz", 2)[0] == 200
    except OSError:
        return False


def without_ide(make_system: Callable[..., System], registry: str, tools: Path) -> System:
    registries = {"PIP_INDEX_URL": registry, "PIP_RETRIES": "0", "npm_config_registry": registry}
    return make_system(CODEHUB_TOOLS_DIR=str(tools), npm_config_fetch_retries="0", **registries)


def test_an_ide_that_is_missing_is_installed_or_the_start_says_why_not(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    system = without_ide(make_system, f"http://127.0.0.1:{free_port()}", tmp_path)
    code, output = run_command(system, "up", "--runtime", "process")
    assert code == 1
    assert f"code-server is not in {tmp_path} yet: installing it" in output
    assert "could not be installed; to retry, run `codehub ide install`" in output


def test_an_install_that_takes_too_long_can_be_interrupted(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        system = without_ide(make_system, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        up = system.command("up", "--runtime", "process")
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0
        connection.close()
    assert processes_of(tmp_path) == []


def _all_are_new(before: dict[str, int], now: dict[str, int]) -> bool:
    return all(now.get(name) not in (None, before[name]) for name in PARTS)


def _signs_in(system: System) -> bool:
    try:
        return system.internal("api", "/readyz")[0] == 200 and system.client() is not None
    except (AssertionError, OSError, httpx.TransportError):
        return False
