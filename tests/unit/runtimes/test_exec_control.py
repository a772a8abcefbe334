"""Clients of a command's monitor."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codehub.runtimes.exec_control import ControlSocket, handle_events
from codehub.runtimes.exec_directory import CONTROL_SOCKET
from codehub.runtimes.exec_input import frame

END = frame(b"")


class Monitor:
    """A monitor whose command is a pipe, and which turns when the test says so."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CONTROL_SOCKET
        self.selector = selectors.DefaultSelector()
        self.control = ControlSocket(self, self.selector)
        self.performed: list[dict[str, Any]] = []
        self.ended = False
        self.taken, ours = os.pipe()
        os.set_blocking(ours, False)
        os.set_blocking(self.taken, False)
        self.control.listen(directory)
        self.control.input.open(ours)
        self._clients: list[socket.socket] = []

    def perform(self, op: dict[str, Any]) -> str:
        self.performed.append(op)
        os.killpg(os.getpgid(0), int(op.get("number", 0)))
        return ""

    def end_input(self) -> None:
        self.control.input.close()

    def has_ended(self) -> bool:
        return self.ended

    def connect(self, op: str, **arguments: object) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(self._path))
        client.settimeout(5)
        client.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._clients.append(client)
        self.turn()
        return client

    def turn(self) -> None:
        """Handle everything that is ready."""
        while self.selector.select(0):
            handle_events(self.selector, 0)

    def read(self) -> bytes | None:
        """Return what the command finds in its input: empty at its end, None if nothing is there yet."""
        try:
            return os.read(self.taken, 1 << 20)
        except BlockingIOError:
            return None

    def read_all(self) -> bytes:
        """Read until the input waits or ends, as a command does."""
        found = b""
        while piece := self.read():
            found += piece
            self.turn()
        return found

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.turn()
        self.selector.close()


@pytest.fixture
def monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    monkeypatch.chdir(tmp_path)
    monitor = Monitor(tmp_path)
    yield monitor
    monitor.close()


def answer(client: socket.socket) -> Any:
    return json.loads(client.recv(4096))


def fill(monitor: Monitor) -> tuple[socket.socket, int]:
    """Send more input than the command takes. Return its sender, and how many bytes are on their way."""
    client = monitor.connect("stdin")
    client.sendall(frame(b"x" * 100_000))
    monitor.turn()
    return client, 100_000


def test_a_reader_that_disconnects_while_output_is_stored_harms_nothing(monitor: Monitor) -> None:
    """The output and the end of the watcher are ready in the same turn."""
    ours, theirs = os.pipe()

    def store(descriptor: int) -> None:
        os.read(descriptor, 100)
        monitor.control.notify_watchers()

    monitor.selector.register(ours, selectors.EVENT_READ, store)
    for _ in range(20):
        watchers = [monitor.connect("watch") for _ in range(3)]
        os.write(theirs, b"output")
        for watcher in watchers:
            watcher.close()
        monitor.turn()
    other = monitor.connect("watch")
    assert other.recv(10) == b"."


def test_input_that_is_cut_off_stays_open(monitor: Monitor) -> None:
    client = monitor.connect("stdin", close=True)
    client.sendall(frame(b"half of") + frame(b"what was to come")[:9])
    client.close()
    monitor.turn()
    assert monitor.read() == b"half ofwhat "
    assert monitor.read() is None
    rest = monitor.connect("stdin", close=True)
    rest.sendall(frame(b"the rest") + END)
    monitor.turn()
    assert answer(rest) == {}
    assert (monitor.read(), monitor.read()) == (b"the rest", b"")


def test_input_is_closed_behind_what_another_client_sent_before(monitor: Monitor) -> None:
    sender, size = fill(monitor)
    closing = monitor.connect("stdin", close=True)
    closing.sendall(END)
    monitor.turn()
    assert answer(closing) == {}
    assert len(monitor.read_all()) == size
    assert monitor.read() == b""
    sender.sendall(END)
    monitor.turn()
    assert "input is closed" in answer(sender)["error"]


def test_every_sender_is_answered_when_the_command_closes_its_input(monitor: Monitor) -> None:
    senders = [fill(monitor)[0], monitor.connect("stdin", close=True)]
    senders[1].sendall(frame(b"more") + END)
    monitor.turn()
    os.close(monitor.taken)
    monitor.turn()
    for sender in senders:
        assert "input is closed" in answer(sender)["error"]


def test_input_arrives_whole_in_pieces_of_any_size(monitor: Monitor) -> None:
    client = monitor.connect("stdin", close=True)
    sent = frame(b"one ") + frame(b"two ") + frame(b"three") + END
    for position in range(len(sent)):
        client.sendall(sent[position : position + 1])
        monitor.turn()
    assert answer(client) == {}
    assert monitor.read_all() == b"one two three"
    assert monitor.read() == b""


def test_a_request_that_fails_is_answered(monitor: Monitor) -> None:
    assert "Invalid argument" in answer(monitor.connect("signal", number=9999))["error"]
    assert "not a request" in answer(monitor.connect("signal", number="x"))["error"]
    assert answer(monitor.connect("signal")) == {}


def test_a_command_can_be_killed_whatever_number_of_clients_it_has(monitor: Monitor) -> None:
    fill(monitor)
    streams = [monitor.connect("stdin") for _ in range(120)] + [monitor.connect("watch") for _ in range(200)]
    assert "too many clients" in answer(streams[-1])["error"]
    assert answer(monitor.connect("kill", reason="Deleted")) == {}
    assert monitor.performed[-1]["op"] == "kill"


def test_senders_that_are_gone_make_room_for_others(monitor: Monitor) -> None:
    fill(monitor)
    for _ in range(400):
        gone = monitor.connect("stdin")
        gone.sendall(frame(b"x"))
        monitor.turn()
        gone.close()
    monitor.connect("stdin")
    assert monitor.connect("watch").recv(10) == b"."
