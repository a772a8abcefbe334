"""The images file (IMAGES_FILE): Pydantic models of its TOML, and messages for its errors."""

from __future__ import annotations

import re
import string
import tomllib
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from codehub.domain.images import BUILT_IN, MOST_PIDS, PLACEHOLDERS, Activity, Image, Seccomp

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST_SIZE: Final = (1 << 63) - 1
_LARGEST_HOME_FILES: Final = 64 << 10
_LONGEST_PATH: Final = 255
_LONGEST_INPUT: Final = 60
"""Longest wrong value that a message repeats."""


class ImagesError(ValueError):
    """Error in the images file. The message names the image and the key."""


def known_images(text: str | None) -> tuple[Image, ...]:
    """Return the images of the images file, or the built-in ones if there is no file."""
    return BUILT_IN if text is None else parse_images(text)


def offered_images(text: str | None, runtime: str) -> dict[str, Image]:
    """Return the images that a runtime can start, by name."""
    return {image.name: image for image in known_images(text) if getattr(image, runtime) is not None}


def parse_images(text: str) -> tuple[Image, ...]:
    """Return the images in the order of the file, or raise ImagesError.

    Exactly one is the default.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ImagesError(f"the images file is not TOML: {error}") from error
    try:
        tables = _ImagesFile.model_validate(document).image
    except ValidationError as error:
        raise ImagesError(_message(_error_to_report(error), document)) from error
    default = next((position for position, table in enumerate(tables) if table.default), 0)
    return tuple(table.to_image(is_default=position == default) for position, table in enumerate(tables))


def _size(value: object) -> object:
    """Return a size such as "512m", "2g" or "1.5GiB" in bytes.

    A number without a unit is in bytes.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a string such as '512m' or '2g'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _check_command(command: list[str]) -> list[str]:
    if not command[0]:
        raise ValueError("must begin with the command to run")
    for part in command:
        _check_placeholders(part)
    return command


def _check_placeholders(part: str) -> None:
    if "\0" in part:
        raise ValueError("must not contain NUL characters")
    try:
        fields = list(string.Formatter().parse(part))
    except ValueError as error:
        raise ValueError(f"has unbalanced braces in {part!r} (write {{{{ for a literal brace)") from error
    for _, found, format_spec, conversion in fields:
        if found is not None and (found not in PLACEHOLDERS or format_spec or conversion):
            known = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
            raise ValueError(f"has the placeholder {{{found}}} in {part!r}, but only {known} exist")


def _check_home_files(files: dict[str, str]) -> dict[str, str]:
    for path in files:
        parts = path.split("/")
        if "\0" in path or not {"", ".", ".."}.isdisjoint(parts) or len(path.encode()) > _LONGEST_PATH:
            raise ValueError(
                f"has the path {_shortened(path)}, which must be relative, without '.' and '..', and at most "
                f"{_LONGEST_PATH} bytes long"
            )
        if any("/".join(parts[:depth]) in files for depth in range(1, len(parts))):
            raise ValueError(f"has the path {path!r} below another file")
    if sum(len(content.encode()) for content in files.values()) > _LARGEST_HOME_FILES:
        raise ValueError("must have at most 64 KiB in all")
    return files


_Text = Annotated[str, Field(pattern=r"\S")]
_Command = Annotated[list[str], Field(min_length=1), AfterValidator(_check_command)]
_Memory = Annotated[int, Field(ge=16 << 20, le=_LARGEST_SIZE), BeforeValidator(_size)]
_Bandwidth = Annotated[int, Field(ge=1 << 20, le=_LARGEST_SIZE), BeforeValidator(_size)]
_HomeFiles = Annotated[dict[str, str], AfterValidator(_check_home_files)]


