"""The gateway's copy of the certificate follows the originals, and never mixes two of them."""

import os
import stat
from pathlib import Path

import pytest

from codehub.cli import certificate_copy
from codehub.cli.certificate_copy import CertificateCopy
from codehub.gateway.certificate import CertificateFiles
from tests.integration.gateway import issuing

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to a group")


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> list[CertificateFiles]:
    directory = tmp_path_factory.mktemp("tls")
    return [issuing.issue(directory, name, names="DNS:localhost") for name in ("first", "second")]


def replace(live: CertificateFiles, *, chain: CertificateFiles, key: CertificateFiles) -> None:
    live.key.write_text(f"a comment before it\n{key.key.read_text()}")
    live.chain.write_bytes(chain.chain.read_bytes())


def test_the_copy_is_renewed_only_when_both_files_match(
    issued: list[CertificateFiles], tmp_path: Path
) -> None:
    first, second = issued
    live = CertificateFiles(tmp_path / "live.pem", tmp_path / "live.key")
    replace(live, chain=first, key=first)
    copy = CertificateCopy(live, tmp_path, group=4321)
    file = copy.files.chain
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_gid) == (0o640, 4321)
    assert (stat.S_IMODE(file.parent.stat().st_mode), file.parent.stat().st_gid) == (0o710, 4321)
    assert copy.files.examine().names == {"localhost"}
    text = file.read_text()
    assert text == first.chain.read_text() + first.key.read_text()

    replace(live, chain=first, key=second)
    copy.refresh()
    assert file.read_text() == text
    replace(live, chain=second, key=second)
    copy.refresh()
    copy.files.examine()
    assert file.read_text() == second.chain.read_text() + second.key.read_text()

    live.chain.unlink()
    copy.refresh()
    assert file.read_text() == second.chain.read_text() + second.key.read_text()
    certificate_copy.remove(tmp_path)
    assert not file.exists()


def test_one_file_for_both_is_not_copied_twice(issued: list[CertificateFiles], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(issued[0].key.read_text() + issued[0].chain.read_text())
    copy = CertificateCopy(CertificateFiles(both, both), tmp_path, group=4321)
    assert copy.files.chain.read_text() == issued[0].chain.read_text() + issued[0].key.read_text()
