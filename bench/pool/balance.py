"""Latency with three standbys, one of them slow, by strategy: a section of `bench/pool/run`."""
import os, pathlib, re, shutil, statistics, tempfile, time

from servers import BIN, POOL_PORT, USER, Pooler, check_run, run

STRATEGIES = ["random", "round-robin", "least-outstanding", "latency"]
#: Duration of a request at each server, and the additional duration at the slow one.
WORK_MS, SLOW_MS = 20, 50
CLIENTS, WARM_S, SECONDS = 40, 4, 12


class Labs:
    """A primary and three standbys by `howdah lab`. Requests only sleep, so that two cores are enough."""

    def __init__(self, howdah):
        self.howdah, self.names, self.uris = howdah, [], []
        for number in range(4):
            name = f"balance-{os.getpid()}-{number}"
            more = ["--standby-of", self.names[0]] if number else ["--set", "bench.slow_ms=0"]
            uri = check_run(howdah, "lab", "start", "--name", name, *more).split()[-1]
            self.names.append(name)
            self.uris.append(uri)
        self.query(0, "create function work() returns void language plpgsql as $$ begin perform pg_sleep(("
                    f"{WORK_MS} + current_setting('bench.slow_ms')::float) / 1000); end $$")
        for standby in range(1, 4):
            while self.query(standby, "select count(*) from pg_proc where proname = 'work'") != "1":
                time.sleep(0.05)

    def query(self, server, sql):
        return check_run(BIN / "psql", self.uris[server], "-XAtqc", sql).strip()

    def slow(self, millis):
        """Makes the last standby slower."""
        self.query(3, f"alter system set bench.slow_ms = '{millis}'")
        self.query(3, "select pg_reload_conf()")

    def servers(self):
        """Socket directories and port numbers."""
        return [re.search(r"host=([^&]+)&port=(\d+)", uri).groups() for uri in self.uris]

    def stop(self):
        for name in reversed(self.names):
            run(self.howdah, "lab", "stop", name)


def balance(bench):
    """Latency of reads at three standbys in milliseconds, all equal and with one that is three and a half times as slow;
    and how many of a thousand requests the slow one gets."""
    labs = Labs(bench.options.howdah)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="howdah-bench-balance-"))
    try:
        (folder / "script").write_text("select work()\n")
        print(f"{CLIENTS} clients, {WORK_MS} ms a request, the slow one {SLOW_MS} ms more, {SECONDS} s each, "
              f"median of {bench.rounds} rounds\n")
        print("| strategy | p50 | p99 | slow: p50 | p99 | of 1,000 there | p99 to healthy |\n|" + "---|" * 7)
        for strategy in STRATEGIES:
            found = {0: [], SLOW_MS: []}
            for _ in range(bench.rounds):
                for slow, rounds in found.items():
                    labs.slow(slow)
                    rounds.append(measured(bench, labs, folder, strategy))
            healthy, slow = ([statistics.median(column) for column in zip(*rounds)] for rounds in found.values())
            print(f"| {strategy} | {healthy[0]:.1f} | {healthy[1]:.1f} | {slow[0]:.1f} | {slow[1]:.1f} "
                  f"| {slow[2]:.1f} | {slow[1] / healthy[1]:.2f} |", flush=True)
    finally:
        labs.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measured(bench, labs, folder, strategy):
    """p50 and p99 in milliseconds, and the slow server's share of a thousand requests, after a warm-up."""
    servers = ", ".join(f"{{ host = '{host}', port = {port} }}" for host, port in labs.servers())
    (folder / "pool.toml").write_text(
        f"[pool]\nmode = 'transaction'\nsizes = {{ pool = 40 }}\nadmin-users = ['postgres']\n"
        f"os-user = '{USER}'\n[pool.listen]\naddresses = ['127.0.0.1']\nport = {POOL_PORT}\nunix-directories = []\n"
        "[pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n"
        f"[pool.databases.postgres]\nservers = [{servers}]\n"
        f"cluster = {{ role = 'replica', strategy = '{strategy}' }}\n")
    with Pooler([bench.options.howdah, "pool", "-c", folder / "pool.toml", "--workers", 1]) as pooler:
        pgbench = ["-f", folder / "script", "-n", "-c", CLIENTS, "-j", 1]
        check_run(BIN / "pgbench", *pooler.address_args(), *pgbench, "-T", WARM_S, "postgres")
        before = counts(pooler)
        logs = folder / "log"
        logs.mkdir()
        check_run(BIN / "pgbench", *pooler.address_args(), *pgbench, "-T", SECONDS, "-l", f"--log-prefix={logs}/t", "postgres")
        done = [now - then for now, then in zip(counts(pooler), before)]
    times = sorted(int(line.split()[2]) for file in logs.iterdir() for line in open(file))
    shutil.rmtree(logs)
    at = lambda share: times[int(len(times) * share)] / 1000
    return at(0.5), at(0.99), 1000 * done[3] / max(1, sum(done))


def counts(pooler):
    """Number of requests by server, in configured order."""
    rows = check_run(BIN / "psql", *pooler.address_args(), "-XAtqc", "show members", "howdah").splitlines()
    return [int(row.split("|")[10]) for row in rows]
