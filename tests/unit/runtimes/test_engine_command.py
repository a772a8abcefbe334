"""What a monitor understands of the Docker Engine."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.host.processes import ProcessId, processes_of_group
from codehub.runtimes.docker.container_process import process_in
from codehub.runtimes.docker.engine_exec import exec_options
from codehub.runtimes.docker.exec_note import ExecNote, read
from codehub.runtimes.docker.exec_stream import FrameDecoder
from codehub.runtimes.docker.failed_start import explain_failed_start
from codehub.runtimes.exec_directory import STDERR, STDOUT, ExecDirectory
from codehub.runtimes.exec_request import ExecRequest, TerminalSize

FAILED = "OCI runtime exec failed: exec failed: unable to start container process: "
NAMES = {1: STDOUT, 2: STDERR}


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)), max_size=10),
    cuts=st.lists(st.integers(1, 20), min_size=1),
)
def test_frames_arrive_in_pieces_of_any_size(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    sent = b"".join(
        bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content for stream, content in frames
    )
    decoder, received = FrameDecoder(), {STDOUT: b"", STDERR: b""}
    position = turn = 0
    while position < len(sent):
        cut = cuts[turn % len(cuts)]
        for stream, content in decoder.decode(sent[position : position + cut]):
            received[stream] += content
        position, turn = position + cut, turn + 1
    for number, name in NAMES.items():
        assert received[name] == b"".join(content for stream, content in frames if stream == number)


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (
            'exec: "nope": executable file not found in $PATH: unknown\r\n',
            127,
            "nope: No such file or directory",
        ),
        ('exec: "/x/nope": stat /x/nope: no such file or directory: unknown', 127, "nope: No such file"),
        ('exec: "/www": permission denied: unknown', 126, "nope: Permission denied"),
        (
            'chdir to cwd ("/gone") set in config.json failed: no such file or directory: unknown',
            126,
            "nope: the directory '/gone' cannot be entered: No such file or directory",
        ),
        ("something new", 126, "something new"),
    ],
)
def test_a_failed_start_reads_as_in_a_shell(message: str, code: int, text: str) -> None:
    found, shown = explain_failed_start(FAILED + message, ExecRequest("e", ["nope"], cwd="/gone"))
    assert found == code and text in shown


def test_an_exec_asks_for_no_rights_and_no_user() -> None:
    request = ExecRequest("e", ["sh"], env={"TERM": "dumb", "A": "b=c"}, cwd="src", tty=TerminalSize(24, 80))
    options = exec_options(request)
    assert not {"Privileged", "User"} & options.keys()
    assert options["Env"] == ["TERM=dumb", "A=b=c"]
    assert options["WorkingDir"] == "/home/coder/src"
    assert exec_options(ExecRequest("e", ["sh"], cwd="/tmp"))["WorkingDir"] == "/tmp"


def test_a_process_outside_the_container_is_not_taken_for_its() -> None:
    assert process_in("0123456789abcdef" * 4, os.getpid()) is None
    assert process_in("", os.getpid()) == ProcessId.of(os.getpid())
    assert process_in("", 0) is None


def test_a_note_survives_its_writer(tmp_path: Path) -> None:
    directory = ExecDirectory(tmp_path)
    assert read(directory) is None
    for note in (ExecNote("c", "e"), ExecNote("c", "e", ProcessId(7, 8))):
        note.write(directory)
        assert read(directory) == note


def test_the_group_of_a_process_has_its_children_and_nobody_else() -> None:
    script = "sleep 1000 & setsid sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        outsider = ProcessId.of(int(leader.stdout.readline()))
        of_leader = ProcessId.of(leader.pid)
        assert of_leader is not None and outsider is not None
        group = processes_of_group(of_leader)
        for process in (*group, outsider):
            process.send(9)
    assert of_leader in group and len(group) >= 2
    assert of_leader.is_exiting() and processes_of_group(of_leader) == []
