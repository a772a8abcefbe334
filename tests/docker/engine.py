"""A Docker Engine for the tests, with a small image. It leaves nothing behind."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

from codehub.host.parent_death import die_with_parent
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
    "wc",
    "stty",
    "grep",
    "seq",
    "head",
    "pgrep",
    "setsid",
    "readlink",
    "hostname",
    "env",
    "od",
    "tr",
    "stat",
    "cmp",
)


class EngineMissingError(Exception):
    """No engine can run here. The message says what to install."""


class OwnEngine:
    """A Docker Engine that ends with this process."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise EngineMissingError("starting a Docker Engine needs root")
        for program, package in (("dockerd", "docker.io"), ("iptables", "iptables"), ("docker", "docker.io")):
            if shutil.which(program) is None:
                raise EngineMissingError(f"{program} is missing: apt-get install {package}")
        if not BUSYBOX.exists():
            raise EngineMissingError("busybox is missing: apt-get install busybox-static")
        self.directory = short_temp_dir()
        self.url = f"unix://{self.directory}/docker.sock"
        self._rules = (
            {} if _has_other_engine() else {name: _rules(name) for name in ("iptables", "ip6tables")}
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the engine and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [ROOT / "scripts" / "run-docker-engine.sh", self.directory], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        wait_for(lambda: self._answers() or self._has_ended(), "the Docker engine to answer")
        if self._has_ended():
            log_end = (self.directory / "log").read_text(errors="replace")[-800:]
            raise EngineMissingError(f"dockerd does not run here: {log_end}")

    def _has_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def _answers(self) -> bool:
        return self.try_docker("version").returncode == 0

    def stop(self) -> None:
        """Stop the engine. Without live-restore it stops every container."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE)

    def enable_live_restore(self) -> None:
        """Let containers run on when the engine stops. The next start disables it again."""
        assert self._process is not None
        (self.directory / "daemon.json").write_text('{"live-restore": true}')
        self._process.send_signal(signal.SIGHUP)
        shown = ("info", "--format", "{{.LiveRestoreEnabled}}")
        wait_for(lambda: self.docker(*shown) == "true", "the engine to enable live-restore")

    def kill(self) -> None:
        """Kill the engine. Its containers run on until it is back and stops them."""
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
        """Run a script in the workspace's container, as its user."""
        return self.try_docker("exec", f"codehub-ws-{workspace_id}", "sh", "-c", script)

    def import_tiny(self) -> None:
        change = 'CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]'
        self.docker("import", "--change", change, "-", TINY, data=tiny_rootfs())

    def make_code_server(self) -> None:
        """Make the built-in image without a registry."""
        environment = os.environ | {"DOCKER_HOST": self.url, "CODEHUB_TOOLS_DIR": str(TOOLS_DIR)}
        script = ROOT / "scripts" / "make-image.sh"
        subprocess.run([script], env=environment, check=True, stdout=subprocess.DEVNULL)

    def clear(self) -> None:
        """Remove all containers and networks."""
        wait_for(self._is_cleared, "the engine to remove every container and network")

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
        wait_for(lambda: not kill_processes_of(self.directory), "every process of the engine to end")
        for mount in _mounts_below(self.directory):
            subprocess.run(["umount", "--lazy", mount], check=True)
        shutil.rmtree(self.directory)
        for program, rules in self._rules.items():
            subprocess.run([f"{program}-restore"], input=rules.encode(), check=True)


def tiny_rootfs(page_text: bytes = b"ok") -> bytes:
    """Return a tar of busybox and a page for its web server."""
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
        home = tarfile.TarInfo("www/home")  # what a workspace serves identifies it
        home.type, home.linkname = tarfile.SYMTYPE, "/home/coder"
        tar.addfile(home)
        page = tarfile.TarInfo("www/healthz")
        page.size = len(page_text)
        tar.addfile(page, io.BytesIO(page_text))
    return buffer.getvalue()


def _has_other_engine() -> bool:
    """Return whether another engine runs.

    Its rules may change meanwhile, so they are not restored.
    """
    return Path("/sys/class/net/docker0").exists()


def _rules(program: str) -> str:
    """Return input for `iptables-restore` that restores the rules and empties unused tables."""
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


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.split()[1].startswith(f"{directory}/")]
    return sorted(found, reverse=True)
