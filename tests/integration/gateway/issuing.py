"""Self-signed certificates for tests."""

import subprocess
from pathlib import Path

from codehub.gateway.certificate import CertificateFiles


def issue(directory: Path, name: str, *more: str, names: str, days: int = 90) -> CertificateFiles:
    """Create a certificate and its key.

    `issue(tmp_path, "mine", "extendedKeyUsage=clientAuth", names="DNS:localhost", days=-1)`
    """
    key, request, chain = (directory / f"{name}.{kind}" for kind in ("key", "req", "pem"))
    extensions = directory / f"{name}.ext"
    extensions.write_text("\n".join([f"subjectAltName={names}", *more]))
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", key)
    _openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-key", key, "-days", str(days), "-extfile", extensions,
        "-out", chain,
    )  # fmt: skip
    return CertificateFiles(chain, key)


def encrypt_key(files: CertificateFiles, target: Path) -> Path:
    """Write a copy of the key that needs a passphrase, and return its path."""
    _openssl("pkey", "-in", files.key, "-aes256", "-passout", "pass:secret", "-out", target)
    return target


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
