"""Recognising activity, as opposed to an open tab. The messages have the format of code-server's."""

import struct

import pytest

from codehub.gateway import activity
from codehub.gateway.activity import ActivityRecorder
from codehub.gateway.websocket_frames import BUDGET, FRAME_COST, PIECE, FrameReader

WORKSPACE = "01hzy0000000000000000000aa"
MASK = b"\x11\x22\x33\x44"


def frame(payload: bytes, *, opcode: int = 2, masked: bool = True) -> bytes:
    size, bit = len(payload), 0x80 if masked else 0
    if size < 126:
        head = bytes((0x80 | opcode, bit | size))
    elif size < 65536:
        head = bytes((0x80 | opcode, bit | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | opcode, bit | 127)) + size.to_bytes(8)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))


def read(reader: FrameReader, data: bytes) -> int:
    """Feed all data, and return the number of calls."""
    position, calls = 0, 0
    while position < len(data):
        position += reader.feed(data[position:])
        calls += 1
    return calls


class Frames:
    """Payloads of frames, joined from their pieces."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, piece: bytes, begins: bool) -> None:
        if begins:
            self.seen.append(piece)
        else:
            self.seen[-1] += piece


def message(body: bytes = b"", kind: int = 1) -> bytes:
    return struct.pack(">BIII", kind, 7, 3, len(body)) + body


def call(method: bytes, arguments: bytes) -> bytes:
    """An ExtensionHost request: its method by name, its arguments as JSON."""
    body = b"\x01" + struct.pack(">IB", 9, 42) + bytes((len(method),)) + method
    return message(body + len(arguments).to_bytes(4) + arguments)


def channel_call(channel: bytes, method: bytes) -> bytes:
    """A Management request: channel and method as length-prefixed strings."""
    return message(
        b"\x04\x04\x06\x64"
        + b"\x01"
        + bytes((len(channel),))
        + channel
        + b"\x01"
        + bytes((len(method),))
        + method
    )


def sees(*messages: bytes) -> bool:
    """Return whether the last message counts as activity."""
    recorder = ActivityRecorder()
    reader = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=False).from_client
    assert reader is not None
    for item in messages[:-1]:
        read(reader, frame(item))
    recorder.collect()
    recorder._inspectors.clear()
    read(reader, frame(messages[-1]))
    return WORKSPACE in recorder.collect()


PRESENT, AWAY = call(b"$onDidChangeWindowActive", b"[true]"), call(b"$onDidChangeWindowActive", b"[false]")
EDIT = call(b"$acceptModelChanged", b'["file:///x",{}]')
KEEPALIVE, ACKNOWLEDGEMENT = message(kind=9), message(kind=3)


@pytest.mark.parametrize(
    "sign",
    [
        EDIT,
        PRESENT,
        call(b"$acceptEditorPropertiesChanged", b"[]"),
        call(b"$participateInSave", b"[]"),
        call(b"$acceptModelSaved", b"[]"),
        call(b"$acceptTerminalInteraction", b"[1]"),
        call(b"$shellExecutionData", b"[1]"),
        channel_call(b"remoteterminal", b"$input"),
        KEEPALIVE + EDIT,
    ],
)
def test_signs_of_a_person_count(sign: bytes) -> None:
    assert sees(sign)


@pytest.mark.parametrize(
    "idle",
    [
        KEEPALIVE,
        ACKNOWLEDGEMENT,
        AWAY,
        call(b"$ping", b"[]"),
        channel_call(b"remoteFilesystem", b"stat"),
        channel_call(b"agentHost", b"$input"),
        message(b"telemetry" * 50),
    ],
)
def test_an_open_tab_does_not_count(idle: bytes) -> None:
    assert not sees(idle)


def test_editor_messages_count_unless_the_window_is_inactive() -> None:
    assert sees(AWAY, PRESENT, EDIT)
    assert not sees(AWAY, EDIT)
    assert sees(AWAY, call(b"$shellExecutionData", b"[1]"))


def test_a_sign_is_not_counted_again_with_the_next_message() -> None:
    assert not sees(EDIT, message(b"quiet enough"))


def test_a_name_that_is_cut_by_a_frame_is_found() -> None:
    assert sees(EDIT[:25], EDIT[25:])


def test_presence_counts_at_every_flush_until_it_ends_or_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = ActivityRecorder()
    inspectors = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=False)
    assert inspectors.from_client is not None
    read(inspectors.from_client, frame(PRESENT))
    assert recorder.collect()
    assert recorder.collect()
    monkeypatch.setattr(activity, "PRESENCE_LIMIT", 0.0)
    assert not recorder.collect()
    monkeypatch.undo()
    read(inspectors.from_client, frame(AWAY))
    assert not recorder.collect()
    read(inspectors.from_client, frame(PRESENT))
    inspectors.close()
    assert recorder.collect()
    assert not recorder.collect()


def test_presence_ends_without_keepalives_but_edits_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ActivityRecorder()
    reader = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=False).from_client
    assert reader is not None
    read(reader, frame(PRESENT))
    assert recorder.collect()
    monkeypatch.setattr(activity, "SILENCE", -1.0)
    assert not recorder.collect()
    read(reader, frame(KEEPALIVE))
    monkeypatch.undo()
    assert not recorder.collect(), "one keepalive a minute does not restore presence"
    read(reader, frame(EDIT))
    assert recorder.collect()
    assert not recorder.collect()
    read(reader, frame(PRESENT))
    assert recorder.collect()


@pytest.mark.parametrize(
    ("said", "present"),
    [
        (KEEPALIVE, True),
        (call(b"$ping", b"[]") + ACKNOWLEDGEMENT + KEEPALIVE, True),
        (ACKNOWLEDGEMENT, False),
        (call(b"$ping", b"[9,9,9]"), False),
        (message(KEEPALIVE), False),
        (ACKNOWLEDGEMENT * 10_000 + KEEPALIVE, False),
        (KEEPALIVE[:-1], False),
        (b"", False),
    ],
)
def test_only_keepalives_show_that_a_window_is_in_front(
    said: bytes, present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden window still answers the server."""
    recorder = ActivityRecorder()
    reader = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=False).from_client
    assert reader is not None
    now = 1000.0
    monkeypatch.setattr(activity.time, "monotonic", lambda: now)
    read(reader, frame(PRESENT))
    for _ in range(12):
        now += 5
        read(reader, frame(said))
        seen = recorder.collect()
    assert bool(seen) is present


