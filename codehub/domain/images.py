"""The images a workspace may be made from, as the images file (TOML) names them."""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from codehub.domain.workspace_names import as_argument

Activity = Literal["vscode", "any"]
Seccomp = Literal["default", "unconfined"]
_Value = TypeVar("_Value")

PLACEHOLDERS = frozenset({"socket", "home", "workspace_id", "name"})
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_MEMORY = 16 << 20
_LEAST_BANDWIDTH = 1 << 20
_LONGEST_PATH = 255
_LARGEST_HOME_FILES = 64 << 10
_MEMORY_LIMIT = 1 << 63
MOST_PIDS = 4_194_304
"""No kernel has more processes."""


@dataclass(frozen=True, slots=True)
class Image:
    """One way to make a container; what a runtime has no entry for (None) it does not offer."""

    name: str
    title: str
    docker: str | None
    process: tuple[str, ...] | None
    ready_path: str
    port: int
    cpus: float
    memory_bytes: int
    pids: int
    activity: Activity
    default: bool
    home_files: Mapping[str, str] = field(default_factory=dict)
    """What a new home holds: contents by relative path. Homes that exist are never touched."""
    seccomp: Seccomp = "default"
    """Whether system calls that hardly any program needs are denied."""
    disk_bandwidth: int | None = None
    """Bytes per second that may be read from the disk of the home, and as many that may be written."""


class ImagesError(ValueError):
    """The images file is wrong; the message names the image and the key."""


VSCODE_SETTINGS = """\
// CodeHub wrote these settings once, when it made this home. Change them as you like.
{
  "chat.disableAIFeatures": true,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.startupEditor": "none"
}
"""
"""code-server offers no defaults that a user's own settings override, so they are the first settings."""

BUILT_IN: tuple[Image, ...] = (
    Image(
        name="code-server",
        title="VS Code",
        docker="codercom/code-server:4.139.1",
        process=(
            "code-server",
            "--socket",
            "{socket}",
            "--auth",
            "none",
            "--disable-telemetry",
            "--disable-update-check",
            "--disable-workspace-trust",
            "--disable-getting-started-override",
            "--app-name={name}",
            "{home}",
        ),
        ready_path="/healthz",
        port=8080,
        cpus=2.0,
        memory_bytes=2 << 30,
        pids=1024,
        activity="vscode",
        default=True,
        home_files={".local/share/code-server/User/settings.json": VSCODE_SETTINGS},
    ),
)


def known_images(text: str | None) -> tuple[Image, ...]:
    """Those of the images file, or the built-in ones where there is none."""
    return BUILT_IN if text is None else parse_images(text)


def offered_images(text: str | None, runtime: str) -> dict[str, Image]:
    """The images that a runtime can start, by name."""
    return {image.name: image for image in known_images(text) if getattr(image, runtime) is not None}


def parse_images(text: str) -> tuple[Image, ...]:
    """The images in file order; exactly one of them is the default (the first where none says so)."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ImagesError(f"the images file is not TOML: {error}") from error
    for key in document:
        if key != "image":
            raise ImagesError(f"unknown key {key!r}: the images file holds [[image]] tables only")
    tables = document.get("image")
    if not isinstance(tables, list) or not tables:
        raise ImagesError("the images file names no image: it needs at least one [[image]] table")
    images = tuple(_image(position, table) for position, table in enumerate(tables, start=1))
    _refuse_duplicates(images)
    return _with_one_default(images)


def _refuse_duplicates(images: tuple[Image, ...]) -> None:
    seen: set[str] = set()
    for image in images:
        if image.name in seen:
            raise ImagesError(f"image {image.name!r}: key 'name': another image has this name")
        seen.add(image.name)


def _with_one_default(images: tuple[Image, ...]) -> tuple[Image, ...]:
    defaults = [image.name for image in images if image.default]
    if len(defaults) > 1:
        raise ImagesError(
            f"image {defaults[1]!r}: key 'default': image {defaults[0]!r} is the default already"
        )
    if defaults:
        return images
    return (replace(images[0], default=True), *images[1:])


def _image(position: int, table: object) -> Image:
    if not isinstance(table, Mapping):
        raise ImagesError(f"image number {position} is not a table: write [[image]]")
    reader = _Table(position, table)
    name = reader.take("name", _name)
    if name is None:
        raise reader.error("name", "is missing")
    docker = reader.take("docker", _text)
    process = reader.take("process", _command)
    image = Image(
        name=name,
        title=reader.take("title", _text) or name,
        docker=docker,
        process=process,
        ready_path=reader.take("ready_path", _path) or "/",
        port=reader.take("port", _port) or 8080,
        cpus=reader.take("cpus", _cpus) or 2.0,
        memory_bytes=reader.take("memory", parse_memory) or 2 << 30,
        pids=reader.take("pids", _pids) or 1024,
        activity=reader.take("activity", _activity) or _likely_activity(docker, process),
        default=reader.take("default", _flag) or False,
        home_files=reader.take("home_files", _home_files) or {},
        seccomp=reader.take("seccomp", _seccomp) or "default",
        disk_bandwidth=reader.take("disk_bandwidth", _bandwidth),
    )
    reader.refuse_unknown()
    if docker is None and process is None:
        raise reader.error("docker", "or key 'process' is needed: no runtime could start this image")
    return image


class _Table:
    """One [[image]] table, read key by key so that every complaint names the image and the key."""

    def __init__(self, position: int, table: Mapping[str, object]) -> None:
        self._table = table
        self._known: set[str] = set()
        name = table.get("name")
        self._label = f"image {name!r}" if isinstance(name, str) else f"image number {position}"

    def take(self, key: str, read: Callable[[object], _Value]) -> _Value | None:
        self._known.add(key)
        if key not in self._table:
            return None
        try:
            return read(self._table[key])
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def refuse_unknown(self) -> None:
        for key in self._table:
            if key not in self._known:
                raise self.error(key, f"is unknown (known are {', '.join(sorted(self._known))})")

    def error(self, key: str, problem: str) -> ImagesError:
        return ImagesError(f"{self._label}: key {key!r} {problem}")


def _likely_activity(docker: str | None, process: tuple[str, ...] | None) -> Activity:
    """VS Code's rules would find the user of another IDE idle, so only code-server is judged by them."""
    names = (docker or "", process[0] if process else "")
    return "vscode" if any("code-server" in name for name in names) else "any"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a string that is not empty")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends")
    return value


