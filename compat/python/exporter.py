"""An exporter of PgBouncer's figures, as people run it: scraped, and its figures compared with what was done.

The exporter is a process of its own and asks the console as it asks PgBouncer's. Where a PgBouncer is found
(PGBOUNCER), it is scraped, too, after the same work, and both have to show the same series.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import psycopg2

QUERIES = 25
DEADLINE = 60
HOST = os.environ["PGHOST"]
PASSWORD = os.environ["PGPASSWORD"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def until(what, ask):
    """What `ask` gives as soon as it gives something and nothing is refused."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            found = ask()
            if found:
                return found
        except OSError as error:
            what = f"{what}: {error}"
        except psycopg2.OperationalError as error:
            what = f"{what}: {error}"
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE} s: {what}")
        time.sleep(0.05)


def work(port):
    """Runs queries, and gives a connection that has a server."""
    connection = psycopg2.connect(host=HOST, port=port, user="postgres", dbname="postgres")
    connection.autocommit = True
    with connection.cursor() as cursor:
        for number in range(QUERIES):
            cursor.execute("select %s", (number,))
            assert cursor.fetchone() == (number,)
    connection.autocommit = False
    connection.cursor().execute("select 'in a transaction'")
    return connection


def series(text):
    """Values by name and labels, of the exporter's own metrics."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(pgbouncer_\w+)(\{.*\})? (\S+)", line)
        if match:
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def scrape(folder, port):
    """Starts the exporter for the pooler at a port, and gives what it shows once."""
    own = free_port()
    config = os.path.join(folder, f"exporter-{port}.yml")
    with open(config, "w") as file:
        file.write(
            f"exporter_port: {own}\npgbouncers:\n"
            f'  - dsn: "postgresql://postgres:{PASSWORD}@{HOST}:{port}/pgbouncer"\n'
        )
    words = [sys.executable, "-W", "ignore", "-m", "prometheus_pgbouncer_exporter.cli"]
    exporter = subprocess.Popen(
        [*words, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        url = f"http://127.0.0.1:{own}/metrics"
        ask = lambda: urllib.request.urlopen(url, timeout=10).read().decode()
        return series(until("the exporter answers", ask))
    finally:
        exporter.kill()
        said = exporter.communicate()[1].decode()
        if "Unable" in said:
            print(said)


def start_pgbouncer(program, folder, backend):
    port = free_port()
    config = os.path.join(folder, "pgbouncer.ini")
    users = os.path.join(folder, "userlist.txt")
    with open(users, "w") as file:
        file.write(f'"postgres" "{PASSWORD}"\n')
    with open(config, "w") as file:
        file.write(
            f"[databases]\npostgres = host=127.0.0.1 port={backend}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\nadmin_users = postgres\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n"
        )
    os.chmod(folder, 0o755)
    words = [program, "-q", config]
    if os.geteuid() == 0:
        words[1:1] = ["-u", "nobody"]
    return port, subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def names(figures):
    """Series without those of the console's own database, which is a pool in PgBouncer and none here."""
    return {name for name in figures if 'database="pgbouncer"' not in name}


def main():
    with tempfile.TemporaryDirectory() as folder:
        port = int(os.environ["PGPORT"])
        connection = work(port)
        ours = scrape(folder, port)
        pool = '{database="postgres",user="postgres"}'
        database = '{database="postgres"}'
        expected = {
            "pgbouncer_up": 1,
            f"pgbouncer_stats_queries_total{database}": QUERIES + 2,
            f"pgbouncer_stats_transactions_total{database}": QUERIES,
            f"pgbouncer_pools_client_active_connections{pool}": 1,
            f"pgbouncer_pools_client_waiting_connections{pool}": 0,
            f"pgbouncer_pools_server_active_connections{pool}": 1,
            "pgbouncer_config_max_client_conn": 100,
        }
        for name, value in expected.items():
            assert ours.get(name) == value, f"{name} is {ours.get(name)}, not {value}: {ours}"
        sizes = [value for name, value in ours.items() if "database_pool_size" in name]
        assert sizes == [2], ours
        assert ours[f"pgbouncer_stats_received_bytes_total{database}"] > QUERIES * 10
        connection.close()

        program = os.environ.get("PGBOUNCER")
        beside = ""
        if program and os.environ.get("SERVER_PORT"):
            port, pgbouncer = start_pgbouncer(program, folder, os.environ["SERVER_PORT"])
            try:
                connection = until("PgBouncer answers", lambda: work(port))
                theirs = scrape(folder, port)
                connection.close()
            finally:
                pgbouncer.kill()
                pgbouncer.wait()
            # The exporter reads a column that PgBouncer 1.25, and so the console here, calls otherwise.
            renamed = {name for name in names(theirs) if "reserve_pool_size" in name}
            assert names(theirs) - renamed == names(ours), names(theirs) ^ names(ours)
            # It counts a transaction when it begins; we do when it has ended.
            expected[f"pgbouncer_stats_transactions_total{database}"] += 1
            for name, value in expected.items():
                assert theirs[name] == value, f"{name} is {theirs[name]} there, not {value}"
            beside = ", the same as PgBouncer's"
        print(f"exporter: {len(ours)} series{beside}")


if __name__ == "__main__":
    main()
