"""The images file: its defaults, and the messages for its errors."""

import dataclasses
from pathlib import Path

import pytest

from codehub.domain.images import BUILT_IN
from codehub.images_file import ImagesError, parse_images

IMAGES_FILE = Path(__file__).parents[2] / "images" / "images.toml"
EXAMPLE = """
[[image]]
name = "code-server"
title = "VS Code"
docker = "codercom/code-server:4.139.1"
process = ["code-server", "--socket", "{socket}", "--auth", "none", "{home}"]
ready_path = "/healthz"
port = 8080
cpus = 2.0
memory = "2g"
pids = 1024
"""


def one_image(lines: str) -> str:
    return f'[[image]]\nname = "a"\n{lines}\n'


def test_an_image_with_most_keys() -> None:
    (image,) = parse_images(EXAMPLE)
    assert (image.name, image.title, image.docker) == (
        "code-server",
        "VS Code",
        "codercom/code-server:4.139.1",
    )
    assert image.process == ("code-server", "--socket", "{socket}", "--auth", "none", "{home}")
    assert (image.ready_path, image.port, image.cpus, image.pids) == ("/healthz", 8080, 2.0, 1024)
    assert image.memory_bytes == 2 * 1024**3
    assert image.activity == "vscode" and image.default


def test_missing_keys_take_defaults() -> None:
    (image,) = parse_images(one_image('docker = "jupyter:1"'))
    assert image.title == "a" and image.process is None and image.default
    assert (image.port, image.cpus, image.memory_bytes, image.pids) == (8080, 2.0, 2 << 30, 1024)
    assert image.activity == "any", "VS Code's messages do not show the use of another IDE"


def test_system_calls_are_denied_by_default() -> None:
    assert parse_images(one_image('docker = "x"'))[0].seccomp == "default"
    assert parse_images(one_image('docker = "x"\nseccomp = "unconfined"'))[0].seccomp == "unconfined"


def test_the_disk_bandwidth_has_no_limit_by_default() -> None:
    assert parse_images(one_image('docker = "x"'))[0].disk_bandwidth is None
    assert parse_images(one_image('docker = "x"\ndisk_bandwidth = "50m"'))[0].disk_bandwidth == 50 << 20


def test_the_first_image_is_the_default_unless_another_is_marked() -> None:
    text = '[[image]]\nname="a"\ndocker="x"\n[[image]]\nname="b"\ndocker="x"\n'
    assert [image.default for image in parse_images(text)] == [True, False]
    assert [image.default for image in parse_images(text + "default=true\n")] == [False, True]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("2 GB", 2 << 30), ("33554432", 32 << 20)],
)
def test_memory(memory: str, expected: int) -> None:
    (image,) = parse_images(one_image(f'docker = "x"\nmemory = "{memory}"'))
    assert image.memory_bytes == expected


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ('docker = "x"\nmemroy = "2g"', "memroy"),
        ("docker = 5", "docker"),
        ('docker = ""', "docker"),
        ('process = "code-server"', "process"),
        ("process = []", "process"),
        ("process = [1]", "process"),
        ('process = [""]', "process"),
        ('process = ["x", "{data_dir}"]', "process"),
        ('process = ["x", "{}"]', "process"),
        ('process = ["x", "{home.__class__}"]', "process"),
        ('process = ["x", "{home!r}"]', "process"),
        ('process = ["x", "{home"]', "process"),
        ('process = ["x\\u0000"]', "process"),
        ('docker = "x"\nmemory = "lots"', "memory"),
        ('docker = "x"\nmemory = "-2g"', "memory"),
        ('docker = "x"\nmemory = "1k"', "memory"),
        ('docker = "x"\nmemory = 2', "memory"),
        ('docker = "x"\nmemory = "8388608t"', "memory"),
        (f'docker = "x"\nmemory = "{"9" * 400}g"', "memory"),
        ('docker = "x"\nport = 0', "port"),
        ('docker = "x"\nport = 70000', "port"),
        ('docker = "x"\nport = "80"', "port"),
        ('docker = "x"\ncpus = "2"', "cpus"),
        ('docker = "x"\ncpus = nan', "cpus"),
        ('docker = "x"\ncpus = 0', "cpus"),
        ('docker = "x"\npids = true', "pids"),
        ('docker = "x"\npids = 0', "pids"),
        ('docker = "x"\npids = 4194305', "pids"),
        ('docker = "x"\ntitle = 3', "title"),
        ('docker = "x"\nready_path = "healthz"', "ready_path"),
        ('docker = "x"\nready_path = "/a\\r\\nX: y"', "ready_path"),
        ('docker = "x"\nactivity = "mouse"', "activity"),
        ('docker = "x"\ndefault = "yes"', "default"),
        ('docker = "x"\nseccomp = "off"', "seccomp"),
        ('docker = "x"\ndisk_bandwidth = 100', "disk_bandwidth"),
        ('docker = "x"\ndisk_bandwidth = "1k"', "disk_bandwidth"),
        ('docker = "x"\nseccomp = false', "seccomp"),
        ('title = "no runtime"', "docker"),
    ],
)
def test_an_error_names_the_image_and_the_key(lines: str, key: str) -> None:
    with pytest.raises(ImagesError) as error:
        parse_images(one_image(lines))
    assert "image 'a'" in str(error.value)
    assert f"key '{key}'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("port = 70000", "must be a port, 1 to 65535 (it is 70000)"),
        (
            "process = [1]",
            'must be a list of strings, as in ["code-server", "--socket", "{socket}"] (it is [1])',
        ),
        ('memory = "1k"', "must be at least '16m', and below 8 EiB (it is '1k')"),
        ("memory = 2", "must be a string such as '512m' or '2g'"),
        ('activity = "mouse"', "must be 'vscode' or 'any' (it is 'mouse')"),
        (f"title = {['x' * 100]}", f"must be a string that is not empty (it is ['{'x' * 58}...)"),
    ],
)
def test_an_error_says_what_to_write_instead(lines: str, message: str) -> None:
    with pytest.raises(ImagesError) as error:
        parse_images(one_image(f'docker = "x"\n{lines}'))
    key = lines.split()[0]
    assert str(error.value) == f"image 'a': key '{key}' {message}"


