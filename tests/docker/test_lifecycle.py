"""Lifecycle of containers on a real engine."""

import asyncio
import json
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from codehub.domain.observation import ContainerFact
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import ABSENT, RuntimeFailure, WorkloadSpec
from codehub.runtimes.docker import host_files
from codehub.runtimes.docker.container_config import ContainerSettings
from codehub.runtimes.docker.networks import SPARES
from codehub.runtimes.readiness import why_not_ready
from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.docker.engine import TINY
from tests.docker.request_recorder import recording_relay
from tests.waiting import eventually, until

EXITING_IMAGE = "codehub-test/exits:1"


async def is_observed(fixture: RuntimeFixture, facts: dict[str, ContainerFact]) -> bool:
    """Return whether the observation matches.

    On a slow machine it may need several tries: `eventually` repeats it.
    """
    return await fixture.runtime.observe() == facts


async def test_a_container_starts_stops_restarts_and_is_deleted_without_leftovers(
    fixture: RuntimeFixture,
) -> None:
    first = await fixture.started("w1", attempt="op1-0")
    assert (first.exists, first.running, first.op_id) == (True, True, "op1-0")
    await eventually(lambda: is_observed(fixture, {"w1": first}), "the same observation")
    assert await fixture.runtime.upstream("w1") == first.upstream
    await fixture.runtime.stop("w1")
    await fixture.runtime.stop("w1")
    stopped = await fixture.runtime.status("w1")
    assert (stopped.exists, stopped.running, stopped.upstream) == (True, False, None)
    again = await fixture.started("w1", attempt="op2-0")
    assert again.op_id == "op2-0"
    await fixture.runtime.delete("w1")
    await fixture.runtime.delete("w1")
    assert await fixture.runtime.status("w1") == ABSENT
    assert (fixture.containers(), fixture.networks()) == ([], [])


async def test_files_in_the_home_survive_the_container_and_belong_to_the_workspace(
    fixture: RuntimeFixture,
) -> None:
    spec = fixture.spec("w1")
    await fixture.runtime.start(spec)
    await fixture.ready("w1")
    written = fixture.engine.inside("w1", "echo mine > $HOME/file && id")
    assert f"uid={spec.uid}(coder)" in written.stdout.decode()
    await fixture.runtime.delete("w1")
    file = spec.home / "file"
    assert (file.read_text(), file.stat().st_uid) == ("mine\n", spec.uid)


