"""`docker build` and scripts/make-image.sh make the same images."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from codehub.cli.ide import CODE_SERVER_VERSION
from codehub.domain.images import BUILT_IN

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / "scripts" / "make-image.sh").read_text()
PACKAGES = "images/code-server/packages.txt"
COMMAND = ("ENTRYPOINT", "CMD")


def dockerfile(image: str) -> str:
    return (ROOT / "images" / image / "Dockerfile").read_text()


def built(image: str) -> dict[str, str]:
    """Return the instructions of a Dockerfile that configure the image."""
    return dict(re.findall(r"^(ENV|USER|WORKDIR|EXPOSE|ENTRYPOINT|CMD) (.*)$", dockerfile(image), re.M))


def imported(image: str) -> dict[str, str]:
    """Return the `--change`s of the script, with the variables of this image."""
    [case] = re.findall(rf"^  {image}\)\n(.*?)^    ;;", SCRIPT, re.M | re.S)
    variables = dict(re.findall(r"^    (port|entry|command)='?(.*?)'?$", case, re.M))
    changes = re.findall(r"""--change ['"]([A-Z]+) ([^'"]*)['"]""", SCRIPT)
    return {name: variables.get(value.removeprefix("$"), value) for name, value in changes}


def environment(assignments: str) -> dict[str, str]:
    """Return the variables except PATH, which a Dockerfile inherits from its base image."""
    pairs = dict(pair.split("=", 1) for pair in assignments.split())
    return {name: value for name, value in pairs.items() if name != "PATH"}


@pytest.mark.parametrize("image", ["code-server", "jupyterlab"])
def test_user_directory_port_and_environment_are_the_same(image: str) -> None:
    one, other = built(image), imported(image)
    for name in ("USER", "WORKDIR", "EXPOSE"):
        assert one[name] == other[name], name
    assert environment(one["ENV"]) == environment(other["ENV"]) != {}


def test_code_server_is_started_the_same_way() -> None:
    one, other = built("code-server"), imported("code-server")
    assert [json.loads(one[name]) for name in COMMAND] == [json.loads(other[name]) for name in COMMAND]
    assert f"0.0.0.0:{BUILT_IN[0].port}" in json.loads(one["ENTRYPOINT"])
    assert one["EXPOSE"] == str(BUILT_IN[0].port)


def test_jupyterlab_is_started_with_the_same_arguments() -> None:
    one, other = (json.loads(recipe("jupyterlab")["ENTRYPOINT"]) for recipe in (built, imported))
    assert one[:3] == ["python", "-m", "jupyterlab"] and other[0] == "jupyterlab"
    assert one[3:] == other[1:]


def test_code_server_has_one_version() -> None:
    text = dockerfile("code-server")
    assert re.findall(r"^ARG CODE_SERVER_VERSION=(.*)$", text, re.M) == [CODE_SERVER_VERSION]
    assert f"-t codehub/code-server:{CODE_SERVER_VERSION} " in text
    assert BUILT_IN[0].docker == f"codercom/code-server:{CODE_SERVER_VERSION}"
    source = re.search(r"CODE_SERVER_VERSION = .*? (\S+\.py)\)", SCRIPT)
    assert source is not None and (ROOT / source[1]).read_text().count("\nCODE_SERVER_VERSION = ") == 1


def test_jupyterlab_has_one_version() -> None:
    lock = (ROOT / "images" / "jupyterlab" / "requirements.lock").read_text()
    [version] = re.findall(r"^jupyterlab==(\S+)", lock, re.M)
    offered = tomllib.loads((ROOT / "images" / "images.toml").read_text())["image"]
    assert f"codehub/jupyterlab:{version}" in [image["docker"] for image in offered]
    assert f"-t codehub/jupyterlab:{version} " in dockerfile("jupyterlab")


def test_both_have_the_same_packages() -> None:
    """The Dockerfile installs the packages of the file, and the script gives it to debootstrap."""
    assert "COPY packages.txt /tmp/packages.txt" in dockerfile("code-server")
    assert "xargs -a /tmp/packages.txt apt-get install" in dockerfile("code-server")
    assert f"system={PACKAGES}\n" in SCRIPT and '--include="$packages"' in SCRIPT
    [line] = re.findall(r"apt-get install -y --no-install-recommends (.*) \\", dockerfile("jupyterlab"))
    assert set(line.split()) <= set((ROOT / PACKAGES).read_text().split())
