"""Measurements: each function is a section of `bench/pool/run` and prints a table in Markdown."""
import pathlib, re, shutil, socket, statistics, struct, subprocess, sys, tempfile, time

from balance import balance
from servers import POOL_PORT, PORT, Pooler, raise_descriptor_limit, settings, toml


def rounds_by_name(bench, names, measure):
    """The columns of each round by pooler. Rounds are interleaved, so that other load on the machine affects all
    poolers. The server itself is measured once, for its throughput only."""
    results = {name: [] for name in names}
    for number in range(bench.rounds):
        for name in names:
            if name == "direct" and number:
                continue
            bench.server.wait_until_idle()
            results[name].append(measure(name))
    return {name: list(filter(None, found)) for name, found in results.items()}


def medians(found):
    """Medians of each column."""
    return [statistics.median(column) for column in zip(*found)]


def median_by_name(bench, names, measure):
    """Medians of each column of `rounds_by_name`."""
    return {name: medians(found) for name, found in rounds_by_name(bench, names, measure).items()}


def report_failure(name, pooler):
    """Prints why a run failed."""
    print(f"{name}: {pooler.report.strip()[-300:]}", file=sys.stderr)


def transactions(bench):
    """Processor time per transaction: user and system, of the whole pooler, from the scheduler."""
    commands = bench.commands(settings(bench.server))
    ratios = []
    print("| protocol | clients | pooler | µs/tx | range | user | tps | to pgbouncer | to the relay |\n|" + "---|" * 9)
    for protocol in ["simple", "extended", "prepared"]:
        for clients in bench.sizes:
            # The cost of a run with one transaction each, mainly logins, is subtracted.
            each = 1 + max(8, 20_000 // clients)
            def measure(name):
                with Pooler(commands[name]) as pooler:
                    spent = []
                    for count in (1, 1, each):  # the first opens its servers
                        if not pooler.pgbench("-c", clients, "-j", 2, "-t", count, "-M", protocol):
                            return report_failure(name, pooler)
                        spent.append(pooler.cpu_time())
                user, system, nanos = (c - b - (b - a) for a, b, c in zip(*spent))
                micros = nanos / 1000 / ((each - 1) * clients)
                return micros, micros * max(0, user) / max(1, user + system), pooler.throughput()
            rounds = rounds_by_name(bench, commands, measure)
            middle = {name: medians(found) for name, found in rounds.items()}
            for name, found in middle.items():
                if not found:
                    print(f"| {protocol} | {clients} | {name} | failed | | | | | |")
                    continue
                micros = [row[0] for row in rounds[name]]
                to = lambda peer: f"{found[0] / middle[peer][0]:.2f}" if middle[peer] and found[0] else ""
                print(f"| {protocol} | {clients} | {name} | {found[0]:.1f} "
                      f"| {min(micros):.1f}–{max(micros):.1f} | {found[1]:.1f} | {found[2]:.0f} "
                      f"| {to('pgbouncer')} | {to('relay')} |", flush=True)
            if middle["howdah"] and middle["pgbouncer"]:
                ratios.append(middle["howdah"][0] / middle["pgbouncer"][0])
    if ratios:
        print(f"\nhowdah to pgbouncer: median over cells {statistics.median(ratios):.2f}, worst {max(ratios):.2f}")


def capture(bench):
    """Processor time per transaction with and without capturing: of the data-plane threads, and of the whole process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="howdah-bench-capture-"))
    commands = {}
    for name, more in [("off", ""), ("on", f"capture = {{ path = '{folder}', start = true }}")]:
        file = folder / f"{name}.toml"
        file.write_text(toml(more))
        commands[name] = [bench.options.howdah, "pool", "-c", file, "--workers", 1]
    ratios = {"workers": [], "process": []}
    print("| protocol | clients | workers off | on | more | process off | on | more |\n|" + "---|" * 8)
    for protocol in ["simple", "extended", "prepared"]:
        for clients in bench.sizes[:2]:
            each = 1 + max(8, 40_000 // clients)
            def measure(name):
                with Pooler(commands[name]) as pooler:
                    spent = []
                    for count in (1, 1, each):
                        if not pooler.pgbench("-c", clients, "-j", 2, "-t", count, "-M", protocol):
                            return report_failure(name, pooler)
                        time.sleep(1.5)  # buffered traffic is handed over to the writer
                        spent.append((pooler.thread_nanos("worker-"), pooler.thread_nanos("")))
                    # Writing the rest at shutdown is part of the cost of the capture.
                    spent[-1] = (spent[-1][0], spent[-1][1] + pooler.shutdown_nanos())
                per = lambda at: (spent[2][at] - spent[1][at] - (spent[1][at] - spent[0][at])) / 1000 / ((each - 1) * clients)
                return per(0), per(1)
            middle = median_by_name(bench, commands, measure)
            if not all(middle.values()):
                print(f"| {protocol} | {clients} | failed | | | | | |")
                continue
            cells = []
            for at, what in enumerate(ratios):
                off, on = middle["off"][at], middle["on"][at]
                ratios[what].append(on / off)
                cells.append(f"{off:.2f} | {on:.2f} | {100 * (on / off - 1):+.1f} %")
            print(f"| {protocol} | {clients} | {' | '.join(cells)} |", flush=True)
    for what, found in ratios.items():
        if found:
            print(f"\n{what}: median {100 * (statistics.median(found) - 1):+.1f} %, worst {100 * (max(found) - 1):+.1f} %")
    shutil.rmtree(folder, ignore_errors=True)


def mirror(bench):
    """Throughput, and processor time per transaction of the data-plane threads: without a mirror, with every client
    mirrored to another database of the same server, and with a mirror that accepts connections but never replies."""
    bench.server.query("drop database if exists mirror")
    bench.server.query("create database mirror template postgres")
    silent = socket.create_server(("127.0.0.1", 0), backlog=1000)  # the kernel accepts for it
    folder = pathlib.Path(tempfile.mkdtemp(prefix="howdah-bench-mirror-"))
    place = "[[pool.databases.postgres.mirrors]]\nhost = '127.0.0.1'\n"
    mirrors = {
        "none": "",
        "mirrored": f"{place}port = {PORT}\ndbname = 'mirror'\nclient-bytes = 10000000\n",
        "silent": f"{place}port = {silent.getsockname()[1]}\n",
    }
    commands = {}
    for name, more in mirrors.items():
        file = folder / f"{name}.toml"
        file.write_text(toml("") + more)
        commands[name] = [bench.options.howdah, "pool", "-c", file, "--workers", 1]
    print("| protocol | clients | µs none | mirrored | silent | tps none | mirrored | silent |\n|" + "---|" * 8)
    for protocol in ["simple", "extended", "prepared"]:
        for clients in bench.sizes[:2]:
            each = 1 + max(8, 40_000 // clients)
            def measure(name):
                with Pooler(commands[name]) as pooler:
                    spent = []
                    for count in (1, 1, each):
                        if not pooler.pgbench("-c", clients, "-j", 2, "-t", count, "-M", protocol):
                            return report_failure(name, pooler)
                        time.sleep(0.5)  # buffered transactions are run on the mirror
                        spent.append(pooler.thread_nanos("worker-"))
                    tps = pooler.throughput()
                return (spent[2] - spent[1] - (spent[1] - spent[0])) / 1000 / ((each - 1) * clients), tps
            middle = median_by_name(bench, commands, measure)
            if not all(middle.values()):
                print(f"| {protocol} | {clients} | failed | | | | | |")
                continue
            cells = [f"{middle[name][0]:.2f}" for name in mirrors] + [f"{middle[name][1]:.0f}" for name in mirrors]
            print(f"| {protocol} | {clients} | {' | '.join(cells)} |", flush=True)
    silent.close()
    shutil.rmtree(folder, ignore_errors=True)


def latency(bench):
    """Latency as 1,000 clients of a full pool see it, from pgbench's log of every transaction."""
    commands = {name: command for name, command in bench.commands(settings(bench.server)).items() if name != "direct"}
    print("| 1,000 clients, simple | p50 ms | p90 ms | p99 ms | tps |\n|" + "---|" * 5)

    def measure(name):
        with Pooler(commands[name]) as pooler, tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder) / "log"
            pooler.pgbench("-c", 100, "-j", 2, "-t", 20, "-M", "simple")  # its pool is full from now on
            done = pooler.pgbench("-c", 1000, "-j", 2, "-t", 30, "-M", "simple", "-l", f"--log-prefix={prefix}")
            if not done:
                return report_failure(name, pooler)
            times = sorted(int(line.split()[2]) for file in pathlib.Path(folder).iterdir() for line in open(file))
        at = lambda share: times[int(len(times) * share)] / 1000
        return at(0.5), at(0.9), at(0.99), pooler.throughput()
    for name, found in median_by_name(bench, commands, measure).items():
        print(f"| {name} | " + (" | ".join(f"{it:.1f}" for it in found) if found else "failed | | | ") + " |", flush=True)


