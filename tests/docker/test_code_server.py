"""The built-in image: code-server in a container, as `make image` makes it."""

from collections.abc import Callable

import pytest

from codehub.domain.images import BUILT_IN
from tests.docker.engine import OwnEngine
from tests.docker.system import DockerSystem
from tests.services import TOOLS_DIR
from tests.trees import tree_hash
from tests.workspace_client import WorkspaceClient

WORK = 'mkdir "$HOME/project" && echo precious > "$HOME/project/file" && chmod 640 "$HOME/project/file"'


@pytest.fixture
def with_image(engine: OwnEngine) -> OwnEngine:
    if not (TOOLS_DIR / "bin" / "code-server").exists():
        pytest.skip(f"code-server is not installed in {TOOLS_DIR}: run codehub ide install")
    if not list((TOOLS_DIR / "images").glob("code-server-*.tar")):
        pytest.skip("the image is missing: make install-tests, as root, where debootstrap has a mirror")
    engine.make_code_server()
    return engine


def test_the_ide_serves_its_page_and_its_home_survives_an_archive(
    with_image: OwnEngine, make_docker_system: Callable[..., DockerSystem]
) -> None:
    engine, system = with_image, make_docker_system(IMAGES_FILE="")
    owner = WorkspaceClient(system.start(), BUILT_IN[0].name)
    owner.wait_for_phase("RUNNING")
    page = owner.client.get(f"/w/{owner.id}/", params={"folder": "/home/coder"})
    assert page.status_code == 200 and "workbench" in page.text
    for path, content in BUILT_IN[0].home_files.items():
        assert (owner.home / path).read_text() == content

    assert engine.inside(owner.id, WORK).returncode == 0
    owner.move_to("STANDBY")
    uid = owner.home.stat().st_uid
    written = list(owner.home.rglob("*"))
    assert owner.home / ".local" / "share" / "code-server" in written, "the IDE itself writes in its home"
    assert {path.lstat().st_uid for path in written} == {uid}

    before = tree_hash(owner.home)
    owner.move_to("ARCHIVED")
    owner.move_to("STANDBY")
    assert tree_hash(owner.home) == before
    assert owner.client.patch(f"/api/v1/workspaces/{owner.id}", json={"name": "결제 API"}).status_code == 200
    owner.move_to("RUNNING")
    assert engine.inside(owner.id, "uname -n").stdout == b"api\n"
    page = owner.client.get(f"/w/{owner.id}/", params={"folder": "/home/coder"})
    assert "&quot;nameLong&quot;:&quot;결제 API&quot;" in page.text
    done = engine.inside(
        owner.id, 'cd "$HOME/project" && cat file && stat -c "%u %a" file && echo more >> file'
    )
    assert done.returncode == 0 and done.stdout.decode() == f"precious\n{uid} 640\n"
