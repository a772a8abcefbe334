"""Commands and files on `codehub up` with Docker: through the gateway and the access part, with a token.

The tests are those of the process runtime.
"""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from tests.docker.engine import TINY, OwnEngine
from tests.docker.system import DockerSystem, on_engine
from tests.integration.access.conftest import Workspace, running_workspace
from tests.integration.access.test_commands_system import (  # noqa: F401 - tests of both runtimes
    bearer,
    make_token,
    revoke_tokens,
    test_a_command_is_started_read_and_forgotten,
    test_a_command_that_ignores_sigterm_is_killed_after_its_timeout,
    test_a_command_waits_for_a_new_workspace,
    test_a_slow_reader_gets_a_declared_gap_and_holds_nothing_back,
    test_a_stream_is_resumed_after_every_part_was_killed,
    test_commands_go_on_while_all_of_codehub_is_down,
    test_stopping_the_workspace_ends_its_commands_and_keeps_their_output,
    test_two_hundred_commands_run_at_once,
)
from tests.integration.access.test_files_system import (  # noqa: F401 - tests of both runtimes
    files,
    test_a_client_that_goes_in_the_middle_of_an_upload_leaves_the_old_file,
    test_a_file_is_written_read_moved_and_deleted,
    test_files_wake_their_workspace_only_on_request,
    test_large_files_and_trees_stream_both_ways,
    test_names_that_are_not_utf8_are_percent_encoded,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.sampled(5, "test_")

IMAGE = f"""
[[image]]
name = "tiny"
docker = "{TINY}"
ready_path = "/healthz"
cpus = 2
memory = "1g"
pids = 1024
"""


@pytest.fixture(scope="module")
def system(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerSystem]:
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGE)
    system = on_engine(own_engine, IMAGES_FILE=str(images), LIMITS_MAX_RUNNING_PER_USER="9")
    try:
        yield system.start()
    finally:
        system.close()
        own_engine.clear()


@pytest.fixture
def workspace(system: DockerSystem) -> Iterator[Workspace]:
    """A running workspace whose calls come from a program."""
    with running_workspace(system) as owned:
        headers = bearer(make_token(owned, "read", "manage", "use"))
        with httpx.Client(base_url=system.base_url, headers=headers, timeout=PATIENCE) as program:
            yield replace(owned, api=program)
        revoke_tokens(owned)
