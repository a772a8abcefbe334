"""The documentation matches the code."""

import re
from pathlib import Path

from codehub.settings import Settings

ROOT = Path(__file__).parents[3]


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "configuration.md").read_text(), re.M))
    names = {str(field.validation_alias or name).upper() for name, field in Settings.model_fields.items()}
    assert documented == names


def test_both_readmes_show_the_same_two_commands() -> None:
    english, korean = (
        re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), re.S)
        for name in ("README.md", "README.ko.md")
    )
    assert english == korean
    assert len(english) == 1
    assert english[0].splitlines()[-1] == "make run"


def test_the_lock_file_names_no_registry_and_pins_every_dependency() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.M))
    declared = re.findall(
        r'^  "([a-z0-9-]+)', (ROOT / "pyproject.toml").read_text().split("[project.scripts]")[0], re.M
    )
    assert set(declared) <= pinned
