"""The file agent: works on the files of a workspace, inside it and as its user (ADR 0036).

It only uses modules that were loaded before it entered the workspace, whose files could be anything
after that. So this package's modules for the agent import the standard library only.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import NoReturn

from codehub.runtimes.files.changes import delete, make_directory, move
from codehub.runtimes.files.channel import Channel, ClientGone
from codehub.runtimes.files.content import OpenedFile, write_file
from codehub.runtimes.files.listing import list_files, search
from codehub.runtimes.files.paths import FileTree
from codehub.runtimes.files.protocol import (
    GREETING,
    DeleteRequest,
    DirectoryRequest,
    DownloadRequest,
    FileCode,
    FileRefused,
    ListRequest,
    MoveRequest,
    OpenRequest,
    ReadRequest,
    Request,
    SearchRequest,
    UploadRequest,
    WriteRequest,
)
from codehub.runtimes.files.tar_download import download
from codehub.runtimes.files.tar_upload import upload

_CODES = {
    errno.ENOENT: FileCode.NOT_FOUND,
    errno.EACCES: FileCode.DENIED,
    errno.EPERM: FileCode.DENIED,
    errno.EROFS: FileCode.DENIED,
    errno.ENOTDIR: FileCode.NOT_A_DIRECTORY,
    errno.EISDIR: FileCode.NOT_A_FILE,
    errno.EEXIST: FileCode.EXISTS,
    errno.ENOTEMPTY: FileCode.NOT_EMPTY,
    errno.ENOSPC: FileCode.NO_SPACE,
    errno.EDQUOT: FileCode.NO_SPACE,
    errno.ENAMETOOLONG: FileCode.INVALID,
    errno.EINVAL: FileCode.INVALID,
    errno.ELOOP: FileCode.INVALID,
    errno.EXDEV: FileCode.INVALID,
}
_MESSAGES = {
    errno.ENOSPC: "no space is left for the file: remove something in the workspace, then try again",
    errno.EDQUOT: "the home has reached its size limit: remove something in it, then try again",
    errno.EXDEV: "it would move to another filesystem: copy it with a command instead",
    errno.ENOTEMPTY: "the directory is not empty: remove it with `recursive`",
    errno.EEXIST: "the name is taken: choose another, or remove what has it",
    errno.ELOOP: "symbolic links lead in a circle, or stand where a directory is expected",
}


def serve(connection: socket.socket, home: bytes) -> None:
    """Serve one client, request by request, until it closes the connection."""
    channel = Channel(connection)
    agent = _Agent(FileTree(home), channel)
    try:
        channel.send_message(greeting=GREETING)
        while True:
            agent.serve(channel.next_request())
    except ClientGone:
        pass


def end(*_: object) -> NoReturn:
    """End the agent, as a signal handler: what it has not finished leaves nothing."""
    raise ClientGone


class _Agent:
    def __init__(self, tree: FileTree, channel: Channel) -> None:
        self._tree = tree
        self._channel = channel
        self._opened = OpenedFile()

    def serve(self, request: Request) -> None:
        try:
            self._perform(request)
        except FileRefused as error:
            self._channel.send_error(error)
        except OSError as error:
            self._channel.send_error(_refusal(error))
        except (MemoryError, RecursionError, ValueError, ArithmeticError) as error:
            self._channel.send_error(FileRefused(FileCode.FAILED, f"the request failed: {error!r}"))

    def _perform(self, request: Request) -> None:
        tree, channel = self._tree, self._channel
        match request:
            case ListRequest():
                list_files(tree, request, channel)
            case SearchRequest():
                search(tree, request, channel)
            case OpenRequest():
                self._opened.open(tree, request, channel)
            case ReadRequest():
                self._opened.read(request, channel)
            case WriteRequest():
                write_file(tree, request, channel)
            case DeleteRequest():
                delete(tree, request, channel)
            case MoveRequest():
                move(tree, request, channel)
            case DirectoryRequest():
                make_directory(tree, request, channel)
            case DownloadRequest():
                download(tree, request, channel)
            case UploadRequest():
                upload(tree, request, channel)


def _refusal(error: OSError) -> FileRefused:
    number = error.errno or 0
    code = _CODES.get(number, FileCode.FAILED)
    return FileRefused(code, _MESSAGES.get(number) or os.strerror(number))
