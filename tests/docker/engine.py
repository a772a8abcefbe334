"""A Docker Engine of the tests' own, with a small image, and nothing left of it afterwards."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

from codehub.host.child_process import die_with_parent
from tests.services import TOOLS_DIR, kill_processes_of, short_temp_dir
from tests.waiting import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]
TINY = "codehub-test/tiny:1"
BUSYBOX = Path("/bin/busybox")
APPLETS = (
    "sh",
    "httpd",
    "nc",
    "cat",
    "ls",
    "id",
    "sleep",
    "echo",
    "touch",
    "kill",
    "ps",
    "dd",
    "true",
    "test",
    "mkdir",
)


class EngineMissingError(Exception):
    """No engine can be had here; the message says what to install."""


class OwnEngine:
    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise EngineMissingError("a Docker Engine of its own needs root")
        for program, package in (("dockerd", "docker.io"), ("iptables", "iptables"), ("docker", "docker.io")):
            if shutil.which(program) is None:
                raise EngineMissingError(f"{program} is missing: apt-get install {package}")
        if not BUSYBOX.exists():
            raise EngineMissingError("busybox is missing: apt-get install busybox-static")
        self.place = short_temp_dir()
        self.url = f"unix://{self.place}/docker.sock"
        self._rules = (
            {} if _has_other_engine() else {name: _rules(name) for name in ("iptables", "ip6tables")}
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the engine, which ends with this process, and wait until it answers."""
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [ROOT / "scripts" / "docker-engine.sh", self.place], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        wait_for(lambda: self._answers() or self._has_ended(), "the Docker engine to answer")
        if self._has_ended():
            log_end = (self.place / "log").read_text(errors="replace")[-800:]
            raise EngineMissingError(f"dockerd does not run here: {log_end}")

    def _has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def _answers(self) -> bool:
        return self.try_docker("version").returncode == 0

    def stop(self) -> None:
        """An orderly end: without live-restore it ends every container."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """kill -9: its containers go on, until it is back and ends them."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def docker(self, *arguments: str, data: bytes | None = None) -> str:
        done = self.try_docker(*arguments, data=data)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def try_docker(self, *arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command = ["docker", "--host", self.url, *arguments]
        return subprocess.run(command, input=data, capture_output=True, check=False, timeout=PATIENCE)

    def inside(self, workspace_id: str, script: str) -> subprocess.CompletedProcess[bytes]:
        """A shell in the workspace's container, as its user."""
        return self.try_docker("exec", f"codehub-ws-{workspace_id}", "sh", "-c", script)

    def import_tiny(self) -> None:
        change = 'CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]'
        self.docker("import", "--change", change, "-", TINY, data=tiny_rootfs())

    def make_code_server(self) -> None:
        """The built-in image, made without a registry."""
        environment = os.environ | {"DOCKER_HOST": self.url, "CODEHUB_TOOLS_DIR": str(TOOLS_DIR)}
        script = ROOT / "scripts" / "make-image.sh"
        subprocess.run([script], env=environment, check=True, stdout=subprocess.DEVNULL)

    def clear(self) -> None:
        """Remove containers and networks, whoever made them."""
        wait_for(self._is_cleared, "the engine to let go of every container and network")

    def _is_cleared(self) -> bool:
        containers = self.docker("ps", "--all", "--quiet").split()
        networks = self.docker("network", "ls", "--quiet", "--filter", "type=custom").split()
        if containers:
            self.try_docker("rm", "--force", "--volumes", *containers)
        if networks:
            self.try_docker("network", "rm", *networks)
        return not containers and not networks

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.clear()  # a network that outlives its engine stays on the machine
            self.stop()
        wait_for(lambda: not kill_processes_of(self.place), "every process of the engine to end")
        for mount in _mounts_below(self.place):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(self.place)
        for program, rules in self._rules.items():
            subprocess.run([f"{program}-restore"], input=rules.encode(), check=True)


def tiny_rootfs(page_text: bytes = b"ok") -> bytes:
    """busybox and a web server's page, as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("www", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("home", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        tar.add(BUSYBOX.resolve(), "bin/busybox")
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
        home = tarfile.TarInfo("www/home")  # what a workspace serves tells whose it is
        home.type, home.linkname = tarfile.SYMTYPE, "/home/coder"
        tar.addfile(home)
        page = tarfile.TarInfo("www/healthz")
        page.size = len(page_text)
        tar.addfile(page, io.BytesIO(page_text))
    return buffer.getvalue()


def _has_other_engine() -> bool:
    """Its rules may change while the tests run, so they are not put back as they were."""
    return Path("/sys/class/net/docker0").exists()


def _rules(program: str) -> str:
    """What puts the packet filter back as it is now; a table that nobody has used is emptied."""
    saved = subprocess.run([f"{program}-save"], capture_output=True, text=True, check=True).stdout
    chains = {
        "filter": ("INPUT", "FORWARD", "OUTPUT"),
        "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
        "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    }
    unused = [table for table in chains if f"*{table}\n" not in saved]
    return saved + "".join(
        "\n".join([f"*{table}", *(f":{chain} ACCEPT [0:0]" for chain in chains[table]), "COMMIT", ""])
        for table in unused
    )


def _mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.split()[1].startswith(f"{place}/")]
    return sorted(found, reverse=True)
