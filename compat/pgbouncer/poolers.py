"""PostgreSQL, and a pooler of either kind in front of it with the same pgbouncer.ini."""
import contextlib, os, pathlib, re, signal, socket, subprocess, time

from client import Client, scram_secret

PASSWORD = "sesame"
START_TIMEOUT = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(what, is_so, seconds=START_TIMEOUT):
    deadline = time.monotonic() + seconds
    while not (result := is_so()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.02)
    return result


class Server:
    """PostgreSQL: `postgres` and `ann` are trusted, `scott` authenticates by SCRAM and `mia` by md5."""

    def __init__(self, bin_dir, home):
        self.bin, self.home, self.port = pathlib.Path(bin_dir), home, free_port()
        self.call("initdb", "-D", home / "data", "-U", "postgres", "-A", "trust", "-N")
        (home / "data/postgresql.conf").open("a").write(
            f"port={self.port}\nfsync=off\nlisten_addresses='127.0.0.1'\nunix_socket_directories='{home}'\n"
            "max_connections=200\n")
        rules = home / "data/pg_hba.conf"
        rules.write_text("host all scott 127.0.0.1/32 scram-sha-256\nhost all mia 127.0.0.1/32 md5\n"
                         + rules.read_text())
        self.start()
        console = self.connect("postgres")
        for sql in ["create database shop", "create role ann login", "create role dba login", "create role bob login",
                    f"create role scott login password '{PASSWORD}'", "set password_encryption = md5",
                    f"create role mia login password '{PASSWORD}'", "create role stat login"]:
            lines = console.query(sql)
            assert not any(line.startswith("error") for line in lines), lines
        console.close()

    def call(self, name, *args):
        done = subprocess.run([self.bin / name, *args], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr}")

    def start(self):
        self.call("pg_ctl", "-D", self.home / "data", "-w", "-l", self.home / "server.log", "start")

    def stop(self, mode="fast"):
        self.call("pg_ctl", "-D", self.home / "data", "-w", "-m", mode, "stop")

    def connect(self, database, user="postgres"):
        client = Client(("127.0.0.1", self.port))
        client.log_in(user, database)
        return client


class Pooler:
    """A pooler that runs, or failed to. It is a context manager; `kind` is `pgbouncer` or `howdah`."""

    def __init__(self, kind, program, server, home, ini, args=(), files=(), wait=True):
        self.kind, self.server, self.home, self.wait = kind, server, home, wait
        self.port, self.files = free_port(), dict(files)
        home.mkdir(parents=True)
        self.write("userlist.txt", "".join(
            f'"{name}" "{secret}"\n' for name, secret in
            [("ann", ""), ("bob", ""), ("dba", ""), ("stat", ""), ("postgres", ""), ("scott", scram_secret(PASSWORD)),
             ("mia", PASSWORD), ("pat", PASSWORD)]))
        self.write("pgbouncer.ini", ini)
        for name, text in self.files.items():
            self.write(name, text)
        self.command = [program, *(["pool"] if kind == "howdah" else []), *args, "pgbouncer.ini"]
        self.process = None

    def expand(self, text):
        for name, value in {"PORT": self.port, "SERVER": self.server.port, "HOME": self.home}.items():
            text = text.replace(f"@{name}@", str(value))
        return text

    def write(self, name, text):
        path = self.home / name
        path.write_text(self.expand(text))
        path.chmod(0o600)

    def __enter__(self):
        self.output = self.home / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen([str(part) for part in self.command], cwd=self.home, stdout=output,
                                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env={**os.environ, "HOME": str(self.home), "NO_COLOR": "1"})
        if self.wait:
            wait_until(f"{self.kind} to listen or to exit", lambda: self.process.poll() is not None or self.listens())
        return self

    def listens_tcp(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def listens(self):
        if self.listens_tcp():
            return True
        path = self.home / f".s.PGSQL.{self.port}"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return True
        return False

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log(self):
        return self.output.read_text(errors="replace")

    def client(self, user="ann", database="shop", password=None, **options):
        """A client that has tried to log in; `client.login` has the lines."""
        client = Client(("127.0.0.1", self.port))
        client.login = client.log_in(user, database, password, **options)
        return client

    def socket_client(self, user, database, **options):
        client = Client(self.home / f".s.PGSQL.{self.port}")
        client.login = client.log_in(user, database, **options)
        return client

    def console(self, user="dba"):
        return self.client(user, "pgbouncer")

    def ended(self, seconds=10):
        """Waits for the end of the process and returns its exit code, or None if it goes on."""
        with contextlib.suppress(TimeoutError):
            wait_until("the end", lambda: self.process.poll() is not None, seconds)
        return self.process.poll()


def normalised(value, pooler):
    """Replaces what differs from run to run, and each pooler's own name."""
    if isinstance(value, (list, tuple)):
        return [normalised(item, pooler) for item in value]
    if isinstance(value, dict):
        return {key: normalised(item, pooler) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    for text, name in [(str(pooler.home), "@HOME@"), (str(pooler.port), "@PORT@"), (str(pooler.server.port), "@SERVER@")]:
        value = value.replace(text, name)
    value = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "@TIME@", value)
    value = re.sub(r"0x[0-9a-f]+", "@POINTER@", value)
    return value
