"""Reduced isolation: separate users without a sandbox, and none only if that was accepted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

import codehub
from codehub.domain.images import BUILT_IN
from codehub.host.processes import processes_of_user
from codehub.runtimes import exec_client
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.exec_directory import STDOUT
from codehub.runtimes.exec_request import ExecRequest
from codehub.runtimes.files.protocol import FileCode, FileRefused, WriteRequest
from codehub.runtimes.process import barrier_detection, tmpfs
from codehub.runtimes.process.cgroup_caps import NO_CGROUPS
from codehub.runtimes.process.files import ProcessFiles
from codehub.runtimes.process.runtime import ProcessRuntime
from codehub.runtimes.process.stale_processes import Isolation
from tests.file_agents import chunks
from tests.integration.runtimes.conftest import (
    SERVER,
    STRANGER,
    RuntimeFixture,
    only_programs,
    script_image,
    tun_device,
)
from tests.integration.runtimes.network_peers import PORT, from_inside, listening, neighbour
from tests.reachability import connect_command, connect_from_host
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def no_bwrap(fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set PATH to a directory with every program but bwrap."""
    return only_programs(fixture, monkeypatch, "setpriv", "slirp4netns")


@pytest.fixture
def bwrap_that_fails(no_bwrap: Path) -> None:
    fake(no_bwrap, "bwrap", "echo 'No permissions to create a new namespace' >&2; exit 1")