async def test_starting_a_running_container_changes_nothing(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    await fixture.runtime.start(spec)
    before = fixture.engine.docker("ps", "--quiet", "--no-trunc")
    await fixture.runtime.start(replace(spec, op_id="op-1"))
    assert fixture.engine.docker("ps", "--quiet", "--no-trunc") == before


async def test_a_changed_configuration_replaces_the_container(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    await fixture.runtime.start(spec)
    before = fixture.engine.docker("ps", "--quiet", "--no-trunc")
    await fixture.runtime.start(replace(spec, image=replace(TINY_IMAGE, memory_bytes=96 << 20)))
    assert fixture.engine.docker("ps", "--quiet", "--no-trunc") not in ("", before)
    assert fixture.engine.docker("inspect", "--format", "{{.HostConfig.Memory}}", "codehub-ws-w1") == str(
        96 << 20
    )


async def test_a_missing_home_is_a_failure_and_is_not_created(fixture: RuntimeFixture) -> None:
    spec = replace(fixture.spec("w1"), home=fixture.homes / "nowhere")
    with pytest.raises(RuntimeFailure) as failure:
        await fixture.runtime.start(spec)
    assert failure.value.reason is ErrorReason.ContainerWithoutVolume
    assert not spec.home.exists()


async def test_the_engine_does_not_create_a_home_that_vanishes_meanwhile(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = fixture.spec("w1")
    prepare = host_files.prepare

    def prepare_and_lose(lost: WorkloadSpec, setting: ContainerSettings) -> None:
        prepare(lost, setting)
        lost.home.rmdir()

    monkeypatch.setattr(host_files, "prepare", prepare_and_lose)
    with pytest.raises(RuntimeFailure) as failure:
        await fixture.runtime.start(spec)
    assert failure.value.reason is ErrorReason.ContainerWithoutVolume
    assert not spec.home.exists()


async def test_a_start_without_a_firewall_leaves_no_request_running(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, create, made = fixture.spec("w1"), fixture.runtime._create, asyncio.Event()

    async def create_and_report(spec: WorkloadSpec, setting: ContainerSettings) -> str:
        container_id = await create(spec, setting)
        made.set()
        return container_id

    async def no_firewall() -> None:
        raise RuntimeFailure(ErrorReason.ActionFailed, "no firewall")

    monkeypatch.setattr(fixture.runtime, "_create", create_and_report)
    with monkeypatch.context() as machine:
        machine.setattr(fixture.runtime, "_ensure_firewall", no_firewall)
        with pytest.raises(RuntimeFailure, match="no firewall"):
            await fixture.runtime.start(spec)
    assert made.is_set()
    assert not (await fixture.runtime.status("w1")).running
    await fixture.runtime.start(spec)
    await fixture.ready("w1")


async def test_a_container_removed_from_outside_is_absent_and_starts_again(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")
    assert await fixture.runtime.status("w1") == ABSENT
    assert await fixture.runtime.observe() == {}
    await fixture.started("w1")


async def test_a_killed_container_reports_how_it_ended(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    fixture.engine.docker("kill", "codehub-ws-w1")
    fact = ContainerFact(True, False, False, None, "op-0", "it exited with code 137, with no output")
    await eventually(lambda: is_observed(fixture, {"w1": fact}), "the exit of the container")
    assert await fixture.runtime.status("w1") == fact
    await fixture.started("w1", attempt="op-1")


async def exit_message_of(fixture: RuntimeFixture, command: str) -> str:
    """Run a command (in the syntax of a Dockerfile's CMD) and return the message about its exit."""
    container = fixture.engine.docker("create", TINY)
    fixture.engine.docker("commit", "--change", f"CMD {command}", container, EXITING_IMAGE)
    await fixture.runtime.start(fixture.spec("w1", image=replace(TINY_IMAGE, docker=EXITING_IMAGE)))

    async def ended() -> str:
        fact = await fixture.runtime.status("w1")
        return "" if fact.running or fact.message.startswith("its exit status is unknown") else fact.message

    return await eventually(ended, "the container to end")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            '["sh", "-c", "echo the licence is missing; exit 3"]',
            "it exited with code 3: the licence is missing",
        ),
        ('["/no/such/program"]', "it exited with code 127: exec /no/such/program failed"),
    ],
)
async def test_a_container_that_exits_reports_its_last_output(
    fixture: RuntimeFixture, command: str, expected: str
) -> None:
    message = await exit_message_of(fixture, command)
    code, _, output = expected.partition(": ")
    assert message.startswith(code)
    assert output in message
    assert (await fixture.runtime.logs("w1", 10)) in message


async def test_last_output_is_made_fit_for_the_database(
    fixture: RuntimeFixture,
) -> None:
    script = r"busybox yes | head -c 100000 | tr -d '\n'; printf 'core\000dump'; exit 3"
    command = json.dumps(["sh", "-c", script])
    message = await exit_message_of(fixture, command)
    assert message.startswith("it exited with code 3: ") and message.endswith("ycore\ufffddump")
    assert len(message) < 2100


def log_directory(fixture: RuntimeFixture) -> Path:
    hosts = fixture.engine.docker("inspect", "--format", "{{.HostsPath}}", "codehub-ws-w1")
    return Path(hosts).parent / "local-logs"


async def test_endless_output_uses_bounded_disk_space(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    done = fixture.engine.inside("w1", "dd if=/dev/zero bs=65536 count=200 > /proc/1/fd/1; echo the end")
    assert done.stdout == b"the end\n"
    log_bytes = sum(file.stat().st_size for file in log_directory(fixture).iterdir())
    assert log_bytes <= 2 * (1 << 20) + (64 << 10)
    assert (await fixture.runtime.status("w1")).ready


async def test_full_shared_memory_leaves_the_ide_alive(fixture: RuntimeFixture) -> None:
    """Full of bytes, and full of empty files."""
    await fixture.started("w1")
    fill = "dd if=/dev/zero of=/dev/shm/file bs=1048576 count=100"
    assert b"No space left on device" in fixture.engine.inside("w1", fill).stderr
    make = "i=0; while touch /dev/shm/$i 2>/dev/null; do i=$((i+1)); done; echo $i"
    assert int(fixture.engine.inside("w1", make).stdout) == (8 << 20) // 8192 - 2
    assert (await fixture.runtime.status("w1")).ready


async def test_a_container_with_an_unknown_exit_status_hides_no_other(fixture: RuntimeFixture) -> None:
    for name in ("w1", "w2"):
        await fixture.started(name)
    fixture.engine.docker("kill", "codehub-ws-w1")
    fixture.engine.docker("wait", "codehub-ws-w1")
    log = log_directory(fixture) / "container.log"
    log.unlink()
    log.mkdir()
    facts = await fixture.runtime.observe()
    assert facts["w1"].message.startswith("its exit status is unknown: ")
    assert facts["w2"].ready


async def test_a_container_that_was_only_created_is_replaced(fixture: RuntimeFixture) -> None:
    """A coordinator that is killed between create and start leaves one."""
    await fixture.started("w1")
    labels = fixture.engine.docker("inspect", "--format", "{{json .Config.Labels}}", "codehub-ws-w1")
    pairs = [item.strip('{}"').split('":"') for item in labels.split(",")]
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")
    flags = [flag for name, value in pairs for flag in ("--label", f"{name}={value}")]
    fixture.engine.docker("create", "--name", "codehub-ws-w1", *flags, TINY)
    left = await fixture.runtime.status("w1")
    assert (left.exists, left.running, left.op_id) == (True, False, None)
    await fixture.started("w1")


async def test_an_ide_that_does_not_answer_is_running_and_not_ready(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fixture.started("w1")
    monkeypatch.setattr("codehub.runtimes.docker.runtime.why_not_ready", partial(why_not_ready, within=0.1))
    fixture.engine.docker("pause", "codehub-ws-w1")
    fact = await fixture.runtime.status("w1")
    fixture.engine.docker("unpause", "codehub-ws-w1")
    assert (fact.running, fact.ready, fact.message) == (
        True,
        False,
        "no response to GET /healthz within 0.1 s",
    )


async def test_another_installation_is_not_touched(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    other = fixture.other_runtime("another-installation")
    try:
        assert await other.observe() == {}
        await other.delete("w1")
        with pytest.raises(RuntimeFailure, match="in use"):
            await other.start(fixture.spec("w1"))
    finally:
        await other.close()
    await fixture.ready("w1")


async def test_an_image_that_was_committed_from_a_workspace_makes_no_second_container_of_it(
    fixture: RuntimeFixture,
) -> None:
    fact = await fixture.started("w1")
    fixture.engine.docker("commit", "codehub-ws-w1", "codehub-test/copy:1")
    fixture.engine.docker("create", "--name", "a-copy", "codehub-test/copy:1")
    await eventually(lambda: is_observed(fixture, {"w1": fact}), "the same observation")
    await fixture.runtime.delete("w1")
    assert fixture.containers() == ["a-copy"]


async def test_a_dead_container_that_the_engine_cannot_remove_does_not_keep_the_name(
    fixture: RuntimeFixture,
) -> None:
    await fixture.started("w1")
    layer = fixture.engine.docker("inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", "codehub-ws-w1")
    stuck = Path(layer, "stuck")
    stuck.touch()
    subprocess.run(["chattr", "+i", stuck], check=True)
    try:
        await fixture.runtime.delete("w1")
        assert await fixture.runtime.status("w1") == ABSENT
        await fixture.started("w1", attempt="op-1")
    finally:
        subprocess.run(["chattr", "-i", stuck], check=True)


async def test_hints_follow_events_of_containers(fixture: RuntimeFixture) -> None:
    async with fixture.listening() as hints:
        await until(lambda: hints == ["all"], "the listener to start")
        await fixture.started("w1")
        await until(lambda: hints == ["all", "w1"], "a hint of the start")
        fixture.engine.docker("kill", "codehub-ws-w1")
        await until(lambda: hints == ["all", "w1", "w1"], "a hint of the exit")


async def test_networks_of_containers_removed_by_hand_are_removed_except_spares(
    fixture: RuntimeFixture,
) -> None:
    names = [f"w{number}" for number in range(SPARES + 2)]
    for name in names:
        await fixture.started(name)
    for name in names[1:]:
        fixture.engine.docker("rm", "--force", f"codehub-ws-{name}")
    await fixture.runtime.clean_up()
    assert len(fixture.networks()) == 1 + SPARES
    await fixture.ready("w0")
    await fixture.runtime.delete("w0")
    await fixture.runtime.release_resources()
    assert fixture.networks() == []


async def test_a_start_uses_a_spare_network(fixture: RuntimeFixture) -> None:
    await fixture.runtime.clean_up()
    ready = set(fixture.networks())
    assert len(ready) == SPARES
    gone = sorted(ready)[-1]
    fixture.engine.docker("network", "rm", gone)
    for number in range(SPARES):
        await fixture.started(f"w{number}")
    used = set(fixture.networks())
    assert len(used) == SPARES
    assert ready - used == {gone}
    await fixture.runtime.clean_up()
    assert len(fixture.networks()) == 2 * SPARES


async def test_two_coordinators_never_share_a_network(fixture: RuntimeFixture) -> None:
    """A suspended leader and its successor both find the same networks unused."""
    await fixture.runtime.clean_up()
    suspended = fixture.other_runtime()
    await suspended.clean_up()
    try:
        for number in range(SPARES):
            await fixture.started(f"w{number}")
            await suspended.start(fixture.spec(f"x{number}"))
    finally:
        await suspended.close()
    facts = await fixture.runtime.observe()
    addresses = [fact.upstream for fact in facts.values()]
    assert len(set(addresses)) == len(addresses) == 2 * SPARES
    attached = fixture.engine.docker(
        "network", "inspect", "--format", "{{len .Containers}}", *fixture.networks()
    )
    assert set(attached.split()) <= {"0", "1"}


async def test_one_request_observes_any_number_of_containers(fixture: RuntimeFixture) -> None:
    names = [f"w{number}" for number in range(4)]
    relay = fixture.engine.directory / "relay.sock"
    async with recording_relay(fixture.engine.directory / "docker.sock", relay) as requests:
        runtime = fixture.other_runtime(url=f"unix://{relay}")
        await runtime.observe()  # the first request also gets the engine's version

        async def requests_of_an_observation() -> list[str]:
            requests.clear()
            await runtime.observe()
            return requests

        for name in names:
            await fixture.started(name)
            assert await requests_of_an_observation() == ["GET /containers/json"], f"with {name} there"
        dead = [f"codehub-ws-{name}" for name in names[:3]]
        fixture.engine.docker("kill", *dead)
        fixture.engine.docker("wait", *dead)
        await requests_of_an_observation()  # the exit status of each container is requested once
        assert await requests_of_an_observation() == ["GET /containers/json"]
        await runtime.close()


async def test_the_home_directory_of_another_is_never_mounted(
    fixture: RuntimeFixture, tmp_path: Path
) -> None:
    await fixture.started("w1")
    await fixture.started("w2")
    mounts = fixture.engine.docker(
        "inspect", "--format", "{{range .Mounts}}{{if .RW}}{{.Source}} {{end}}{{end}}", "codehub-ws-w1"
    )
    assert mounts.split() == [str(tmp_path / "w1")]