def test_frames_are_found_however_the_stream_is_cut() -> None:
    stream = (
        frame(b"small")
        + frame(b"", opcode=9)
        + frame(b"x" * 300)
        + frame(b"y" * 70000)
        + frame(b"end", masked=False)
    )
    for step in (1, 3, 7, 1000, len(stream)):
        frames = Frames()
        reader = FrameReader(frames, 1000)
        for position in range(0, len(stream), step):
            read(reader, stream[position : position + step])
        assert frames.seen == [b"small", b"x" * 300, b"y" * 1000, b"end"]


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536])
def test_a_frame_that_comes_alone_is_read_as_any_other(size: int, masked: bool) -> None:
    frames = Frames()
    reader = FrameReader(frames, 1 << 20)
    alone = frame(b"z" * size, masked=masked)
    read(reader, alone)
    read(reader, frame(b"", opcode=9, masked=masked))
    read(reader, alone[:1])
    read(reader, alone[1:])
    assert frames.seen == [b"z" * size] * 2


def test_another_ide_counts_by_its_data_frames_alone() -> None:
    recorder = ActivityRecorder()
    inspectors = recorder.make_inspectors("any", WORKSPACE, freshly_loaded=False)
    assert inspectors.from_client is not None and inspectors.from_upstream is not None
    read(inspectors.from_client, frame(b"ping", opcode=9))
    read(inspectors.from_upstream, frame(b"pong", opcode=10, masked=False))
    assert not recorder.collect()
    read(inspectors.from_upstream, frame(b"output", opcode=1, masked=False))
    assert recorder.collect()


def test_a_newly_loaded_window_is_present_until_it_reports_otherwise() -> None:
    hello = message(b'{"type":"connectionType","desiredConnectionType":2}', kind=2)
    for fresh in (True, False):
        recorder = ActivityRecorder()
        reader = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=fresh).from_client
        assert reader is not None
        read(reader, frame(hello))
        assert bool(recorder.collect()) is fresh
        read(reader, frame(AWAY))
        assert not recorder.collect()


def test_one_call_reads_a_few_frames_and_the_rest_comes_in_order() -> None:
    payloads = [b"%d" % number for number in range(1000)]
    stream = b"".join(frame(payload) for payload in payloads)
    frames = Frames()
    reader = FrameReader(frames, 1000)
    assert 0 < reader.feed(stream) < len(stream) / 100
    assert len(frames.seen) <= BUDGET // FRAME_COST
    frames = Frames()
    assert read(FrameReader(frames, 1000), stream) >= 1000 * FRAME_COST / BUDGET
    assert frames.seen == payloads


@pytest.mark.parametrize("masked", [True, False])
def test_a_long_frame_is_read_in_pieces(masked: bool) -> None:
    payload = bytes(range(256)) * 400
    frames = Frames()
    assert read(FrameReader(frames, 1 << 20), frame(payload, masked=masked)) >= len(payload) / BUDGET
    assert frames.seen == [payload]


def test_uncaptured_payload_is_read_in_one_call() -> None:
    frames = Frames()
    assert read(FrameReader(frames, 0), frame(b"x" * 1_000_000)) == 1
    assert frames.seen == [b""]


@pytest.mark.parametrize("position", range(PIECE - 40, PIECE + 5))
def test_a_name_that_two_pieces_share_is_found(position: int) -> None:
    assert sees(message(b"." * position) + EDIT)


def test_a_keepalive_behind_a_long_message_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ActivityRecorder()
    reader = recorder.make_inspectors("vscode", WORKSPACE, freshly_loaded=False).from_client
    assert reader is not None
    now = 1000.0
    monkeypatch.setattr(activity.time, "monotonic", lambda: now)
    read(reader, frame(PRESENT))
    for _ in range(5):
        now += 15
        read(reader, frame(message(b"." * 5000) + KEEPALIVE))
        assert recorder.collect()
