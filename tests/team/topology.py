"""A team's installation as processes on this machine: what infra/compose.yaml runs in containers, on loopback.

    PostgreSQL ── Prefect server, MLflow server          SeaweedFS (S3) ── MLflow's files, our artifacts
    Ray head (token), Prefect worker on a process pool   Caddy with infra/Caddyfile in front of both pages

Everything lies below one temporary folder and is ended by pid. Ray and the Prefect worker get caches of their own, so
that a stage which needs a disk in common with its driver fails.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from flows.services.processes import ProcessId, answers, free_port, stop, tail

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
BIN = Path(sys.executable).parent
BUCKET, POOL = "reread", "reread"
PERSON, PASSWORD = "ada", "only-for-this-test"


def postgres_bin() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "psql").exists()), None)


def missing() -> str | None:
    """Why the topology cannot run here, or None."""
    if postgres_bin() is None:
        return "PostgreSQL is not installed (`make test-team` installs it as root; else apt-get install postgresql)"
    for program in ("weed", "caddy"):
        if not (BIN / program).is_file():
            return f"{program} is not installed in this environment: pip install -c constraints.txt -e '.[team]'"
    return None


def port_below(limit: int = 50000) -> int:
    """A free port whose number plus 10000 is free too: SeaweedFS takes that one for gRPC."""
    while True:
        port = free_port(0) % 20000 + 20000
        if port < limit and all(_free(p) for p in (port, port + 10000)):
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Team:
    """The processes by name, and the environment that makes a client one of the team."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="reread-team-"))
        self.folder.chmod(0o755)                       # PostgreSQL runs as another user when we are root
        self.running: dict[str, subprocess.Popen] = {}
        self.ready: dict[str, Callable[[], bool]] = {}
        self.ports = {name: free_port(0) for name in ("postgres", "prefect", "mlflow", "ray", "http", "sites", "sites2")}
        self.ports |= {name: port_below() for name in ("master", "volume", "filer", "s3")}
        self.secret = secrets.token_hex(16)
        at = "127.0.0.1:{}".format
        database = f"reread:{self.secret}@{at(self.ports['postgres'])}"
        self.databases = {"PREFECT_DATABASE": f"postgresql://{database}/prefect",
                          "MLFLOW_DATABASE": f"postgresql://{database}/mlflow"}
        self.prefect, self.mlflow = (f"http://{at(self.ports[name])}" for name in ("prefect", "mlflow"))
        self.sites = {"PREFECT_SITE": f"https://localhost:{self.ports['sites']}",
                      "MLFLOW_SITE": f"https://localhost:{self.ports['sites2']}"}
        self.storage = {"AWS_ENDPOINT_URL": f"http://{at(self.ports['s3'])}", "AWS_ACCESS_KEY_ID": "reread",
                        "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_DEFAULT_REGION": "us-east-1",
                        "AWS_EC2_METADATA_DISABLED": "true"}
        self.four = {"RAY_ADDRESS": at(self.ports["ray"]), "PREFECT_API_URL": f"{self.prefect}/api",
                     "MLFLOW_TRACKING_URI": self.mlflow, "REREAD_HOME": f"s3://{BUCKET}/artifacts"}
        self.quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
                      "RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1",
                      "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.secret * 2,
                      "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true", "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.25",
                      "REREAD_MLFLOW_URL": self.sites["MLFLOW_SITE"], "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    # ------------------------------------------------------------------------------------------------ environment
    def environment(self, who: str) -> dict[str, str]:
        """What a member `who` of the topology sees: nothing of the caller's settings, a home of its own."""
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(("PREFECT_", "RAY_", "MLFLOW_", "REREAD_", "AWS_"))}
        home = self.folder / who
        home.mkdir(exist_ok=True)
        return {**kept, **self.four, **self.storage, **self.quiet, "HOME": str(home), "REREAD_CACHE": str(home / "cache"),
                "PREFECT_HOME": str(home / "prefect"), "PYTHONPATH": str(ROOT), "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}"}

    def cache(self, who: str) -> Path:
        return self.folder / who / "cache"

    # --------------------------------------------------------------------------------------------------- starting
    def start(self) -> None:
        """Everything; what does not need another starts beside it, but for Ray, whose agents must be up within 15 s."""
        for some in (("ray",), ("postgres", "storage"), ("mlflow", "prefect", "proxy"), ("worker",)):
            for name in some:
                getattr(self, f"start_{name}")()
            self.wait(*some)

    def _start(self, name: str, command: list, ready: Callable[[], bool], environment: dict[str, str] | None = None,
               **options) -> None:
        with open(self.log(name), "ab") as output:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, cwd=self.folder / name,
                env={**self.environment(name), **(environment or {})}, **options)
        self.ready[name] = ready

    def wait(self, *names: str, seconds: float = 300) -> None:
        """Until these answer; RuntimeError with the end of the log of the first that does not. Ray gives its own node
        30 s, which a busy machine misses, and is then started again."""
        deadline, again = time.monotonic() + seconds, {"ray": 2}
        for name in names:
            while not self.ready[name]():
                ended = self.running[name].poll() is not None
                if ended and again.get(name) and time.monotonic() < deadline:
                    again[name] -= 1
                    getattr(self, f"start_{name}")()
                elif ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} did not get ready. The end of its log:\n{tail(self.log(name), 30)}")
                time.sleep(0.1)

    def log(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / f"{name}.log"

    def start_postgres(self) -> None:
        binaries, data = postgres_bin(), self.folder / "postgres" / "data"
        user = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []} if not os.getuid() else {}
        self.log("postgres")
        if user:
            shutil.chown(self.folder / "postgres", "postgres")
        if not data.exists():
            password = self.folder / "postgres" / "password"
            password.write_text(self.secret)
            subprocess.run([binaries / "initdb", "-D", data, "-U", "reread", "--pwfile", password, "--no-sync",
                            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"],
                           check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **user)
        self._start("postgres", [binaries / "postgres", "-D", data, "-p", self.ports["postgres"],
                                 "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
                                 "-c", "max_connections=200"],
                    self._databases, **user)

    def _databases(self) -> bool:
        """Whether both databases are there, made if PostgreSQL answers."""
        if self.psql("select 1", check=False) != "1":
            return False
        for name in ("prefect", "mlflow"):
            if not self.psql(f"select 1 from pg_database where datname = '{name}'"):
                self.psql(f"create database {name}")
        return True

    def psql(self, statement: str, database: str = "postgres", check: bool = True) -> str:
        """What the statement answers, one line a row."""
        address = self.databases["PREFECT_DATABASE"].rpartition("/")[0] + f"/{database}"
        done = subprocess.run([postgres_bin() / "psql", "-XAtq", "-c", statement, address], capture_output=True,
                              text=True, check=check)
        return done.stdout.strip()

    def driver(self, name: str, driver: str) -> str:
        """A database's address for SQLAlchemy, which takes psycopg 3 unless told otherwise."""
        return self.databases[name].replace("postgresql:", f"postgresql+{driver}:")

    def start_storage(self) -> None:
        """SeaweedFS with its S3 gateway, and the bucket."""
        identities = self.folder / "storage.json"
        key = {"accessKey": "reread", "secretKey": self.secret}
        identities.write_text(json.dumps({"identities": [
            {"name": "reread", "credentials": [key], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}))
        (self.folder / "storage" / "data").mkdir(parents=True, exist_ok=True)
        port = self.ports
        self._start("storage", [
            BIN / "weed", "server", "-dir", self.folder / "storage" / "data", "-ip", "127.0.0.1",
            "-ip.bind", "127.0.0.1", "-master.port", port["master"], "-volume.port", port["volume"],
            "-filer", "-filer.port", port["filer"], "-s3", "-s3.port", port["s3"], "-s3.config", identities,
            "-s3.port.iceberg", 0, "-s3.port.lance", 0, "-s3.iam=false",
            "-volume.max", 0, "-master.volumeSizeLimitMB", 64], self._bucket)

    def _bucket(self) -> bool:
        """Whether the bucket is there, made if the storage answers."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if BUCKET not in [bucket["Name"] for bucket in self.s3().list_buckets()["Buckets"]]:
                self.s3().create_bucket(Bucket=BUCKET)
            self.s3().put_object(Bucket=BUCKET, Key="ready", Body=b"")       # volumes exist as well
            return True
        except (BotoCoreError, ClientError, OSError):
            return False

    def s3(self):
        import boto3
        from botocore.config import Config

        return boto3.client("s3", endpoint_url=self.storage["AWS_ENDPOINT_URL"], region_name="us-east-1",
                            aws_access_key_id="reread", aws_secret_access_key=self.secret,
                            config=Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=10))

    def start_mlflow(self) -> None:
        self._start("mlflow", [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", self.ports["mlflow"],
            "--workers", "2", "--backend-store-uri", self.driver("MLFLOW_DATABASE", "psycopg2"),
            "--artifacts-destination", f"s3://{BUCKET}/mlflow",
            "--allowed-hosts", f"localhost:*,127.0.0.1:*,{self.sites['MLFLOW_SITE'].removeprefix('https://')}",
            "--cors-allowed-origins", self.sites["MLFLOW_SITE"]], lambda: answers(f"{self.mlflow}/health"))

    def start_prefect(self) -> None:
        self._start("prefect", [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port",
                                self.ports["prefect"]], lambda: answers(f"{self.prefect}/api/health"), environment={
            "PREFECT_API_DATABASE_CONNECTION_URL":
                self.driver("PREFECT_DATABASE", "asyncpg"),
            "PREFECT_UI_API_URL": f"{self.sites['PREFECT_SITE']}/api"})

    def start_proxy(self) -> None:
        """Caddy with the Caddyfile that compose uses, a certificate of its own making."""
        hashed = subprocess.run([BIN / "caddy", "hash-password", "--plaintext", PASSWORD], check=True,
                                capture_output=True, text=True).stdout.strip()
        users = self.folder / "users"
        users.write_text(f"{PERSON} {hashed}\n")
        at = "127.0.0.1:{}".format
        self.log("proxy")
        self._start("proxy", [BIN / "caddy", "run", "--config", INFRA / "Caddyfile", "--adapter", "caddyfile"],
                    lambda: not _free(self.ports["sites"]) and self.certificate.is_file(), environment={
            **self.sites, "TLS": "internal", "HTTP_PORT": str(self.ports["http"]), "USERS": str(users),
            "PREFECT_UPSTREAM": at(self.ports["prefect"]), "MLFLOW_UPSTREAM": at(self.ports["mlflow"]),
            "BIND": "127.0.0.1", "XDG_DATA_HOME": str(self.folder / "proxy"),
            "XDG_CONFIG_HOME": str(self.folder / "proxy")})

    @property
    def certificate(self) -> Path:
        """The authority that signed the pages' certificates."""
        return self.folder / "proxy" / "caddy" / "pki" / "authorities" / "local" / "root.crt"

    def start_ray(self) -> None:
        self._start("ray", [BIN / "ray", "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port",
                            self.ports["ray"], "--num-cpus", 8, "--object-store-memory", 256 << 20,
                            "--include-dashboard", "false", "--temp-dir", f"/tmp/{self.folder.name[-8:]}"],
                    lambda: "Ray runtime started" in self.log("ray").read_text(errors="replace"))

    def start_worker(self, limit: int = 8) -> None:
        """The work pool, the deployments of prefect.yaml, and a worker."""
        self.prefect_command("work-pool", "create", POOL, "--type", "process", "--overwrite")
        self.prefect_command("deploy", "--all", cwd=ROOT)
        self._start("worker", [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--limit", limit,
                               "--install-policy", "never"],
                    lambda: "started!" in self.log("worker").read_text(errors="replace"),
                    environment={"PREFECT_WORKER_QUERY_SECONDS": "2"})

    def prefect_command(self, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
        """What `prefect ...` prints; RuntimeError when it fails."""
        return self.command(sys.executable, "-m", "prefect", "--no-prompt", *arguments, cwd=cwd, **environment)

    def command(self, *command: str | Path, cwd: Path | None = None, **environment: str) -> str:
        """What a command prints that a member `client` of the team runs; RuntimeError when it fails."""
        done = subprocess.run([str(part) for part in command], text=True, capture_output=True, cwd=cwd or self.folder,
                              env={**self.environment("client"), **environment}, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    # --------------------------------------------------------------------------------------------------- stopping
    def stop(self, *names: str) -> None:
        """End these, or all, the last started first."""
        for name in reversed(list(names or self.running)):
            process = self.running.pop(name)
            if process.poll() is None:
                stop([ProcessId.of(psutil.Process(process.pid))])
            process.wait(10)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(f"/tmp/{self.folder.name[-8:]}", ignore_errors=True)
