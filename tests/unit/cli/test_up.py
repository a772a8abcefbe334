"""Checks of `up` before its start, and its cleanup when it stops."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codehub.cli.errors import CommandError
from codehub.cli.main import app
from codehub.cli.runtime_choice import save_runtime
from codehub.cli.up import _public_port_error, cancel_jobs, check_port_free
from codehub.domain.observation import JobState
from codehub.settings import load
from codehub.storage.jobs.local_jobs import LocalJobs
from codehub.storage.jobs.spec import EmptyArchiveJob, StorageLocation
from codehub.storage.volumes.local_volumes import LocalVolumes
from tests.services import free_port, short_temp_dir


def invoke(*arguments: str, **environment: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, arguments, env=environment)
    return outcome.exit_code, outcome.output


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CommandError, match=rf"port {port} on 127.0.0.1 cannot be used .* --port"):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_a_port_that_is_shared_by_its_owner_counts_as_in_use() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(CommandError):
            check_port_free("127.0.0.1", other.getsockname()[1])


async def test_jobs_end_with_up(tmp_path: Path) -> None:
    volumes = LocalVolumes(tmp_path / "volumes", "here")
    volumes.initialise()
    jobs, key = LocalJobs(tmp_path / "jobs"), "users/u1/workspaces/w1/home"
    location = StorageLocation(tmp_path / "volumes", f"file://{tmp_path}/archives", "here")
    async with volumes.hold(key, epoch=1):  # the job waits for this
        await jobs.start("op1-0", EmptyArchiveJob(location, "w1", key, "a1", None, epoch=1))
        running = await jobs.status("op1-0")
        await cancel_jobs(jobs)
        ended = await jobs.status("op1-0")
    assert running is not None
    assert ended is not None
    assert (running.state, ended.state) == (JobState.RUNNING, JobState.GONE)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = short_temp_dir()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("engine", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_docker_without_an_engine_ends_with_one_line_and_creates_nothing(data_dir: Path, engine: str) -> None:
    code, output = invoke("up", "--runtime", "docker", "--data-dir", str(data_dir), DOCKER_HOST=engine)
    assert code == 1
    assert output.count("\n") == 1
    assert f"the Docker engine at {engine} does not answer" in output
    assert "--runtime process" in output
    assert list(data_dir.iterdir()) == []


@pytest.mark.parametrize("engine", ["tcp://192.0.2.1:2375", "tcp://build.example.org", "ssh://localhost"])
def test_an_engine_on_another_machine_is_rejected_without_contacting_it(data_dir: Path, engine: str) -> None:
    code, output = invoke("up", "--runtime", "docker", "--data-dir", str(data_dir), DOCKER_HOST=engine)
    assert code == 1
    assert f"the engine {engine} runs on another machine" in output
    assert list(data_dir.iterdir()) == []


def test_auto_does_not_switch_away_from_docker(data_dir: Path) -> None:
    """Containers may still run there, on the homes that processes would get."""
    (data_dir / "runtime").mkdir()
    save_runtime(data_dir, "docker")
    code, output = invoke("up", "--data-dir", str(data_dir), DOCKER_HOST="unix:///nowhere/docker.sock")
    assert code == 1
    assert f"the workspaces of {data_dir} run on Docker" in output


def test_an_unknown_runtime_is_named(tmp_path: Path) -> None:
    code, output = invoke("up", "--runtime", "vmware", "--data-dir", str(tmp_path))
    assert code == 1
    assert "RUNTIME" in output


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    data_dir = tmp_path / ("d" * 100)
    code, output = invoke("up", "--data-dir", str(data_dir))
    assert code == 1
    assert "choose a shorter --data-dir" in output
    assert not data_dir.exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_first_start_on_a_port_in_use_leaves_nothing_behind(exists: bool) -> None:
    parent = short_temp_dir()
    data_dir = parent / "new"
    if exists:
        data_dir.mkdir()
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            code, output = invoke("up", "--runtime", "process", "--port", port, "--data-dir", str(data_dir))
        assert code == 1
        assert f"port {port} on 127.0.0.1 cannot be used" in output
        assert list(parent.rglob("*")) == ([data_dir] if exists else [])
    finally:
        shutil.rmtree(parent)


def test_an_invalid_setting_is_reported_in_one_sentence(tmp_path: Path) -> None:
    code, output = invoke("up", "--data-dir", str(tmp_path), TTL_STANDBY_SECONDS="soon")
    assert code == 1
    assert "TTL_STANDBY_SECONDS" in output
    assert "Traceback" not in output


def test_down_reports_that_nothing_runs(tmp_path: Path) -> None:
    code, output = invoke("down", "--data-dir", str(tmp_path))
    assert code == 0
    assert "is not running" in output


def test_users_reports_that_there_is_no_database(tmp_path: Path) -> None:
    code, output = invoke("users", "list", "--data-dir", str(tmp_path), DATABASE_URL="")
    assert code == 1
    assert "there is no database" in output


def test_serve_needs_its_services() -> None:
    code, output = invoke("serve", "api", DATABASE_URL="", REDIS_URL="")
    assert code == 1
    assert "DATABASE_URL and REDIS_URL must be set" in output


def test_an_internal_address_for_all_parts_is_refused() -> None:
    data_dir = Path(f"/tmp/ch-never-made-{os.getpid()}")
    code, output = invoke(
        "up", "--runtime", "process", "--data-dir", str(data_dir), INTERNAL_LISTEN="tcp:127.0.0.1:9100"
    )
    assert code == 1
    assert "INTERNAL_LISTEN is for `codehub serve`" in output
    assert not data_dir.exists()


def test_the_public_port_is_not_requested_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert _public_port_error(load(port=free_port())) is not None
        proxy.shutdown()