def syscalls(bench):
    """System calls per warm transaction: the difference between a longer and a shorter run."""
    if not shutil.which("strace"):
        return print("strace is not installed: no system calls are counted")
    commands = bench.commands(settings(bench.server))
    socket_calls = {"read", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg"}
    print("| protocol | clients | pooler | socket calls/tx | epoll_wait/tx | others/tx | which |\n|" + "---|" * 7)
    for protocol in ["simple", "extended", "prepared"]:
        for clients in [16, 128]:
            for name in ["relay", "pgbouncer", "howdah"]:
                with Pooler(commands[name]) as pooler:
                    short, long = 1024 // clients, 6144 // clients
                    few, many = (traced(pooler, clients, protocol, each) for each in (short, long))
                done = (long - short) * clients
                per = {call: (many[call] - few.get(call, 0)) / done for call in many}
                sockets = sum(count for call, count in per.items() if call in socket_calls)
                waits = sum(count for call, count in per.items() if re.match("epoll_p?wait", call))
                which = ", ".join(f"{call} {count:.2f}" for call, count in sorted(per.items(), key=lambda it: -it[1])
                                  if abs(count) >= 0.005)
                print(f"| {protocol} | {clients} | {name} | {sockets:.2f} | {waits:.2f} "
                      f"| {sum(per.values()) - sockets - waits:.2f} | {which} |", flush=True)


def traced(pooler, clients, protocol, each, *more):
    """The pooler's system calls during a run of pgbench, by name."""
    with tempfile.NamedTemporaryFile("r") as counts:
        trace = subprocess.Popen(["strace", "-fc", "-o", counts.name, "-p", str(pooler.process.pid)],
                                 stderr=subprocess.PIPE, text=True)
        trace.stderr.readline()  # "Process … attached"
        done = pooler.pgbench("-c", clients, "-j", 2, "-t", each, "-M", protocol, *more)
        trace.terminate()
        trace.communicate()
        if not done:
            raise SystemExit(pooler.report)
        rows = (line.split() for line in counts.read().splitlines() if re.match(r"\s*[\d.]+\s", line))
        return {row[-1]: int(row[3]) for row in rows if row[-1] != "total"}


def instructions(bench):
    """User instructions per warm transaction by callgrind: the difference between a longer and a shorter run."""
    if not shutil.which("valgrind"):
        return print("valgrind is not installed: no instructions are counted")
    ini, clients, short, long = settings(bench.server), 16, 20, 100
    binaries = {"howdah": bench.options.howdah, **({"baseline": bench.options.baseline} if bench.options.baseline else {})}
    print("| protocol | clients | pooler | instructions/tx | to baseline |\n|" + "---|" * 5)
    for protocol in ["simple", "extended", "prepared"]:
        per = {}
        for name, binary in binaries.items():
            few, many = (simulated([binary, "pool", "-c", ini, "--workers", 1], clients, protocol, each) for each in (short, long))
            per[name] = (many - few) / ((long - short) * clients)
        for name, count in per.items():
            ratio = f"{count / per['baseline']:.3f}" if "baseline" in per else ""
            print(f"| {protocol} | {clients} | {name} | {count:.0f} | {ratio} |", flush=True)


def simulated(command, clients, protocol, each):
    """Instructions of a pooler process from start to end, with one run of pgbench."""
    with tempfile.NamedTemporaryFile("r") as log:
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--log-file={log.name}"]
        with Pooler([*valgrind, *command], start_timeout=60) as pooler:
            if not pooler.pgbench("-c", clients, "-j", 2, "-t", each, "-M", protocol):
                raise SystemExit(pooler.report)
            pooler.process.terminate()
            pooler.process.wait()
        found = re.search(r"Collected : (\d+)", log.read())
        if not found:
            raise SystemExit("callgrind printed no instruction count")
        return int(found[1])


def connections(bench):
    """Processor time and system calls per new connection: a login, one query, and the end."""
    users = {"scram-sha-256": "bench", "md5": "bench_md5", "trust": "postgres"}
    print("| pgbench -C, 16 clients | log | pooler | µs/connection | range | user | connections/s | to pgbouncer | calls | which |\n|"
          + "---|" * 10)
    for auth, logged in [("scram-sha-256", False), ("scram-sha-256", True), ("md5", False), ("trust", False)]:
        # Both write a line when a client logs in and another when it leaves, to a file; or both write none.
        log = bench.server.home / "pgbouncer.log"
        log.touch(mode=0o666)
        log.chmod(0o666)
        more = f"logfile = {log}\n" if logged else "log_connections = 0\nlog_disconnections = 0\n"
        commands = bench.commands(settings(bench.server, auth=auth, more=more))
        each = 25 if bench.options.quick else 250

        def pooler(name):
            return Pooler(commands[name], user=users[auth], log=open(bench.server.home / "howdah.log", "w"))

        def measure(name):
            with pooler(name) as it:
                if not it.pgbench("-C", "-c", 16, "-j", 2, "-t", 4):  # opens its servers
                    return report_failure(name, it)
                before, start = it.cpu_time(), time.monotonic()
                done = it.pgbench("-C", "-c", 16, "-j", 2, "-t", each)
                after, seconds = it.cpu_time(), time.monotonic() - start
            if not done:
                return report_failure(name, it)
            user, system, nanos = (b - a for a, b in zip(before, after))
            micros = nanos / 1000 / done
            return micros, micros * user / max(1, user + system), done / seconds

        rounds = rounds_by_name(bench, ["pgbouncer", "howdah"], measure)
        middle = {name: medians(found) for name, found in rounds.items()}
        for name, found in middle.items():
            if not found:
                print(f"| {auth} | {logged} | {name} | failed | | | | | | |")
                continue
            with pooler(name) as it:
                calls, which = calls_per_login(it)
            micros = [row[0] for row in rounds[name]]
            ratio = f"{found[0] / middle['pgbouncer'][0]:.2f}" if middle["pgbouncer"] else ""
            print(f"| {auth} | {'yes' if logged else 'no'} | {name} | {found[0]:.1f} | {min(micros):.1f}–{max(micros):.1f} "
                  f"| {found[1]:.1f} | {found[2]:.0f} | {ratio} | {calls:.1f} | {which} |", flush=True)


def calls_per_login(pooler):
    """System calls per new connection, and each that is made more than once in ten connections."""
    if not shutil.which("strace"):
        return 0, "strace is not installed"
    few, many = (traced(pooler, 8, "simple", each, "-C") for each in (4, 44))
    per = {call: (many[call] - few.get(call, 0)) / (40 * 8) for call in many}
    return sum(per.values()), ", ".join(f"{call} {count:.2f}" for call, count in sorted(per.items(), key=lambda it: -it[1])
                                        if count >= 0.1)


def local(bench):
    """Server connections by TCP and by the unix socket of the same server (`local-socket`)."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="howdah-bench-local-"))
    commands = {}
    for name, more in [("TCP", ""), ("socket", f"local-socket = '{bench.server.home}'\n")]:
        file = folder / f"{name}.toml"
        file.write_text(toml("", more))
        commands[name] = [bench.options.howdah, "pool", "-c", file, "--workers", 1]
    print("| protocol | clients | µs/tx TCP | socket | ratio | tps TCP | socket | p50 ms TCP | socket | p99 ms TCP | socket |\n|"
          + "---|" * 11)
    for protocol in ["simple", "extended", "prepared"]:
        for clients in bench.sizes[:2]:
            each = 1 + max(8, 40_000 // clients)
            def measure(name):
                with Pooler(commands[name]) as pooler, tempfile.TemporaryDirectory() as logs:
                    spent = []
                    for count in (1, 1, each):
                        log = ["-l", f"--log-prefix={logs}/log"] if count == each else []
                        if not pooler.pgbench("-c", clients, "-j", 2, "-t", count, "-M", protocol, *log):
                            return report_failure(name, pooler)
                        spent.append(pooler.cpu_time()[2])
                    times = sorted(int(line.split()[2]) for file in pathlib.Path(logs).iterdir() for line in open(file))
                    at = lambda share: times[int(len(times) * share)] / 1000
                    micros = (spent[2] - spent[1] - (spent[1] - spent[0])) / 1000 / ((each - 1) * clients)
                    return micros, pooler.throughput(), at(0.5), at(0.99)
            middle = median_by_name(bench, commands, measure)
            if not all(middle.values()):
                print(f"| {protocol} | {clients} | failed | | | | | | | | |")
                continue
            tcp, unix = middle["TCP"], middle["socket"]
            print(f"| {protocol} | {clients} | {tcp[0]:.2f} | {unix[0]:.2f} | {unix[0] / tcp[0]:.2f} | {tcp[1]:.0f} | {unix[1]:.0f} "
                  f"| {tcp[2]:.2f} | {unix[2]:.2f} | {tcp[3]:.2f} | {unix[3]:.2f} |", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


def workers(bench):
    """One to four workers, 32 clients, pools of 20 and of 8: processor time, instructions, and what workers do for each other."""
    print("| pool | workers | µs/tx | user | tps | instructions/tx | epoll_ctl/tx | eventfd writes/tx | handovers/tx |\n|" + "---|" * 9)
    clients, each = 32, 40 if bench.options.quick else 1000
    for size in (20, 8):
        ini = settings(bench.server)
        ini.write_text(ini.read_text().replace("default_pool_size = 20", f"default_pool_size = {size}"))
        commands = {str(n): [bench.options.howdah, "pool", "-c", ini, "--workers", n] for n in (1, 2, 4)}
        def measure(name):
            with Pooler(commands[name]) as pooler:
                spent = []
                for count in (20, each):  # the first opens its servers
                    if not pooler.pgbench("-c", clients, "-j", 2, "-t", count, "-M", "prepared"):
                        return report_failure(name, pooler)
                    spent.append(pooler.cpu_time())
            user, system, nanos = (b - a for a, b in zip(*spent))
            micros = nanos / 1000 / (each * clients)
            return micros, micros * user / max(1, user + system), pooler.throughput()
        middle = median_by_name(bench, commands, measure)
        for name, found in middle.items():
            count = "not measured"
            if shutil.which("valgrind"):
                few, many = (simulated(commands[name], clients, "prepared", it) for it in (20, 60))
                count = f"{(many - few) / (40 * clients):.0f}"
            calls = {}
            if shutil.which("strace"):
                with Pooler(commands[name]) as pooler:
                    pooler.pgbench("-c", clients, "-j", 2, "-t", 100, "-M", "prepared")
                    few, many = (traced(pooler, clients, "prepared", it) for it in (20, 220))
                calls = {call: (many[call] - few.get(call, 0)) / (200 * clients) for call in many}
            # A handed-over server is removed from one epoll set and added to another.
            control, writes = calls.get("epoll_ctl", 0), calls.get("write", 0)
            print(f"| {size} | {name} | {found[0]:.1f} | {found[1]:.1f} | {found[2]:.0f} | {count} "
                  f"| {control:.4f} | {writes:.4f} | {control / 2:.4f} |", flush=True)


def idle(bench):
    """Memory per idle client."""
    most = raise_descriptor_limit()
    clients = min(10_000, most - 1000)
    commands = bench.commands(settings(bench.server))
    print(f"| {clients} idle clients | base MB | logged in MB | after a query each MB | bytes per client |\n|" + "---|" * 5)
    for name in ["pgbouncer", "howdah"]:
        with Pooler(commands[name]) as pooler:
            first = log_in()
            query(first, "select 1")
            base = pooler.resident_kib()
            # Half of the ephemeral ports of one address.
            clients_open = [log_in() for _ in range(clients)]
            inside = pooler.resident_kib()
            for client in clients_open:
                query(client, "select 1")
            after = pooler.resident_kib()
            for client in [first, *clients_open]:
                client.close()
        print(f"| {name} | {base / 1024:.1f} | +{(inside - base) / 1024:.1f} | +{(after - base) / 1024:.1f} "
              f"| {(after - base) * 1024 // clients} |", flush=True)


def stalled(bench):
    """Memory while a client does not read its result of 10 GB."""
    commands = bench.commands(settings(bench.server))
    print("| a client that stops reading | base MB | stalled MB |\n|" + "---|" * 3)
    for name in ["pgbouncer", "howdah"]:
        with Pooler(commands[name]) as pooler:
            client = log_in()
            query(client, "select 1")
            base = pooler.resident_kib()
            rows = "select repeat('x', 1000) from generate_series(1, 10000) a, generate_series(1, 1000) b"
            send(client, rows)
            client.recv(1 << 20)
            while bench.server.query("select count(*) from pg_stat_activity where wait_event = 'ClientWrite'") != "1":
                time.sleep(0.1)
            print(f"| {name} | {base / 1024:.1f} | {pooler.resident_kib() / 1024:.1f} |", flush=True)
            client.close()


def log_in():
    """A trusted client without a driver, so that ten thousand fit into this process."""
    client = socket.create_connection(("127.0.0.1", POOL_PORT))
    body = struct.pack("!i", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
    client.sendall(struct.pack("!i", len(body) + 4) + body)
    until_ready(client)
    return client


def send(client, sql):
    body = sql.encode() + b"\0"
    client.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)


def query(client, sql):
    send(client, sql)
    until_ready(client)


def until_ready(client):
    received = b""
    while not (len(received) >= 6 and received[-6:-1] == b"Z\0\0\0\x05"):
        some = client.recv(65536)
        if not some:
            raise SystemExit(f"the pooler closed the connection: {received!r}")
        received += some


SECTIONS = {it.__name__: it for it in [transactions, capture, mirror, latency, syscalls, instructions, connections, workers, local, idle, stalled, balance]}