class _ImageTable(BaseModel):
    """An [[image]] table. Each description completes the sentence "the key must be ..."."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$",
        description="1 to 64 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends",
    )
    title: _Text | None = Field(None, description="a string that is not empty")
    docker: _Text | None = Field(None, description="a string that is not empty")
    process: _Command | None = Field(
        None, description='a list of strings, as in ["code-server", "--socket", "{socket}"]'
    )
    ready_path: str = Field("/", pattern=r"^/[!-~]*$", description="a URL path such as '/healthz'")
    port: int = Field(8080, ge=1, le=65535, description="a port, 1 to 65535")
    cpus: float = Field(2.0, ge=0.01, le=1024, description="a number between 0.01 and 1024")
    memory: _Memory = Field(2 << 30, description="at least '16m', and below 8 EiB")
    pids: int = Field(1024, ge=1, le=MOST_PIDS, description=f"a whole number, 1 to {MOST_PIDS}")
    activity: Activity | None = Field(None, description="'vscode' or 'any'")
    default: bool = Field(False, description="true or false")
    home_files: _HomeFiles = Field({}, description='a table of strings, as in ".profile" = "umask 077"')
    seccomp: Seccomp = Field("default", description="'default' or 'unconfined'")
    disk_bandwidth: _Bandwidth | None = Field(
        None, description="at least '1m' (bytes per second), and below 8 EiB"
    )

    @model_validator(mode="after")
    def _has_a_runtime(self) -> Self:
        if self.docker is None and self.process is None:
            raise ValueError("key 'docker' or key 'process' is needed: no runtime could start this image")
        return self

    def to_image(self, *, is_default: bool) -> Image:
        return Image(
            name=self.name,
            title=self.title or self.name,
            docker=self.docker,
            process=None if self.process is None else tuple(self.process),
            ready_path=self.ready_path,
            port=self.port,
            cpus=self.cpus,
            memory_bytes=self.memory,
            pids=self.pids,
            activity=self.activity or self._likely_activity(),
            default=is_default,
            home_files=self.home_files,
            seccomp=self.seccomp,
            disk_bandwidth=self.disk_bandwidth,
        )

    def _likely_activity(self) -> Activity:
        """Return "vscode" only for code-server: its rules would count users of another IDE as idle."""
        names = (self.docker or "", self.process[0] if self.process else "")
        return "vscode" if any("code-server" in name for name in names) else "any"


class _ImagesFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: list[_ImageTable] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [table.name for table in self.image]
        for position, name in enumerate(names):
            if name in names[:position]:
                raise ValueError(f"image {name!r}: key 'name': another image has this name")
        defaults = [table.name for table in self.image if table.default]
        if len(defaults) > 1:
            raise ValueError(
                f"image {defaults[1]!r}: key 'default': image {defaults[0]!r} is the default already"
            )
        return self


def _error_to_report(error: ValidationError) -> ErrorDetails:
    """Return an unknown key if there is one: a misspelt key may also count as missing."""
    errors = error.errors()
    return next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])


def _message(error: ErrorDetails, document: dict[str, Any]) -> str:
    match error["loc"]:
        case ():
            return _validator_message(error)
        case ("image",):
            return "the images file names no image: it needs at least one [[image]] table"
        case (key,):
            return f"unknown key {key!r}: the images file holds [[image]] tables only"
        case (_, int(position)) if error["type"] == "value_error":
            return f"{_label(position, document)}: {_validator_message(error)}"
        case (_, int(position)):
            return f"image number {position + 1} is not a table: write [[image]]"
        case (_, int(position), str(key), *_):
            problem = _problem(key, error, document["image"][position].get(key))
            return f"{_label(position, document)}: key {key!r} {problem}"
        case _:
            return error["msg"]


def _label(position: int, document: dict[str, Any]) -> str:
    """Return how a message refers to an image: by its name, or by its number if it has none."""
    name = document["image"][position].get("name")
    return f"image {name!r}" if isinstance(name, str) else f"image number {position + 1}"


def _problem(key: str, error: ErrorDetails, value: object) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is unknown (known are {', '.join(sorted(_ImageTable.model_fields))})"
        case "value_error":
            return _validator_message(error)
        case _:
            return f"must be {_ImageTable.model_fields[key].description} (it is {_shortened(value)})"


def _validator_message(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}..."
