"""The server, the poolers in front of it, and the costs of a process."""
import os, pathlib, pwd, re, resource, shutil, socket, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path("/usr/lib/postgresql/15/bin")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PASSWORD = "sesame"
# The pooler changes its user if it is started as root: to this one, so not at all.
USER = pwd.getpwuid(os.geteuid()).pw_name


def free_ports(count):
    """Ports below the range of outgoing connections, of which some sections open thousands."""
    ports = []
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        try:
            with socket.socket() as it:
                it.bind(("127.0.0.1", port))
                ports.append(port)
        except OSError:
            continue
        if len(ports) == count:
            return ports
    sys.exit("no free port")


PORT, POOL_PORT = free_ports(2)


def run(*args, **more):
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, **more)


def check_run(*args, **more):
    done = run(*args, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def as_postgres():
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


def raise_descriptor_limit():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Server:
    """PostgreSQL with pgbench's tables at scale 10; `postgres` is trusted, `bench` authenticates by SCRAM, `bench_md5` by md5."""

    def __init__(self, home):
        self.home = home
        if os.geteuid() == 0:
            shutil.chown(home, "postgres")
        os.chmod(home, 0o755)
        check_run(*as_postgres(), BIN / "initdb", "-D", home / "data", "-U", "postgres", "-A", "trust", "-N")
        with open(home / "data/postgresql.conf", "a") as conf:
            conf.write(f"port={PORT}\nmax_connections=1200\nshared_buffers=512MB\nfsync=off\n"
                       f"unix_socket_directories='{home}'\n")
        rules = home / "data/pg_hba.conf"
        rules.write_text("host all bench 127.0.0.1/32 scram-sha-256\nhost all bench_md5 127.0.0.1/32 md5\n" + rules.read_text())
        with open(home / "log", "w") as log:
            subprocess.run([*as_postgres(), BIN / "pg_ctl", "-D", home / "data", "-w", "start"],
                           stdout=log, stderr=log, check=True)
        check_run(BIN / "pgbench", "-h", "127.0.0.1", "-p", PORT, "-U", "postgres", "-i", "-q", "-s", 10, "postgres")
        self.query(f"create role bench login superuser password '{PASSWORD}'")
        self.query(f"set password_encryption = md5; create role bench_md5 superuser login password '{PASSWORD}'")
        self.stored, self.stored_md5 = (self.query(f"select rolpassword from pg_authid where rolname = '{role}'")
                                        for role in ("bench", "bench_md5"))

    def query(self, sql):
        return check_run(BIN / "psql", "-h", "127.0.0.1", "-p", PORT, "-U", "postgres", "-XAtqc", sql, "postgres").strip()

    def wait_until_idle(self):
        """Waits until the connections of the previous run are closed: a thousand take a while."""
        while self.query("select count(*) < 3 from pg_stat_activity where backend_type = 'client backend'") != "t":
            time.sleep(0.05)

    def stop(self):
        run(*as_postgres(), BIN / "pg_ctl", "-D", self.home / "data", "-m", "immediate", "stop")


def settings(server, auth="trust", more=""):
    """One pgbouncer.ini for all poolers."""
    home = server.home
    (home / "users.txt").write_text(f'"postgres" ""\n"bench" "{server.stored}"\n"bench_md5" "{server.stored_md5}"\n')
    (home / "pool.ini").write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={PORT}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {POOL_PORT}\nunix_socket_dir =\nauth_type = {auth}\nauth_file = {home}/users.txt\n"
        "pool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 12000\nlisten_backlog = 4096\n"
        f"ignore_startup_parameters = extra_float_digits\nserver_tls_sslmode = disable\nuser = {USER}\n{more}")
    os.chmod(home / "users.txt", 0o644)
    return home / "pool.ini"


def toml(more, database=""):
    """The same for howdah alone, with more settings."""
    return (f"[pool]\nmode = 'transaction'\nsizes = {{ pool = 20 }}\nlimits = {{ clients = 12000 }}\n"
            f"os-user = '{USER}'\n{more}\n"
            f"[pool.listen]\nport = {POOL_PORT}\nunix-directories = []\nbacklog = 4096\n"
            "[pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n"
            f"[pool.databases.postgres]\nhosts = ['127.0.0.1:{PORT}']\n{database}")


class Pooler:
    """A context manager for a process on POOL_PORT; without a command, the server itself on its own port."""

    def __init__(self, command, user="postgres", start_timeout=5, log=subprocess.DEVNULL):
        self.command, self.user, self.process, self.start_timeout = command, user, None, start_timeout
        self.log = log
        self.port = POOL_PORT if command else PORT

    def __enter__(self):
        if self.command:
            self.process = subprocess.Popen([str(word) for word in self.command],
                                            stdout=subprocess.DEVNULL, stderr=self.log)
        for _ in range(self.start_timeout * 20):
            done = run(BIN / "psql", *self.address_args(), "-Atc", "select 1", "postgres", env=self.env())
            if done.returncode == 0:
                return self
            time.sleep(0.05)
        self.__exit__()
        sys.exit(f"{self.command}: {done.stderr}")

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()

    def address_args(self):
        return ["-h", "127.0.0.1", "-p", self.port, "-U", self.user]

    def env(self):
        return {**os.environ, "PGPASSWORD": PASSWORD}

    def cpu_time(self):
        """User and system time in clock ticks, and nanoseconds, of all threads."""
        if not self.process:
            return 0, 0, 0
        pid = self.process.pid
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        nanos = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        return int(stat[11]), int(stat[12]), nanos

    def thread_nanos(self, name):
        """Nanoseconds of processor time of the threads whose names start with `name`."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks
                   if (task / "comm").read_text().startswith(name))

    def shutdown_nanos(self):
        """Terminates the process, and returns the processor time of its shutdown in nanoseconds."""
        before = self.cpu_time()[2]
        self.process.terminate()
        _, _, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        return max(0, round((usage.ru_utime + usage.ru_stime) * 1e9) - before)

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def pgbench(self, *args, **more):
        """Runs pgbench and returns the number of transactions, or None if it failed; its output is in `report`."""
        done = run(BIN / "pgbench", *self.address_args(), "-S", "-n", *args, "postgres", env=self.env(), **more)
        self.report = done.stdout + done.stderr
        found = re.search(r"actually processed: (\d+)", done.stdout)
        aborted = "aborted" in done.stderr
        return int(found[1]) if done.returncode == 0 and not aborted and found and int(found[1]) else None

    def throughput(self):
        """Transactions per second of the last run, without its logins."""
        return float(re.search(r"tps = ([\d.]+) \(without", self.report)[1])