def _command(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(part, str) for part in value):
        raise ValueError('must be a list of strings, as in ["code-server", "--socket", "{socket}"]')
    if not value[0]:
        raise ValueError("must begin with the command to run")
    for part in value:
        _check_placeholders(part)
    return tuple(value)


def _check_placeholders(part: str) -> None:
    if "\0" in part:
        raise ValueError("must not hold NUL characters")
    try:
        fields = list(string.Formatter().parse(part))
    except ValueError as error:
        raise ValueError(f"has unbalanced braces in {part!r} (write {{{{ for a literal brace)") from error
    for _, found, format_spec, conversion in fields:
        if found is not None and (found not in PLACEHOLDERS or format_spec or conversion):
            known = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise ValueError(f"has the placeholder {{{found}}} in {part!r}, but only {known} exist")


def expand_command(
    command: tuple[str, ...], *, socket: str, home: str, workspace_id: str, name: str
) -> tuple[str, ...]:
    """The command with its placeholders filled in."""
    shown = as_argument(name, workspace_id)
    return tuple(
        part.format(socket=socket, home=home, workspace_id=workspace_id, name=shown) for part in command
    )


def _home_files(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(content, str) for content in value.values()):
        raise ValueError('must be a table of strings, as in ".profile" = "umask 077"')
    for path in value:
        parts = path.split("/")
        if "\0" in path or not {"", ".", ".."}.isdisjoint(parts) or len(path.encode()) > _LONGEST_PATH:
            raise ValueError(f"has the path {path!r}, which must be relative, without '.' and '..'")
        if any("/".join(parts[:depth]) in value for depth in range(1, len(parts))):
            raise ValueError(f"has the path {path!r} below another file")
    if sum(len(content.encode()) for content in value.values()) > _LARGEST_HOME_FILES:
        raise ValueError("must hold at most 64 KiB in all")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"/[!-~]*", value):
        raise ValueError("must be a URL path such as '/healthz'")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


def _positive(value: object) -> int:
    number = _whole(value)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _port(value: object) -> int:
    number = _positive(value)
    if number > 65535:
        raise ValueError("must be a port, 1 to 65535")
    return number


def _pids(value: object) -> int:
    number = _positive(value)
    if number > MOST_PIDS:
        raise ValueError(f"must be at most {MOST_PIDS}")
    return number


def _cpus(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    if not 0.01 <= value <= 1024:
        raise ValueError("must be between 0.01 and 1024")
    return float(value)


def parse_memory(value: object) -> int:
    """`"512m"`, `"2g"`, `"1.5GiB"` in bytes; a bare number is bytes already."""
    size = _size(value)
    if size < _LEAST_MEMORY:
        raise ValueError("must be at least '16m'")
    if size >= _MEMORY_LIMIT:
        raise ValueError("must be below 8 EiB, which no kernel counts")
    return size


def _bandwidth(value: object) -> int:
    rate = _size(value)
    if not _LEAST_BANDWIDTH <= rate < _MEMORY_LIMIT:
        raise ValueError("must be at least '1m' (bytes per second), and below 8 EiB")
    return rate


def _size(value: object) -> int:
    if not isinstance(value, str) or not (match := _MEMORY.fullmatch(value.strip())):
        raise ValueError("must be a string such as '512m' or '2g'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _activity(value: object) -> Activity:
    match value:
        case "vscode":
            return "vscode"
        case "any":
            return "any"
        case _:
            raise ValueError("must be 'vscode' or 'any'")


def _seccomp(value: object) -> Seccomp:
    match value:
        case "default":
            return "default"
        case "unconfined":
            return "unconfined"
        case _:
            raise ValueError("must be 'default' or 'unconfined'")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value