async def test_without_bwrap_root_gives_each_workspace_a_user(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    spec = await fixture.started("w1")
    assert (await fixture.runtime.barriers()).isolation is Isolation.USER
    home = spec.home
    assert (await fixture.inside("w1", "id -u; pwd; umask")).split() == [str(spec.uid), str(home), "0077"]
    assert "NoNewPrivs:\t1" in await fixture.inside("w1", "cat /proc/self/status")
    other = await fixture.started("w2")
    (other.home / "private").write_text("p")
    assert "Permission denied" in await fixture.inside("w1", f"cat {other.home}/private")
    assert "Permission denied" in await fixture.inside("w1", f"ls {fixture.directory('w2').io}")
    assert "not permitted" in await fixture.inside("w1", f"kill -9 {os.getpid()}")


async def test_without_bwrap_no_other_workspace_reaches_an_ide_with_an_open_socket(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    await fixture.started("w1")
    await fixture.started("w2", script_image("import os\nos.umask(0)\n" + SERVER, "{socket}"))
    directory = fixture.directory("w2")
    assert directory.socket.stat().st_mode & 0o777 == 0o777
    names = [str(directory.socket), str(directory.bound_socket)]
    assert set(connect_from_host(*names).values()) == {True}
    answers = await from_inside(fixture, "w1", *names)
    assert set(answers.values()) == {"[Errno 13] Permission denied"}


async def test_a_bwrap_that_the_kernel_refuses_counts_as_missing(
    fixture: RuntimeFixture, bwrap_that_fails: None
) -> None:
    barriers = await fixture.runtime.barriers()
    assert barriers.isolation is Isolation.USER
    assert "No permissions to create a new namespace" in barriers.why_not_better


def fake(programs: Path, name: str, script: str) -> None:
    (programs / name).unlink(missing_ok=True)
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def has_process(argument: str) -> bool:
    """Return whether a process of any user has this in its command line."""
    return any(argument.encode() in _command_line(process) for process in Path("/proc").glob("[0-9]*"))


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.usefixtures("own_network")
async def test_a_helper_that_hangs_weakens_no_isolation_and_is_killed(
    fixture: RuntimeFixture, no_bwrap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_bwrap / "bwrap").symlink_to("/usr/bin/bwrap")
    duration = f"601.{os.getpid()}"
    fake(no_bwrap, "slirp4netns", f"sleep {duration} & sleep {duration} & wait")
    with monkeypatch.context() as patched:
        patched.setattr(barrier_detection, "_PROBE_SECONDS", 3)
        with pytest.raises(RuntimeFailure, match=r"slirp4netns: no answer within 3 s.*The next start"):
            await fixture.runtime.start(fixture.spec("w1"))
    assert not has_process(duration)
    (no_bwrap / "slirp4netns").unlink()
    (no_bwrap / "slirp4netns").symlink_to("/usr/bin/slirp4netns")
    barriers = await fixture.runtime.barriers()
    assert barriers.isolation is Isolation.SANDBOX and barriers.slirp is not None


@pytest.mark.parametrize(
    "script",
    [
        "echo 'bwrap: Creating new namespace failed: Resource temporarily unavailable' >&2; exit 1",
        "kill -9 $$",
    ],
    ids=["no process", "killed"],
)
async def test_a_transient_failure_of_bwrap_weakens_no_isolation(
    fixture: RuntimeFixture, no_bwrap: Path, script: str
) -> None:
    fake(no_bwrap, "bwrap", script)
    with pytest.raises(RuntimeFailure, match="bubblewrap: "):
        await fixture.runtime.barriers()
    (no_bwrap / "bwrap").unlink()
    (no_bwrap / "bwrap").symlink_to("/usr/bin/bwrap")
    assert (await fixture.runtime.barriers()).isolation is Isolation.SANDBOX


async def test_without_bwrap_a_stop_ends_daemons_too(fixture: RuntimeFixture, no_bwrap: Path) -> None:
    spec = await fixture.started("w1")
    assert spec.uid is not None
    await fixture.inside("w1", "setsid nohup sleep 601 >/dev/null 2>&1 & disown")
    assert len(processes_of_user(spec.uid)) == 2
    await fixture.runtime.stop("w1")
    assert processes_of_user(spec.uid) == []


async def test_without_bwrap_processes_that_outlive_a_killed_keeper_are_killed(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    spec = await fixture.started("w1")
    assert spec.uid is not None
    await fixture.inside("w1", "setsid nohup sleep 601 >/dev/null 2>&1 & disown")
    state = fixture.directory("w1").read_state()
    assert state is not None
    state.keeper.send(signal.SIGKILL)
    await fixture.until("w1", lambda fact: not fact.running)
    await fixture.runtime.stop("w1")
    assert processes_of_user(spec.uid) == []


HEADLESS = """
import ctypes, os, threading, time
def write():
    while True:
        open("written", "w").close()
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=write).start()
    ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("keeper", ["alive", "killed"])
async def test_without_bwrap_a_stop_ends_a_process_without_its_main_thread(
    fixture: RuntimeFixture, no_bwrap: Path, monkeypatch: pytest.MonkeyPatch, keeper: str
) -> None:
    monkeypatch.setattr(
        fixture.runtime, "_barriers", replace(await fixture.runtime.barriers(), cgroups=NO_CGROUPS)
    )
    spec = await fixture.started("w1")
    command = f"cd; setsid /usr/bin/python3 -c '{HEADLESS}' </dev/null >/dev/null 2>&1"
    await fixture.inside("w1", command)
    written = spec.home / "written"
    wait_for(written.exists, "the process to write")
    if keeper == "killed":
        state = fixture.directory("w1").read_state()
        assert state is not None
        state.keeper.send(signal.SIGKILL)
        await fixture.until("w1", lambda fact: not fact.running)
    await fixture.runtime.stop("w1")
    assert _tasks_of(spec.uid) == []


def _tasks_of(uid: int | None) -> list[str]:
    """Return the states of all threads of a user, without the runtime's own code."""
    listing = subprocess.run(
        ["/usr/bin/ps", "-L", "-U", str(uid), "-o", "stat="], capture_output=True, text=True, check=False
    )
    return [state for state in listing.stdout.split() if not state.startswith("Z")]


async def test_under_root_a_workspace_is_never_root(fixture: RuntimeFixture) -> None:
    spec = fixture.spec("w1")
    for uid in (None, 0):
        with pytest.raises(RuntimeFailure, match="its own user id"):
            await fixture.runtime.start(type(spec)(**{**vars(spec), "uid": uid}))


async def test_a_socket_path_that_is_too_long_is_refused(fixture: RuntimeFixture) -> None:
    runtime = ProcessRuntime(fixture.data_dir / ("deep" * 20), fixture.data_dir / "tools")
    with pytest.raises(RuntimeFailure, match="shorter data directory"):
        await runtime.start(fixture.spec("w1"))


LIFECYCLE = """
import asyncio, sys
from pathlib import Path
from dataclasses import replace
from codehub.domain.images import BUILT_IN
from codehub.runtimes.base import WorkloadSpec, RuntimeFailure
from codehub.runtimes.process.runtime import ProcessRuntime

async def inside(socket, script):
    reader, writer = await asyncio.open_unix_connection(socket)
    body = script.encode()
    writer.write(b"POST / HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\\r\\n\\r\\n")[2].decode()

async def until_ready(runtime, workspace_id):
    async with asyncio.timeout(PATIENCE):
        while not (await runtime.status(workspace_id)).ready:
            await asyncio.sleep(0.02)

def tiny(base):
    server = Path(base, "server.py").read_text().replace("{", "{{").replace("}", "}}")
    command = ("/usr/bin/python3", "-c", server, "{socket}")
    return replace(BUILT_IN[0], process=command, ready_path="/")

def spec(base, workspace_id):
    home = Path(base, f"home-{workspace_id}")
    home.mkdir(exist_ok=True)
    return WorkloadSpec(workspace_id, tiny(base), home, "op-1", None)

async def main(base, insecure):
    root = Path(base, "data", "runtime")
    runtime = ProcessRuntime(root, Path(base, "tools"), insecure=insecure, stop_grace=2)
    try:
        await runtime.start(spec(base, "w1"))
    except RuntimeFailure as failure:
        print(failure.message)
        return
    await until_ready(runtime, "w1")
    print((await runtime.barriers()).isolation.value, "ready")
    if (await runtime.barriers()).slirp is not None:
        print(await inside((await runtime.upstream("w1")).removeprefix("unix:"), sys.stdin.read()))
    await runtime.delete("w1")
    print((await runtime.status("w1")).exists)

asyncio.run(main(sys.argv[1], len(sys.argv) > 2))
""".replace("PATIENCE", str(PATIENCE))

LIFECYCLE_WITHOUT_PERMISSIONS = LIFECYCLE.replace(
    "asyncio.run(main(", "asyncio.run(lose_permissions("
).replace(
    "async def main(",
    """
async def lose_permissions(base, _):
    runtime = ProcessRuntime(Path(base, "data", "runtime"), Path(base, "tools"), stop_grace=2)
    for workspace_id in ("w1", "w2"):
        await runtime.start(spec(base, workspace_id))
        await until_ready(runtime, workspace_id)
    await inside((await runtime.upstream("w1")).removeprefix("unix:"), "chmod 000 /run/codehub")
    seen = await runtime.observe()
    print(seen["w1"].running, seen["w1"].ready, seen["w2"].ready)
    await runtime.stop("w1")
    await runtime.start(spec(base, "w1"))
    await until_ready(runtime, "w1")
    await inside((await runtime.upstream("w1")).removeprefix("unix:"), "chmod 000 /run/codehub")
    for workspace_id in ("w1", "w2"):
        await runtime.delete(workspace_id)
    print(await runtime.observe())

async def main(""",
)


LIFECYCLE_WITH_SECRETS = LIFECYCLE.replace("asyncio.run(main(", "asyncio.run(read_files(").replace(
    "async def main(",
    """
async def read_files(base, _):
    root, secrets = Path(base, "data", "runtime"), [Path("/etc/secrets/link")]
    runtime = ProcessRuntime(root, Path(base, "tools"), stop_grace=2, secrets=secrets)
    await runtime.start(spec(base, "w1"))
    await until_ready(runtime, "w1")
    print(await inside((await runtime.upstream("w1")).removeprefix("unix:"), sys.stdin.read()))
    await runtime.delete("w1")

async def main(""",
)


LIFECYCLE_WITH_COMMANDS = LIFECYCLE.replace("asyncio.run(main(", "asyncio.run(run_command(").replace(
    "async def main(",
    """
from codehub.runtimes import exec_client
from codehub.runtimes.exec_request import ExecRequest

async def run_command(base, insecure):
    root = Path(base, "data", "runtime")
    runtime = ProcessRuntime(root, Path(base, "tools"), insecure=insecure, stop_grace=2)
    await runtime.start(spec(base, "w1"))
    await until_ready(runtime, "w1")
    script = sys.stdin.read()
    await runtime.commands.start_command("w1", ExecRequest("e1", ["/bin/bash", "-c", script]))
    directory = runtime.commands.directory("w1", "e1")
    await exec_client.wait(directory)
    ours = directory.read("stdout", 0, 100000)[1] + directory.read("stderr", 0, 100000)[1]
    ide = await inside((await runtime.upstream("w1")).removeprefix("unix:"), script)
    print((await runtime.barriers()).isolation.value, ours.decode() == ide)
    print(ours.decode(), ide, sep="\\n=== IDE ===\\n")
    await runtime.delete("w1")

async def main(""",
)
LIFECYCLE_WITH_FILES = LIFECYCLE.replace("asyncio.run(main(", "asyncio.run(use_files(").replace(
    "async def main(",
    """
from codehub.runtimes.files.protocol import FileRefused, WriteRequest
from codehub.runtimes.process.files import ProcessFiles

async def content():
    yield b"content"

async def use_files(base, insecure):
    root = Path(base, "data", "runtime")
    runtime = ProcessRuntime(root, Path(base, "tools"), insecure=insecure, stop_grace=2)
    await runtime.start(spec(base, "w1"))
    await until_ready(runtime, "w1")
    print((await runtime.barriers()).isolation.value)
    async with ProcessFiles(runtime.commands).open_files("w1") as session:
        await session.write(WriteRequest(b"file"), content())
        facts = await session.open(b"file")
        print(b"".join([piece async for piece in session.read(0, facts.size)]).decode())
        for path in ("/proc/self/environ", str(Path(base, "lifecycle.py"))):
            try:
                await session.open(path.encode())
                print("opened")
            except FileRefused as refused:
                print(refused.code)
    print(Path(base, "home-w1", "file").read_text())
    await runtime.delete("w1")

async def main(""",
)
SHOW_RIGHTS = (
    "id -u; id -G; pwd; umask; for n in $(ls /proc/self/ns); do readlink /proc/self/ns/$n; done;"
    "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; cat /proc/self/cgroup; hostname; ls -d /*"
)


def run_as_stranger(
    fixture: RuntimeFixture,
    *arguments: str,
    script: str = "",
    lifecycle: str = LIFECYCLE,
    etc: Path = Path("/etc"),
) -> str:
    """Run a whole lifecycle as a user without privileges, on the system's Python.

    The script runs inside the workspace.
    """
    base = fixture.data_dir / "u"
    package = Path(codehub.__file__).parent
    lib, no_bytecode = base / "lib", shutil.ignore_patterns("*.pyc")
    for name in ("domain", "host", "runtimes"):
        shutil.copytree(package / name, lib / "codehub" / name, ignore=no_bytecode)
    shutil.copytree(Path(structlog.__file__).parent, lib / "structlog", ignore=no_bytecode)
    (lib / "codehub" / "__init__.py").touch()
    (base / "server.py").write_text(SERVER)
    (base / "lifecycle.py").write_text(textwrap.dedent(lifecycle))
    os.chown(base, STRANGER, STRANGER)
    become = f"exec /usr/bin/setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups"
    machine = f'{tun_device("666")} && /bin/mount --bind "$0" /etc && {become} "$@"'
    on_machine = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", machine]
    result = subprocess.run(
        [*on_machine, str(etc), "/usr/bin/python3", str(base / "lifecycle.py"), str(base), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(lib)},
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert result.returncode == 0, result.stderr
        wait_for(lambda: not processes_of_user(STRANGER), "every process that was started to end")
    finally:
        for process in processes_of_user(STRANGER):
            process.send(signal.SIGKILL)
    return result.stdout


def test_without_root_bwrap_isolates_workspaces(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    assert run_as_stranger(fixture).split() == ["sandbox", "ready", "False"]


@pytest.mark.usefixtures("own_network")
def test_without_root_a_workspace_has_its_own_network_as_well(fixture: RuntimeFixture) -> None:
    with neighbour() as outside, listening("127.0.0.1:0") as of_the_host:
        names = [f"{outside.public}:{PORT}", f"{outside.ten}:{PORT}", of_the_host]
        assert set(connect_from_host(*names).values()) == {True}
        script = f"id -u; {connect_command(*names)}; ip rule del pref 1; unshare -rn true"
        isolation, ready, uid, answers, *refusals = run_as_stranger(fixture, script=script).split(maxsplit=3)
    assert (isolation, ready, uid) == ("sandbox", "ready", str(STRANGER))
    answers, _, rest = answers.partition("\n")
    public, *others = json.loads(answers).values()
    assert public is True and True not in others
    assert "Operation not permitted" in rest and not refusals


MEASURE = """
for path in /tmp /var/tmp /dev/shm; do df --block-size=1 --output=size $path | tail -1; done
df --output=itotal /tmp | tail -1; touch /file /dev/file /run/file /tmp/file && echo written
"""


def test_without_root_files_in_memory_are_limited(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    assert_limited(run_as_stranger(fixture, script=MEASURE, lifecycle=LIFECYCLE_WITH_SECRETS))


@pytest.mark.usefixtures("own_network")
def test_with_its_own_network_the_number_of_files_in_memory_is_limited_as_well(
    fixture: RuntimeFixture,
) -> None:
    files = assert_limited(run_as_stranger(fixture, script=MEASURE, lifecycle=LIFECYCLE_WITH_SECRETS))
    assert files == tmpfs.size_of("/tmp", BUILT_IN[0].memory_bytes) // 8192


def assert_limited(output: str) -> int:
    """Check the sizes, and that the rest is read-only; return how many files /tmp may have."""
    *numbers, rest = output.split(maxsplit=4)
    sizes = [tmpfs.size_of(path, BUILT_IN[0].memory_bytes) for path in tmpfs.PARTS]
    assert [int(number) for number in numbers[:3]] == sizes
    assert rest.count("Read-only file system") == 3 and "written" not in rest
    return int(numbers[3])


def test_without_root_a_workspace_without_permissions_hides_no_other_and_is_killed(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    assert run_as_stranger(fixture, lifecycle=LIFECYCLE_WITHOUT_PERMISSIONS).split() == [
        "True",
        "False",
        "True",
        "{}",
    ]


def etc_with_secrets(fixture: RuntimeFixture) -> Path:
    """Return a copy of /etc with files that CodeHub's user may read and others may not."""
    etc = fixture.data_dir / "etc"
    subprocess.run(["/bin/cp", "-a", "/etc", etc], check=True)
    for name, mode in (("secrets/own", 0o600), ("secrets/key", 0o644), ("closed/inner", 0o644)):
        file = etc / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"the contents of {name}")
        file.chmod(mode)
        os.chown(file, STRANGER, STRANGER)
    (etc / "secrets" / "link").symlink_to("key")
    (etc / "secrets" / "open").write_text("for everybody")
    (etc / "closed").chmod(0o750)
    os.chown(etc / "closed", 0, STRANGER)
    (etc / "unlisted").mkdir(mode=0o711)
    (etc / "unlisted" / "key").write_text("the contents of unlisted/key")
    (etc / "unlisted" / "key").chmod(0o640)
    os.chown(etc / "unlisted" / "key", 0, STRANGER)
    return etc


def test_without_root_files_that_only_codehub_may_read_are_hidden(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv")
    script = "cat /etc/secrets/* /etc/closed/inner /etc/unlisted/key"
    output = run_as_stranger(
        fixture, script=script, lifecycle=LIFECYCLE_WITH_SECRETS, etc=etc_with_secrets(fixture)
    )
    assert "for everybody" in output and "the contents of" not in output


def test_without_root_and_bwrap_a_start_fails_and_says_what_to_do(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    message = run_as_stranger(fixture)
    assert "cannot isolate workspaces" in message
    assert "install" in message and "bubblewrap" in message and "--insecure-process-runtime" in message


def test_without_root_and_bwrap_a_start_works_if_that_was_accepted(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    assert run_as_stranger(fixture, "insecure").split() == ["none", "ready", "False"]


@pytest.mark.parametrize("programs", [(), ("slirp4netns",)], ids=["host's network", "own network"])
def test_without_root_a_command_has_the_same_isolation_as_the_ide(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv", *programs)
    shown = run_as_stranger(fixture, script=SHOW_RIGHTS, lifecycle=LIFECYCLE_WITH_COMMANDS)
    assert shown.startswith("sandbox True"), shown


def test_without_isolation_a_command_runs_as_the_ide(fixture: RuntimeFixture, no_bwrap: Path) -> None:
    shown = run_as_stranger(fixture, "insecure", script=SHOW_RIGHTS, lifecycle=LIFECYCLE_WITH_COMMANDS)
    assert shown.startswith("none True"), shown


@pytest.mark.parametrize("programs", [(), ("slirp4netns",)], ids=["host's network", "own network"])
def test_without_root_files_are_handled_inside_the_sandbox(
    fixture: RuntimeFixture, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    only_programs(fixture, monkeypatch, "bwrap", "setpriv", *programs)
    shown = run_as_stranger(fixture, lifecycle=LIFECYCLE_WITH_FILES)
    assert shown.split() == ["sandbox", "content", "denied", "not_found", "content"]


async def test_without_bwrap_files_are_handled_as_the_workspaces_user(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    spec, other = await fixture.started("w1"), await fixture.started("w2")
    (other.home / "private").write_text("p")
    async with ProcessFiles(fixture.runtime.commands).open_files("w1") as session:
        await session.write(WriteRequest(b"file"), chunks(b"content"))
        for path in (bytes(other.home) + b"/private", b"/proc/self/environ"):
            with pytest.raises(FileRefused) as refused:
                await session.open(path)
            assert refused.value.code is FileCode.DENIED
    found = (spec.home / "file").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (spec.uid, 0o600)


async def test_without_bwrap_a_command_has_the_same_user_and_network_as_the_ide(
    fixture: RuntimeFixture, no_bwrap: Path
) -> None:
    await fixture.started("w1")
    await fixture.runtime.commands.start_command("w1", ExecRequest("e1", ["/bin/bash", "-c", SHOW_RIGHTS]))
    directory = fixture.runtime.commands.directory("w1", "e1")
    await exec_client.wait(directory)
    assert directory.read(STDOUT, 0, 1 << 20)[1].decode() == await fixture.inside("w1", SHOW_RIGHTS)