def test_a_misspelt_key_is_reported_before_the_key_that_is_missing() -> None:
    with pytest.raises(
        ImagesError, match=r"image number 1: key 'nmae' is unknown .*known are activity, cpus"
    ):
        parse_images('[[image]]\nnmae = "a"\ndocker = "x"\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no image"),
        ("image = []", "no image"),
        ("image = 3", "no image"),
        ("image = [3]", "image number 1"),
        ("[[image]]\ndocker='x'", "key 'name' is missing"),
        ("[[image]]\nname='A b'\ndocker='x'", "key 'name'"),
        ('[[image]]\nname="a\\n"\ndocker="x"', "key 'name'"),
        ("[[images]]\nname='a'", "unknown key 'images'"),
        ("not toml", "not TOML"),
        ("[[image]]\nname='a'\ndocker='x'\n[[image]]\nname='a'\ndocker='y'", "another image has this name"),
        (
            "[[image]]\nname='a'\ndocker='x'\ndefault=true\n[[image]]\nname='b'\ndocker='y'\ndefault=true",
            "image 'a' is the default already",
        ),
    ],
)
def test_an_error_of_the_whole_file(text: str, message: str) -> None:
    with pytest.raises(ImagesError, match=message):
        parse_images(text)


def test_the_built_in_image_could_stand_in_a_file() -> None:
    (image,) = BUILT_IN
    assert image.process is not None
    text = f'[[image]]\nname="{image.name}"\ntitle="{image.title}"\ndocker="{image.docker}"\n' + (
        f'process={list(image.process)}\nready_path="{image.ready_path}"\n[image.home_files]\n'
    )
    text += "".join(f"\"{path}\" = '''\n{content}'''\n" for path, content in image.home_files.items())
    assert parse_images(text) == (dataclasses.replace(image),)


def test_the_example_file_offers_the_built_in_image() -> None:
    (image, *_) = parse_images(IMAGES_FILE.read_text())
    assert image == BUILT_IN[0]


def test_the_files_of_a_new_home() -> None:
    text = one_image('docker = "x"\n[image.home_files]\n".profile" = "umask 077"\n"a/b" = ""')
    (image,) = parse_images(text)
    assert image.home_files == {".profile": "umask 077", "a/b": ""}
    (without,) = parse_images(one_image('docker = "x"'))
    assert without.home_files == {}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ('"/etc/passwd" = "x"', "must be relative"),
        ('"../x" = "x"', "must be relative"),
        ('"a/../x" = "x"', "must be relative"),
        ('"a//x" = "x"', "must be relative"),
        ('"" = "x"', "must be relative"),
        ('"x\\u0000" = "x"', "must be relative"),
        (f'"{"x" * 256}" = "x"', "must be relative"),
        ('a = "x"\n"a/b/c" = "x"', "below another file"),
        ("a = 5", "a table of strings"),
        (f'a = "{"x" * 65537}"', "64 KiB"),
    ],
)
def test_the_files_of_a_new_home_stay_inside_it(files: str, message: str) -> None:
    with pytest.raises(ImagesError, match=f"key 'home_files' .*{message}"):
        parse_images(one_image(f'docker = "x"\n[image.home_files]\n{files}'))
