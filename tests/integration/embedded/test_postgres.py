"""The embedded PostgreSQL: durable, private, and able to recover."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from codehub.embedded import postgres, private_paths, server_programs
from codehub.embedded.postgres import EmbeddedPostgres
from codehub.embedded.server_account import EmbeddedError, ServerAccount, server_account
from codehub.embedded.server_processes import processes_in_directory
from tests.services import TOOLS_DIR, run, short_temp_dir
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
async def data_dir() -> AsyncIterator[Path]:
    path = short_temp_dir()
    yield path
    for pid in processes_in_directory(path / "postgres", "postgres"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_in_directory(path / "postgres", "postgres"), "the server to end")
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def after_first_start() -> Iterator[Path]:
    """A data directory that was started once and stopped.

    Creating a cluster is most of a test's time.
    """
    path = short_temp_dir()
    first = EmbeddedPostgres(path, TOOLS_DIR)
    run(first.start())
    first.stop()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(after_first_start: Path, data_dir: Path) -> EmbeddedPostgres:
    """A server that has had its first start, in a data directory of its own."""
    subprocess.run(["cp", "-a", f"{after_first_start}/.", data_dir], check=True)
    return EmbeddedPostgres(data_dir, TOOLS_DIR)


async def execute(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_committed_rows_survive_stop_and_start(server: EmbeddedPostgres, data_dir: Path) -> None:
    await server.start()
    await execute(server.url, "CREATE TABLE t AS SELECT 42 AS n")
    server.stop()
    assert not processes_in_directory(server.cluster, "postgres")
    restarted = EmbeddedPostgres(data_dir, TOOLS_DIR)
    await restarted.start()
    assert await execute(restarted.url, "SELECT n FROM t") == 42
    restarted.stop()


async def test_it_is_durable_and_listens_on_no_port(server: EmbeddedPostgres) -> None:
    await server.start()
    for name, value in {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}.items():
        assert await execute(server.url, f"SHOW {name}") == value
    assert await execute(server.url, "SHOW listen_addresses") == ""
    assert await execute(server.url, "SHOW max_connections") == "200"
    server.stop()


async def test_other_users_and_wrong_passwords_are_rejected(server: EmbeddedPostgres, data_dir: Path) -> None:
    await server.start()
    for private in (server.socket_dir, server.cluster):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "postgres.password").stat().st_mode) == 0o600
    password = (data_dir / "postgres.password").read_text()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await execute(server.url.replace(password, "guess"), "SELECT 1")
    server.stop()


async def test_a_killed_server_recovers(server: EmbeddedPostgres) -> None:
    await server.start()
    await execute(server.url, "CREATE TABLE t AS SELECT 42 AS n")
    for pid in processes_in_directory(server.cluster, "postgres"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert server.process is not None
    server.process.wait(PATIENCE)
    await server.start()
    assert await execute(server.url, "SELECT n FROM t") == 42
    server.stop()


async def test_a_lock_file_that_names_a_recycled_process_id_is_no_obstacle(server: EmbeddedPostgres) -> None:
    await server.start()
    lock_file = (server.cluster / "postmaster.pid").read_text().splitlines()
    server.stop()
    account = server_account()
    other = subprocess.Popen(["sleep", "infinity"], user=account.switch_uid)
    try:
        lock_file[0] = str(other.pid)
        (server.cluster / "postmaster.pid").write_text("\n".join(lock_file) + "\n")
        await server.start()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        server.stop()


async def test_a_server_whose_up_was_killed_is_replaced(server: EmbeddedPostgres, data_dir: Path) -> None:
    await server.start()
    await execute(server.url, "CREATE TABLE t AS SELECT 42 AS n")
    assert server.process is not None
    orphan = server.process
    replacement = EmbeddedPostgres(data_dir, TOOLS_DIR)
    await replacement.start()
    assert orphan.wait(PATIENCE) == 0, "the earlier server had time for an orderly end"
    assert await execute(replacement.url, "SELECT n FROM t") == 42
    replacement.stop()


@pytest.mark.usefixtures("server")
async def test_it_ends_when_its_starter_is_killed(data_dir: Path) -> None:
    program = (
        "import asyncio, signal, sys; from pathlib import Path;"
        "from codehub.embedded.postgres import EmbeddedPostgres;"
        "asyncio.run(EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2])).start());"
        "print('ready', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", program, str(data_dir), str(TOOLS_DIR)]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"ready\n"
    assert processes_in_directory(data_dir / "postgres", "postgres")
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_for(lambda: not processes_in_directory(data_dir / "postgres", "postgres"), "the server to end")


async def test_a_killed_first_start_can_be_repeated(data_dir: Path) -> None:
    staged = data_dir / "postgres.new"
    staged.mkdir()
    (staged / "PG_VERSION").write_text("18\n")
    server = EmbeddedPostgres(data_dir, TOOLS_DIR)
    await server.start()
    assert await execute(server.url, "SELECT 1") == 1
    assert not staged.exists()
    server.stop()


async def test_data_of_another_major_version_is_rejected_with_a_clear_message(data_dir: Path) -> None:
    cluster = data_dir / "postgres"
    cluster.mkdir()
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 9, but installed is"):
        await EmbeddedPostgres(data_dir, TOOLS_DIR).start()
    assert (cluster / "PG_VERSION").read_text() == "9\n"


async def test_a_long_path_gets_a_short_directory_for_its_socket(data_dir: Path) -> None:
    long = data_dir / ("d" * 80)
    long.mkdir(mode=0o711)
    server = EmbeddedPostgres(long, TOOLS_DIR)
    try:
        await server.start()
        assert not server.socket_dir.is_relative_to(long)
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        assert postgres.url_of(long) == server.url
        assert await execute(server.url, "SELECT 1") == 1
    finally:
        server.stop()
        shutil.rmtree(private_paths.short_run_dir(long))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
async def test_under_root_the_server_runs_as_another_user(server: EmbeddedPostgres) -> None:
    await server.start()
    assert server.process is not None
    assert Path(f"/proc/{server.process.pid}").stat().st_uid == server_account().uid != 0
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
async def test_a_data_directory_below_a_private_one_is_rejected_with_a_clear_message(data_dir: Path) -> None:
    data_dir.chmod(0o700)
    with pytest.raises(EmbeddedError, match=r"may not enter .*chmod o\+x"):
        await EmbeddedPostgres(data_dir, TOOLS_DIR).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
def test_programs_that_the_user_cannot_reach_are_copied_once(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a clone below /root."""
    package = server_programs._package_dir(server_programs.POSTGRES_PACKAGE)
    private = data_dir / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(package, private / package.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), private / f"{package.name}.libs")
    monkeypatch.setattr(server_programs, "_package_dir", lambda _name: private / package.name)
    account: ServerAccount = server_account()
    home = server_programs.postgres_home(None, data_dir / "tools", account)
    assert home.is_relative_to(data_dir / "tools")
    for program in ("postgres", "initdb"):
        assert account.run([home / "bin" / program, "--version"]).returncode == 0
    made = home.stat().st_ctime_ns
    assert server_programs.postgres_home(None, data_dir / "tools", account) == home
    assert home.stat().st_ctime_ns == made
