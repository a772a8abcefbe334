"""Isolation of a workspace: how little it sees of the machine, CodeHub and other workspaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from codehub.host.processes import descendants
from tests.integration.runtimes.conftest import RuntimeFixture
from tests.integration.runtimes.network_peers import open_files, python_inside


async def test_it_is_an_ordinary_user_named_coder_in_its_home(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    assert (await fixture.inside("w1", "id -u; id -g; id -G; whoami; pwd; echo $HOME")).split() == [
        str(spec.uid), str(spec.uid), str(spec.uid), "coder", "/home/coder", "/home/coder",
    ]  # fmt: skip
    await fixture.inside("w1", "echo mine > note")
    assert (spec.home / "note").read_text() == "mine\n"
    assert (spec.home / "note").stat().st_uid == spec.uid


async def test_it_has_no_privileges_and_can_gain_none(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    status = await fixture.inside("w1", "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    values = dict(line.split(":") for line in status.splitlines())
    assert values.pop("NoNewPrivs").strip() == "1"
    assert {int(value, 16) for value in values.values()} == {0}
    assert "uid=0" not in await fixture.inside("w1", "su -c id; sudo -n id")


async def test_its_environment_is_clean(fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    await fixture.started("w1")
    names = {
        line.split("=")[0]
        for line in (await fixture.inside("w1", "cat /proc/2/environ | tr '\\0' '\\n'")).split()
    }
    allowed = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "SHELL", "CODEHUB_WORKSPACE_ID", "PWD"}
    assert names <= allowed
    assert "secret" not in await fixture.inside("w1", "cat /proc/*/environ 2>/dev/null; env")


async def test_it_sees_neither_codehub_nor_another_workspace(fixture: RuntimeFixture) -> None:
    (fixture.data_dir / "secret").write_text("s")
    other = await fixture.started("w2")
    (other.home / "private").write_text("p")
    await fixture.started("w1")
    paths = [
        fixture.data_dir,
        fixture.data_dir / "secret",
        other.home,
        fixture.directory("w2").socket,
        "/root",
        "/opt/wheels",
    ]
    for path in [*paths, "/run/docker.sock", "/var/run/docker.sock", "/var/lib", "/sys", "/mnt"]:
        assert (await fixture.inside("w1", f"test -e {path} && echo seen")) == "", path
    assert (await fixture.inside("w1", "ls -A /home /tmp /var/tmp /run /run/codehub")).split() == [
        "/home:", "coder", "/run:", "codehub", "/run/codehub:", "ide.sock", "/tmp:", "/var/tmp:",
    ]  # fmt: skip


async def test_it_sees_and_signals_only_its_own_processes(fixture: RuntimeFixture) -> None:
    await fixture.started("w2")
    await fixture.started("w1")
    assert int(await fixture.inside("w1", "ls -d /proc/[0-9]* | wc -l")) < 8
    assert "No such process" in await fixture.inside("w1", f"kill -0 {os.getpid()}")
    await fixture.inside("w1", "kill -9 1")
    await fixture.until("w1", lambda fact: fact.ready)
    await fixture.until("w2", lambda fact: fact.ready)


@pytest.mark.parametrize("kind", ["ipc", "uts"])
async def test_shared_memory_and_host_name_are_private(fixture: RuntimeFixture, kind: str) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    namespaces = [await fixture.inside(name, f"readlink /proc/self/ns/{kind}") for name in ("w1", "w2")]
    assert all(namespace.startswith(f"{kind}:[") for namespace in namespaces)
    assert len({*map(str.strip, namespaces), os.readlink(f"/proc/self/ns/{kind}")}) == 3


async def test_the_system_is_read_only_and_scratch_is_private(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    for path in ("/usr/x", "/etc/x", "/x", "/home/x", "/etc/passwd"):
        assert "not-written" in await fixture.inside(
            "w1", f"echo x 2>/dev/null > {path} || echo not-written"
        ), path
    name = f"scratch-{fixture.data_dir.name}"
    for path in (f"/tmp/{name}", f"/var/tmp/{name}", f"/dev/shm/{name}"):
        assert await fixture.inside("w1", f"echo x > {path} && cat {path}") == "x\n"
        assert not Path(path).exists()


async def test_the_configuration_of_services_is_hidden(fixture: RuntimeFixture) -> None:
    """It has credentials that everybody can often read."""
    paths = [path for path in ("/etc/default", "/etc/environment", "/etc/systemd") if Path(path).exists()]
    assert paths
    await fixture.started("w1")
    assert await fixture.inside("w1", f"find {' '.join(paths)} -mindepth 1; cat /etc/environment 2>&-") == ""


async def test_terminals_and_devices_work(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    assert "/dev/pts/" in await fixture.inside("w1", "script -qc tty /dev/null")
    assert await fixture.inside("w1", "head -c 4 /dev/urandom | wc -c; ls /dev | grep -c vda") == "4\n0\n"


async def test_the_sandboxs_own_processes_give_no_access_to_the_host(fixture: RuntimeFixture) -> None:
    """A host directory that PID 1 had open could be reached through /proc/1."""
    await fixture.started("w1")
    for link in ("/proc/1/root/", "/proc/1/cwd/", "/proc/1/fd/"):
        listing = await fixture.inside("w1", f"ls {link} 2>&1")
        assert "Permission denied" in listing or fixture.data_dir.name not in listing
    assert "DENIED" in await fixture.inside("w1", f"ls /proc/1/root{fixture.data_dir} || echo DENIED")
    tree = descendants(fixture.directory("w1").read_state().keeper.pid)  # type: ignore[union-attr]
    for process in tree:
        assert str(fixture.data_dir) not in "".join(open_files(process.pid))


async def test_only_codehub_and_the_workspace_itself_reach_its_socket(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    directory = fixture.directory("w1")
    assert oct(directory.path.stat().st_mode & 0o777) == "0o700" and directory.path.stat().st_uid == 0
    assert oct(directory.io.stat().st_mode & 0o777) == "0o700" and directory.io.stat().st_uid == spec.uid


async def test_a_link_in_place_of_the_socket_is_not_followed(fixture: RuntimeFixture) -> None:
    """Otherwise a workspace could make the gateway talk to any socket of the host."""
    await fixture.started("w1")
    directory = fixture.directory("w1")
    with socket.socket(socket.AF_UNIX) as victim:
        victim.bind(str(fixture.data_dir / "victim.sock"))
        victim.listen()
        await fixture.inside("w1", f"ln -sf {fixture.data_dir}/victim.sock /run/codehub/ide.sock")
        assert directory.bound_socket.is_symlink()
        assert (await fixture.runtime.status("w1")).upstream is None
        assert not directory.socket.is_symlink()


LINK_TO_THE_LIMIT = """
import os, socket
os.chdir("/run/codehub")
socket.socket(socket.AF_UNIX).bind("new")
try:
    for number in range(70_000):
        os.link("new", str(number))
except OSError as error:
    print(error.strerror)
os.rename("new", "ide.sock")
"""


@pytest.mark.full  # seconds, for 65,000 links
async def test_a_socket_that_cannot_be_linked_counts_as_missing(fixture: RuntimeFixture) -> None:
    if os.pathconf(fixture.data_dir, "PC_LINK_MAX") > 70_000:
        pytest.skip("needs a file system that counts links to 65,000, such as ext4")
    await fixture.started("w1")
    await fixture.started("w2")
    assert await python_inside(fixture, "w1", LINK_TO_THE_LIMIT) == "Too many links\n"
    seen = await fixture.runtime.observe()
    assert seen["w1"].running and seen["w1"].upstream is None and seen["w2"].ready
    await fixture.runtime.delete("w1")
    assert list(await fixture.runtime.observe()) == ["w2"]


async def test_the_number_of_processes_is_capped(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    greedy = "import subprocess\nwhile True: subprocess.Popen(['sleep', '60'])"
    output = await fixture.inside("w1", f'python3 -c "{greedy}"; pkill sleep')
    assert "Resource temporarily unavailable" in output
    await fixture.until("w1", lambda fact: fact.ready)
