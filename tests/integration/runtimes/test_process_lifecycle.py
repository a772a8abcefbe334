"""Lifecycle of a container of the process runtime: start, observe, adopt, stop, delete."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import uvloop

from codehub.domain.observation import Unknown
from codehub.domain.states import ErrorReason
from codehub.host.processes import ProcessId, descendants
from codehub.runtimes.base import ABSENT, RuntimeFailure, RuntimeUnobservable
from codehub.runtimes.readiness import why_not_ready
from tests.integration.runtimes.conftest import ALONE, SERVER, TINY, RuntimeFixture, script_image, state_of
from tests.integration.runtimes.network_peers import open_files
from tests.selection import sample
from tests.waiting import PATIENCE, eventually, until


def keeper_of(fixture: RuntimeFixture, workspace_id: str) -> ProcessId:
    state = fixture.directory(workspace_id).read_state()
    assert state is not None
    return state.keeper


async def test_a_container_starts_becomes_ready_stops_and_is_deleted(fixture: RuntimeFixture) -> None:
    assert await fixture.runtime.status("w1") == ABSENT
    assert await fixture.runtime.observe() == {}
    spec = await fixture.started("w1")
    fact = await fixture.until("w1", lambda fact: fact.ready)
    assert (fact.exists, fact.running, fact.ready, fact.op_id) == (True, True, True, spec.op_id)
    assert fact.upstream == f"unix:{fixture.data_dir}/runtime/w1/up/ide.sock"
    await eventually(fixture.runtime.observe, "the same observation", lambda seen: seen == {"w1": fact})
    await fixture.runtime.stop("w1")
    fact = await fixture.runtime.status("w1")
    assert (fact.exists, fact.running, fact.ready, fact.upstream) == (True, False, False, None)
    assert "stopped" in fact.message
    await fixture.runtime.delete("w1")
    assert await fixture.runtime.status("w1") == ABSENT
    assert await fixture.runtime.observe() == {}
    assert list((fixture.data_dir / "runtime").iterdir()) == []
    assert spec.home.is_dir()


@pytest.mark.parametrize(
    ("name", "argument", "host"),
    [
        ("결제 API", "결제 API", "api"),
        ("--bind / / $(id >&2) \0\n; reboot", "bind / / $(id >&2) ; reboot", "bind-id-2-reboot"),
    ],
)
async def test_the_workspaces_name_is_only_an_argument_and_the_host_name(
    fixture: RuntimeFixture, name: str, argument: str, host: str
) -> None:
    spec = replace(fixture.spec("w1", script_image(SERVER, "{socket}", "{name}")), name=name)
    await fixture.runtime.start(spec)
    await fixture.until("w1", lambda fact: fact.ready)
    assert await fixture.inside("w1", "uname -n; tr '\\0' '\\n' </proc/$PPID/cmdline | tail -n 1") == (
        f"{host}\n{argument}\n"
    )
    await fixture.runtime.start(replace(spec, name="renamed"))
    assert await fixture.inside("w1", "uname -n") == f"{host}\n", "a rename shows at the next start"


async def test_a_hint_follows_as_soon_as_the_ide_listens(fixture: RuntimeFixture) -> None:
    hints: asyncio.Queue[str] = asyncio.Queue()
    listening = asyncio.create_task(fixture.runtime.hints(hints.put_nowait, lambda: None))
    try:
        async with asyncio.timeout(PATIENCE):
            for workspace_id in ("w1", "w2"):
                await fixture.runtime.start(fixture.spec(workspace_id))
                assert await hints.get() == workspace_id
                assert fixture.directory(workspace_id).bound_socket.is_socket()
    finally:
        listening.cancel()


async def test_stopping_and_deleting_what_is_not_there_succeeds(fixture: RuntimeFixture) -> None:
    await fixture.runtime.stop("w1")
    await fixture.runtime.delete("w1")
    await fixture.started("w1")
    await fixture.runtime.stop("w1")
    await fixture.runtime.stop("w1")
    await fixture.runtime.delete("w1")
    await fixture.runtime.delete("w1")


async def test_starting_a_running_container_changes_nothing(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    before = keeper_of(fixture, "w1")
    await fixture.runtime.start(spec)
    assert keeper_of(fixture, "w1") == before and before.is_alive()


async def test_concurrent_starts_make_one_container(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    runtimes = [fixture.runtime, fixture.another_runtime(), fixture.another_runtime()]
    await asyncio.gather(*(runtime.start(spec) for runtime in runtimes * 2))
    await fixture.until("w1", lambda fact: fact.ready)
    assert (await fixture.inside("w1", "ps -e -o args | grep -c '^/usr/bin/python3'")).strip() == "1"


async def test_a_stopped_container_starts_again_with_the_new_operation(fixture: RuntimeFixture) -> None:
    spec = await fixture.started("w1")
    await fixture.runtime.stop("w1")
    await fixture.runtime.start(replace(spec, op_id="op-2"))
    fact = await fixture.until("w1", lambda fact: fact.ready)
    assert fact.op_id == "op-2"


async def test_a_concurrent_start_and_delete_end_in_either_state(fixture: RuntimeFixture) -> None:
    spec = fixture.spec(ALONE)
    for _ in range(5):
        await asyncio.gather(
            fixture.runtime.start(spec), fixture.another_runtime().delete(ALONE), return_exceptions=True
        )
        await fixture.runtime.delete(ALONE)
        assert await fixture.runtime.status(ALONE) == ABSENT


async def test_a_new_runtime_adopts_what_runs(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    other = fixture.another_runtime()
    assert (await other.status("w1")).ready
    assert await other.upstream("w1") == await fixture.runtime.upstream("w1")
    await other.delete("w1")
    assert await fixture.runtime.status("w1") == ABSENT


async def test_a_container_survives_a_kill_of_the_process_that_started_it(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    script = textwrap.dedent(f"""
        import asyncio, os, signal
        from pathlib import Path
        from codehub.runtimes.base import WorkloadSpec
        from codehub.runtimes.process.runtime import ProcessRuntime
        from tests.integration.runtimes.conftest import TINY

        async def main():
            runtime = ProcessRuntime(Path({str(fixture.data_dir / "runtime")!r}), Path("/nonexistent"))
            await runtime.start(WorkloadSpec("w1", TINY, Path({str(spec.home)!r}), "op-1", {spec.uid}))
            os.killpg(0, signal.SIGKILL)

        asyncio.run(main())
    """)
    starter = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False)
    assert starter.returncode == -signal.SIGKILL
    assert (await fixture.until("w1", lambda fact: fact.ready)).op_id == "op-1"


def test_a_start_returns_and_leaks_nothing_under_uvloop(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")

    async def start() -> None:
        runtime = fixture.another_runtime()
        async with asyncio.timeout(PATIENCE):
            await runtime.start(spec)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        uvloop.run(start())
        inherited = os.readlink(f"/proc/self/fd/{listener.fileno()}")
        keeper = keeper_of(fixture, "w1")
        assert inherited not in open_files(keeper.pid)


async def test_no_zombies_stay_behind(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.runtime.delete("w1")
    await until(lambda: "Z" not in states_of_children(), "every child that has ended to be waited for")


def states_of_children() -> list[str]:
    listing = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True, check=False
    )
    return [state[0] for state in listing.stdout.split()]


async def test_killing_the_keeper_kills_its_tree(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    keeper = keeper_of(fixture, "w1")
    tree = descendants(keeper.pid)
    assert len(tree) >= 3
    keeper.send(signal.SIGKILL)
    fact = await fixture.until("w1", lambda fact: not fact.running)
    assert fact.exists and "killed" in fact.message
    await until(lambda: not any(process.is_alive() for process in tree), "its tree to end")
    await fixture.started("w1")


async def test_a_reused_pid_is_not_taken_for_the_container(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.runtime.stop("w1")
    directory = fixture.directory("w1")
    stranger = ProcessId.of(os.getpid())
    assert stranger is not None
    recycled = {"pid": stranger.pid, "started": stranger.started - 1}
    directory.state_file.write_text(
        json.dumps({**state_of(directory), "keeper": recycled, "child": recycled, "ended": None})
    )
    assert not (await fixture.runtime.status("w1")).running
    await fixture.runtime.delete("w1")  # would end this test if it took this process for the keeper
    assert await fixture.runtime.status("w1") == ABSENT


async def test_a_container_of_an_earlier_boot_does_not_run(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.runtime.stop("w1")
    directory = fixture.directory("w1")
    me = ProcessId.of(os.getpid())
    assert me is not None
    directory.state_file.write_text(
        json.dumps(
            {**state_of(directory), "keeper": vars(me), "child": None, "ended": None, "boot_id": "earlier"}
        )
    )
    fact = await fixture.runtime.status("w1")
    assert fact.exists and not fact.running and "restarted" in fact.message


GARBAGE = ["", "{", "[]", "null", '{"op_id": 1}', "\x00\x01"]


@pytest.mark.parametrize("garbage", sample(GARBAGE, 2, "garbage in a state"))
async def test_garbage_in_the_state_of_a_dead_container(fixture: RuntimeFixture, garbage: str) -> None:
    await fixture.started(ALONE)
    await fixture.runtime.stop(ALONE)
    fixture.directory(ALONE).state_file.write_text(garbage)
    fact = await fixture.runtime.status(ALONE)
    assert fact.exists and not fact.running and "damaged" in fact.message
    await fixture.started(ALONE)


async def test_garbage_in_the_state_of_a_living_container(fixture: RuntimeFixture) -> None:
    await fixture.started(ALONE)
    tree = descendants(keeper_of(fixture, ALONE).pid)
    fixture.directory(ALONE).state_file.write_text("garbage")
    fact = await fixture.runtime.status(ALONE)
    assert fact.exists and fact.running and not fact.ready
    await fixture.runtime.start(fixture.spec(ALONE))  # it runs, so this changes nothing
    await fixture.runtime.delete(ALONE)
    assert not [process for process in tree if process.is_alive()]
    assert await fixture.runtime.status(ALONE) == ABSENT


async def test_a_missing_home_is_never_created(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    spec.home.rmdir()
    with pytest.raises(RuntimeFailure) as failure:
        await fixture.runtime.start(spec)
    assert failure.value.reason is ErrorReason.ContainerWithoutVolume
    assert not spec.home.exists()
    assert await fixture.runtime.status("w1") == ABSENT


async def test_a_home_that_is_a_link_is_refused(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    spec.home.rmdir()
    spec.home.symlink_to("/root")
    with pytest.raises(RuntimeFailure):
        await fixture.runtime.start(spec)


async def test_a_command_that_exits_early_reports_its_last_output(fixture: RuntimeFixture) -> None:
    image = script_image("import sys; print('first'); sys.exit('no licence found')")
    await fixture.runtime.start(fixture.spec("w1", image))
    fact = await fixture.until("w1", lambda fact: not fact.running)
    assert fact.exists and not fact.ready
    assert "exited with code 1" in fact.message and "no licence found" in fact.message


async def test_last_output_is_made_fit_for_a_message(fixture: RuntimeFixture) -> None:
    image = script_image("import sys; sys.exit('x' * 100_000 + ' core' + chr(0) + 'dump')")
    await fixture.runtime.start(fixture.spec("w1", image))
    fact = await fixture.until("w1", lambda fact: not fact.running)
    assert fact.message.endswith("x core\ufffddump") and len(fact.message) < 2100


async def test_a_command_that_does_not_exist_is_named_in_the_message(fixture: RuntimeFixture) -> None:
    image = replace(TINY, process=("no-such-ide", "{socket}"))
    await fixture.runtime.start(fixture.spec("w1", image))
    fact = await fixture.until("w1", lambda fact: not fact.running)
    assert "no-such-ide" in fact.message


async def test_a_command_that_never_listens_is_running_and_not_ready(fixture: RuntimeFixture) -> None:
    await fixture.runtime.start(fixture.spec("w1", script_image("import time; time.sleep(600)")))
    fact = await fixture.until("w1", lambda fact: fact.running)
    assert not fact.ready and fact.upstream is None and "listen" in fact.message


async def test_a_command_that_listens_and_never_answers_is_not_ready(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codehub.runtimes.process.runtime.why_not_ready", partial(why_not_ready, within=0.1))
    mute = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); time.sleep(600)"
    )
    await fixture.runtime.start(fixture.spec("w1", script_image(mute, "{socket}")))
    fact = await fixture.until("w1", lambda fact: "within 0.1 s" in fact.message)
    assert fact.running and not fact.ready and fact.upstream is not None


async def test_a_stop_ends_daemons_and_processes_that_ignore_signals(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.inside("w1", "setsid nohup sleep 601 >/dev/null 2>&1 & disown")
    await fixture.inside("w1", "(trap '' TERM HUP; setsid sleep 602 >/dev/null 2>&1 &)")

    async def commands() -> dict[ProcessId, bytes]:
        found = {}
        for process in descendants(keeper_of(fixture, "w1").pid):
            with suppress(OSError):  # one that has just ended
                found[process] = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        return found

    sleepers = {b"sleep\x00601\0", b"sleep\x00602\0"}
    tree = await eventually(commands, "both to sleep", lambda found: sleepers < {*found.values()})
    await fixture.runtime.stop("w1")
    assert not [process for process in tree if process.is_alive()]


async def test_a_stubborn_ide_is_killed_after_the_grace_period(fixture: RuntimeFixture) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
    fixture.runtime = fixture.another_runtime(stop_grace=0.2)
    await fixture.started("w1", script_image(stubborn, "{socket}"))
    await fixture.runtime.stop("w1")
    assert not (await fixture.runtime.status("w1")).running


async def test_an_ide_that_handles_sigterm_can_finish(fixture: RuntimeFixture) -> None:
    polite = (
        "import os, signal, sys, pathlib\n"
        "def bye(*_):\n    pathlib.Path('bye').write_text('saved')\n    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n" + SERVER
    )
    fixture.runtime = fixture.another_runtime(stop_grace=PATIENCE)
    spec = await fixture.started("w1", script_image(polite, "{socket}"))
    await fixture.runtime.stop("w1")
    assert (spec.home / "bye").read_text() == "saved"


async def test_a_stop_of_a_container_that_floods_its_output(fixture: RuntimeFixture) -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 9999 + '\\n')"
    await fixture.runtime.start(fixture.spec("w1", script_image(flood)))
    log = fixture.directory("w1").older_log_file
    await until(log.exists, "the log to be rotated")
    await fixture.runtime.stop("w1")
    directory = fixture.directory("w1")
    assert not (await fixture.runtime.status("w1")).running
    assert directory.log_file.stat().st_size + log.stat().st_size <= 2 * (1 << 20)


async def test_the_logs_are_the_last_lines(fixture: RuntimeFixture) -> None:
    await fixture.started("w1", script_image("for i in range(100): print('line', i)\n" + SERVER, "{socket}"))

    async def log() -> str:
        return await fixture.runtime.logs("w1", 1000)

    assert "line 0" in await eventually(log, "its answer_of", lambda text: "answer_of from the IDE" in text)
    assert len((await fixture.runtime.logs("w1", 3)).splitlines()) == 3
    assert await fixture.runtime.logs("w2", 3) == ""


async def test_an_ide_that_binds_a_new_socket_is_found_again(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    bound = fixture.directory("w1").bound_socket
    bound.unlink()
    with socket.socket(socket.AF_UNIX) as replacement:
        replacement.bind(str(bound))
        await fixture.runtime.status("w1")
        assert os.path.samestat(bound.stat(), fixture.directory("w1").socket.stat())


async def test_a_runtime_directory_that_vanished_is_not_an_empty_one(fixture: RuntimeFixture) -> None:
    root = fixture.data_dir / "runtime"
    aside = fixture.data_dir / "aside"
    root.rename(aside)
    with pytest.raises(RuntimeUnobservable):
        await fixture.runtime.observe()
    with pytest.raises(RuntimeUnobservable):
        await fixture.runtime.status("w1")
    for change in (fixture.runtime.stop, fixture.runtime.delete):
        with pytest.raises(RuntimeFailure):
            await change("w1")
    with pytest.raises(RuntimeFailure):
        await fixture.runtime.start(fixture.spec("w1"))
    aside.rename(root)


async def test_a_container_that_cannot_be_observed_hides_no_other(fixture: RuntimeFixture) -> None:
    for workspace_id in ("w1", "w2"):
        await fixture.started(workspace_id)
    state = fixture.directory("w1").state_file
    aside = state.with_name("aside")
    state.rename(aside)
    state.mkdir()
    seen = await fixture.runtime.observe()
    assert isinstance(seen["w1"], Unknown) and str(state) in seen["w1"].message
    assert not isinstance(seen["w2"], Unknown) and seen["w2"].running
    with pytest.raises(RuntimeUnobservable, match=str(state)):
        await fixture.runtime.status("w1")
    state.rmdir()
    aside.rename(state)
    ready = await fixture.until("w1", lambda fact: fact.ready)
    await eventually(fixture.runtime.observe, "the same observation", lambda seen: seen["w1"] == ready)


@pytest.mark.parametrize("workspace_id", ["", "..", "a/b", ".hidden", "../w1", "w1\n"])
async def test_an_invalid_workspace_id_is_rejected(fixture: RuntimeFixture, workspace_id: str) -> None:
    with pytest.raises(ValueError, match="not a workspace id"):
        await fixture.runtime.delete(workspace_id)


async def test_a_removal_that_a_crash_interrupted_is_finished(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    await fixture.runtime.stop("w1")
    fixture.directory("w1").path.rename(fixture.data_dir / "runtime" / ".deleted-w1-0badcafe")
    assert await fixture.runtime.observe() == {}
    await fixture.another_runtime().finish_removals()
    assert list((fixture.data_dir / "runtime").iterdir()) == []


DIG = "import os\nos.chdir('/run/codehub')\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"


async def test_a_workspace_with_a_deep_tree_is_started_again_and_deleted(fixture: RuntimeFixture) -> None:
    for _ in range(2):
        await fixture.started("w1")
        await fixture.inside("w1", f'/usr/bin/python3 -c "{DIG}"')
        await fixture.runtime.stop("w1")
    await fixture.runtime.delete("w1")
    assert list((fixture.data_dir / "runtime").iterdir()) == []


async def test_a_failed_removal_does_not_prevent_others(fixture: RuntimeFixture) -> None:
    stuck = fixture.data_dir / "runtime" / ".deleted-w1-0badcafe"
    stuck.write_text("a file, where a directory is expected")
    later = fixture.data_dir / "runtime" / ".deleted-w2-0badcafe"
    later.mkdir()
    await fixture.another_runtime().finish_removals()
    assert stuck.exists() and not later.exists()
    stuck.unlink()


async def test_a_cancelled_start_leaves_no_untracked_container(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    await fixture.runtime.barriers()
    for patience in (0.0, 0.02, 0.05, 0.08):
        starting = asyncio.create_task(fixture.runtime.start(spec))
        await asyncio.wait([starting], timeout=patience)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await fixture.runtime.start(spec)
        await fixture.until("w1", lambda fact: fact.ready)
        assert (await fixture.inside("w1", "ps -e -o args | grep -c '^/usr/bin/python3'")).strip() == "1"
        await fixture.runtime.delete("w1")
        assert list((fixture.data_dir / "runtime").iterdir()) == []


async def test_stray_files_are_no_containers(fixture: RuntimeFixture) -> None:
    stray = fixture.data_dir / "runtime" / "notes"
    stray.write_text("")
    (fixture.data_dir / "runtime" / "w9").mkdir()
    assert await fixture.runtime.observe() == {}
    stray.unlink()
