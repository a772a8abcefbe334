"""A process workspace reaches neither CodeHub nor another workspace, with any set of barriers."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.runtimes.process import forkserver_client
from codehub.runtimes.process.keyring import KEYCTL
from codehub.runtimes.process.stale_processes import Isolation
from tests.integration.runtimes.conftest import UNCONFINED, RuntimeFixture, only_programs
from tests.integration.runtimes.network_peers import from_inside, listening, python_inside
from tests.reachability import connect_from_host
from tests.services import Services

VARIANTS = {
    "sandbox with a separate network": ("bwrap", "setpriv", "slirp4netns"),
    "sandbox in the host's network": ("bwrap", "setpriv"),
    "a separate user": ("setpriv",),
}


@pytest.fixture(params=VARIANTS)
async def workspaces(
    request: pytest.FixtureRequest, own_network: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RuntimeFixture]:
    """Two workspaces: `w1` tries to reach, `w2` must not be reached."""
    fixture, path = own_network, os.environ["PATH"]
    only_programs(fixture, monkeypatch, *VARIANTS[request.param])
    barriers = await fixture.runtime.barriers()
    monkeypatch.setenv("PATH", path)
    assert (barriers.slirp is not None) == ("slirp4netns" in VARIANTS[request.param])
    assert barriers.isolation is (Isolation.SANDBOX if "bwrap" in VARIANTS[request.param] else Isolation.USER)
    await fixture.started("w1", UNCONFINED)  # the seccomp filter would hide other failures
    await fixture.started("w2", UNCONFINED)
    yield fixture


async def test_no_socket_of_codehubs_can_be_reached(workspaces: RuntimeFixture, services: Services) -> None:
    fixture = workspaces
    postgres = next((services.data_dir / "run").rglob(".s.PGSQL.*[0-9]"))
    redis = next((services.data_dir / "run").rglob("*redis*.sock"))
    run = fixture.data_dir / "run"
    run.mkdir(mode=0o711)
    engine = f"/run/codehub-test-{os.getpid()}.sock"
    names = [
        str(postgres),
        str(redis),
        str(fixture.directory("w2").socket),
        str(fixture.directory("w2").bound_socket),
    ]
    with listening(f"{run}/api.sock") as api, listening(engine) as docker:
        for path, mode in ((api, 0o600), (docker, 0o660)):  # as the API and Docker do
            os.chmod(path, mode)
        names += [api, docker]
        assert set(connect_from_host(*names).values()) == {True}
        answers = await from_inside(fixture, "w1", *names)
    os.unlink(engine)
    assert True not in answers.values()


async def test_no_file_of_codehubs_or_of_another_home_can_be_read(
    workspaces: RuntimeFixture, services: Services
) -> None:
    fixture = workspaces
    other = fixture.data_dir / "volumes" / "w2" / "home"
    (other / "private").write_text("secret")
    (fixture.data_dir / "logs").mkdir(mode=0o700)
    (fixture.data_dir / "logs" / "api.log").write_text("secret")
    secrets = [
        other / "private",
        fixture.data_dir / "logs" / "api.log",
        fixture.directory("w2").log_file,
        fixture.directory("w2").state_file,
        fixture.directory("w1").state_file,
        *services.data_dir.glob("postgres*/PG_VERSION"),
        *services.data_dir.glob("postgres.password"),
    ]
    assert all(path.exists() for path in secrets)
    for path in secrets:
        assert "DENIED" in await fixture.inside("w1", f"cat {path} 2>/dev/null || echo DENIED"), path
        assert "DENIED" in await fixture.inside("w1", f"echo x 2>/dev/null > {path} || echo DENIED"), path
    listing = f"ls {fixture.data_dir} {fixture.data_dir}/runtime {other} 2>/dev/null"
    assert await fixture.inside("w1", listing) == ""


WITH_A_KEY = f"""
import ctypes, os, sys
libc, keyctl = ctypes.CDLL(None), {KEYCTL[os.uname().machine]}
add_key = keyctl - 2
assert libc.syscall(keyctl, 1, None) > 0
assert libc.syscall(add_key, b"user", b"of codehub", b"secret", 6, -3) > 0
os.execv(sys.argv[1], sys.argv[1:])
"""
KEYS = f"""
import ctypes
libc, keyctl = ctypes.CDLL(None), {KEYCTL[os.uname().machine]}
add_key = keyctl - 2
names = [b"of codehub", b"of a workspace"]
print([libc.syscall(keyctl, 10, -3, b"user", name, 0) > 0 for name in names])
assert libc.syscall(add_key, b"user", names[1], b"secret", 6, -3) > 0
"""


@pytest.fixture
def key_of_codehubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a key to the session keyring that keepers inherit."""
    program = forkserver_client.python_program
    monkeypatch.setattr(
        forkserver_client,
        "python_program",
        lambda module: [sys.executable, "-c", WITH_A_KEY, *program(module)],
    )
    monkeypatch.setattr("codehub.runtimes.process.runtime.FORK_SERVER", forkserver_client.ForkServerClient())


async def test_no_key_of_codehubs_or_of_another_workspace_can_be_found(
    key_of_codehubs: None, workspaces: RuntimeFixture
) -> None:
    assert await python_inside(workspaces, "w1", KEYS) == "[False, False]\n"
    assert await python_inside(workspaces, "w1", KEYS) == "[False, True]\n"
    assert await python_inside(workspaces, "w2", KEYS) == "[False, False]\n"


async def test_no_other_process_can_be_inspected_or_signalled(workspaces: RuntimeFixture) -> None:
    fixture = workspaces
    state = fixture.directory("w2").read_state()
    assert state is not None and state.child is not None
    for pid in (os.getpid(), state.keeper.pid, state.child.pid):
        seen = await fixture.inside(
            "w1", f"cat /proc/{pid}/environ; ls /proc/{pid}/fd /proc/{pid}/root/ 2>&1"
        )
        assert "CODEHUB_WORKSPACE_ID=w2" not in seen and str(fixture.data_dir) not in seen
        assert "PATH=" not in seen
        refusal = await fixture.inside("w1", f"kill -9 {pid}")
        assert "No such process" in refusal or "not permitted" in refusal
    await fixture.until("w2", lambda fact: fact.ready)


async def test_its_own_groups_and_keeper_are_out_of_its_reach(workspaces: RuntimeFixture) -> None:
    state = workspaces.directory("w1").read_state()
    assert state is not None
    for group in state.groups:
        for name in ("cgroup.procs", "pids.max"):
            path = Path(group, name)
            assert "DENIED" in await workspaces.inside("w1", f"echo 0 2>/dev/null > {path} || echo DENIED")
    assert await workspaces.inside("w1", f"kill -9 {state.keeper.pid}") != ""
    await workspaces.until("w1", lambda fact: fact.ready)
