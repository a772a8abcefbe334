"""A copy of the certificate and its key for a gateway that may not read the originals."""

import asyncio
import os
import re
from pathlib import Path
from typing import Final

import structlog

from codehub.embedded.private_paths import make_dir
from codehub.gateway.certificate import CertificateError, CertificateFiles
from codehub.host.atomic_files import replace_file

logger = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 1.0
_CERTIFICATE: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)
_KEY: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)


class CertificateCopy:
    """One file with the certificate and the key, for one group, updated with the originals.

    It is replaced in one step: the gateway never sees a certificate with the key of another one.
    """

    def __init__(self, originals: CertificateFiles, run_dir: Path, group: int) -> None:
        self._originals = originals
        self._stamp = originals.stamp()
        self._group = group
        self._path = _path(run_dir)
        self.files = CertificateFiles(self._path, self._path)
        make_dir(self._path.parent, 0o710)
        os.chown(self._path.parent, -1, group)
        self._write()

    def refresh(self) -> None:
        """Copy the originals if they have changed and can be served."""
        stamp = self._originals.stamp()
        if stamp == self._stamp:
            return
        try:
            self._originals.examine()
            self._write()
        except CertificateError as error:
            logger.warning("the renewed certificate is invalid; the old one stays", reason=str(error))
        except OSError as error:
            logger.error("the renewed certificate cannot be copied", error=str(error))
            return
        self._stamp = stamp

    async def run(self) -> None:
        """Check every second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.refresh()

    def _write(self) -> None:
        blocks = [
            *(found.group() for found in _CERTIFICATE.finditer(self._originals.chain.read_bytes())),
            *(found.group() for found in _KEY.finditer(self._originals.key.read_bytes())),
        ]
        staged = self._path.with_suffix(".new")
        staged.unlink(missing_ok=True)
        replace_file(self._path, b"\n".join([*blocks, b""]), staged=staged, group=self._group, mode=0o640)


def remove(run_dir: Path) -> None:
    """Remove the copy of a gateway that has stopped."""
    _path(run_dir).unlink(missing_ok=True)


def _path(run_dir: Path) -> Path:
    return run_dir / "gateway" / "certificate.pem"
