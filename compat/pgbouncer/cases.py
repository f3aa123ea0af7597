"""The cases: what is done with each of the two poolers, and what is compared."""
import os, pathlib, re, signal, ssl, subprocess, time, typing

from client import Client
from poolers import PASSWORD, free_port, wait_until

BASE = {
    "listen_addr": "127.0.0.1", "listen_port": "@PORT@", "unix_socket_dir": "@HOME@", "auth_type": "trust",
    "auth_file": "userlist.txt", "admin_users": "dba", "stats_users": "stat", "server_tls_sslmode": "disable",
}


class Case(typing.NamedTuple):
    area: str
    name: str
    run: typing.Callable
    ini: str
    args: tuple
    files: dict
    wait: bool


CASES = []


def ini(keys=None, databases="", users="", more=""):
    """A pgbouncer.ini: BASE, changed by `keys`, where None removes a key."""
    merged = {**BASE, **(keys or {})}
    lines = [f"{key} = {value}" for key, value in merged.items() if value is not None]
    shop = "" if databases.startswith("shop ") else "shop = host=127.0.0.1 port=@SERVER@\n"
    return (f"[databases]\n{shop}{databases}\n[users]\n{users}\n[pgbouncer]\n" + "\n".join(lines) + f"\n{more}\n")


def case(area, name, keys=None, databases="", users="", args=(), files=(), wait=True, text=None):
    def add(run):
        CASES.append(Case(area, name, run, text or ini(keys, databases, users), tuple(args), dict(files), wait))
        return run
    return add


def started(pooler):
    """Whether the pooler runs."""
    if pooler.process.poll() is None:
        return "runs"
    return "does not start"


def by_key(rows, key):
    return {row[key]: row for row in rows}


def cells(rows, *names):
    return [" | ".join(str(row.get(name, "(no such column)")) for name in names) for row in rows]


# ---- keys of the ini -------------------------------------------------------------------------------------------------

KEYS = {  # key: (another valid value, invalid values)
    "admin_users": ("dba,root", []), "application_name_add_host": ("1", ["x"]), "auth_dbname": ("shop", []),
    "auth_file": ("userlist.txt", []), "auth_hba_file": ("hba.conf", []), "auth_ident_file": ("ident.conf", []),
    "auth_ldap_options": ("ldapserver=localhost", []), "auth_query": ("select 1, $1", []), "auth_type": ("plain", ["x"]),
    "auth_user": ("ann", []), "autodb_idle_timeout": ("60", ["x", "-1"]), "cancel_wait_timeout": ("7", ["x"]),
    "client_idle_timeout": ("50", ["x"]), "client_login_timeout": ("30.5", ["x"]),
    "client_tls13_ciphers": ("TLS_AES_256_GCM_SHA384", []), "client_tls_ca_file": ("", []),
    "client_tls_cert_file": ("", []), "client_tls_ciphers": ("HIGH:!aNULL", []), "client_tls_dheparams": ("auto", []),
    "client_tls_ecdhcurve": ("auto", []), "client_tls_key_file": ("", []), "client_tls_protocols": ("all", []),
    "client_tls_sslmode": ("disable", ["x"]), "conffile": (None, []), "default_pool_size": ("7", ["x", "7 x"]),
    "disable_pqexec": ("0", ["x"]), "dns_max_ttl": ("5", ["x"]), "dns_nxdomain_ttl": ("6", ["x"]),
    "dns_zone_check_period": ("0", ["x"]), "idle_transaction_timeout": ("8", ["x"]),
    "ignore_startup_parameters": ("extra_float_digits", []), "job_name": ("pool", []), "listen_addr": ("127.0.0.1", []),
    "listen_backlog": ("64", ["x"]), "listen_port": (None, ["x"]), "log_connections": ("0", ["x"]),
    "log_disconnections": ("0", ["x"]), "log_pooler_errors": ("0", ["x"]), "log_stats": ("0", ["x"]),
    "logfile": ("pool.log", []), "max_client_conn": ("50", ["x"]), "max_db_client_connections": ("40", ["x"]),
    "max_db_connections": ("30", ["x"]), "max_packet_size": ("1000000", ["x"]), "max_prepared_statements": ("9", ["x"]),
    "max_user_client_connections": ("33", ["x"]), "max_user_connections": ("22", ["x"]), "min_pool_size": ("1", ["x"]),
    "peer_id": ("0", ["x"]), "pidfile": ("pool.pid", []), "pkt_buf": ("8192", ["x"]), "pool_mode": ("transaction", ["x"]),
    "query_timeout": ("90", ["x"]), "query_wait_notify": ("4", ["x"]), "query_wait_timeout": ("80", ["x"]),
    "reserve_pool_size": ("2", ["x"]), "reserve_pool_timeout": ("3", ["x"]), "resolv_conf": ("", []),
    "sbuf_loopcnt": ("6", ["x"]), "scram_iterations": ("5000", ["x"]), "server_check_delay": ("20", ["x"]),
    "server_check_query": ("select 1", []), "server_connect_timeout": ("11", ["x"]), "server_fast_close": ("1", ["x"]),
    "server_idle_timeout": ("300", ["x"]), "server_lifetime": ("1200", ["x"]), "server_login_retry": ("4", ["x"]),
    "server_reset_query": ("DISCARD TEMP", []), "server_reset_query_always": ("1", ["x"]),
    "server_round_robin": ("1", ["x"]), "server_tls13_ciphers": ("TLS_AES_128_GCM_SHA256", []),
    "server_tls_ca_file": ("", []), "server_tls_cert_file": ("", []), "server_tls_ciphers": ("HIGH", []),
    "server_tls_key_file": ("", []), "server_tls_protocols": ("tlsv1.2", []), "server_tls_sslmode": ("allow", ["x"]),
    "so_reuseport": ("0", ["x"]), "stats_period": ("30", ["x"]), "stats_users": ("stat", []),
    "suspend_timeout": ("12", ["x"]), "syslog": ("0", ["x"]), "syslog_facility": ("local0", []),
    "syslog_ident": ("pool", []), "tcp_defer_accept": ("0", ["x"]), "tcp_keepalive": ("0", ["x"]),
    "tcp_keepcnt": ("3", ["x"]), "tcp_keepidle": ("60", ["x"]), "tcp_keepintvl": ("9", ["x"]),
    "tcp_socket_buffer": ("65536", ["x"]), "tcp_user_timeout": ("5000", ["x"]),
    "track_extra_parameters": ("search_path", []), "transaction_timeout": ("70", ["x"]), "unix_socket_dir": ("@HOME@", []),
    "unix_socket_group": ("", []), "unix_socket_mode": ("0770", ["x"]), "user": (None, []), "verbose": ("0", ["x"]),
}


@case("keys", "defaults in SHOW CONFIG")
def _(pooler):
    rows = by_key(pooler.console().rows("show config"), "key")
    shown = {key: cells([rows[key]], "value", "default", "changeable") if key in rows else "not shown" for key in KEYS}
    return {f"{key}: default" if key not in BASE else f"{key}: shown": value for key, value in shown.items()}


@case("keys", "values in SHOW CONFIG", {key: value for key, (value, _) in KEYS.items()
                                       if value is not None and key not in ("auth_hba_file", "auth_ident_file")})
def _(pooler):
    if started(pooler) != "runs":
        return started(pooler)
    rows = by_key(pooler.socket_client("pgbouncer", "pgbouncer").rows("show config"), "key")
    return {f"{key}: another value": cells([rows[key]], "value") if key in rows else "not shown"
            for key, (value, _) in KEYS.items() if value is not None}


for key, (_, invalid) in KEYS.items():
    for value in invalid:
        case("keys", f"{key} = {value}", {key: value})(started)
case("keys", "unknown key", {"no_such_key": "1"})(started)
case("keys", "value of 2000 bytes", {"server_reset_query": "select '" + "a" * 2000 + "'"})(started)
case("keys", "key twice: the last counts", text=ini() + "default_pool_size = 3\ndefault_pool_size = 4\n")(
    lambda pooler: cells([row for row in pooler.console().rows("show config") if row["key"] == "default_pool_size"], "value"))
case("keys", "spaces and comments", text=ini() + "  default_pool_size=3   \n; a comment\n# another\n")(
    lambda pooler: cells([row for row in pooler.console().rows("show config") if row["key"] == "default_pool_size"], "value"))
case("keys", "unknown section", text=ini() + "\n[more]\na = b\n")(started)
case("keys", "line without =", text=ini() + "\nnonsense\n")(started)
case("keys", "%include", text=ini() + "\n%include more.ini\n", files={"more.ini": "default_pool_size = 3\n"})(
    lambda pooler: cells([row for row in pooler.console().rows("show config") if row["key"] == "default_pool_size"], "value"))
case("keys", "%include of a missing file", text=ini() + "\n%include none.ini\n")(started)
case("keys", "listen_addr left out: no TCP", {"listen_addr": None})(
    lambda pooler: [started(pooler), *pooler.socket_client("ann", "shop").login])
case("keys", "auth_file that is missing", {"auth_file": "none.txt"})(
    lambda pooler: [started(pooler), *(pooler.client().login if started(pooler) == "runs" else [])])
case("keys", "unix_socket_mode", {"unix_socket_mode": "0700"})(
    lambda pooler: oct((pooler.home / f".s.PGSQL.{pooler.port}").stat().st_mode & 0o777))
case("keys", "application_name_add_host", {"application_name_add_host": "1"})(
    lambda pooler: [re.sub(r":\d+", ":port", line) for line in
                    pooler.client(application_name="app").query("show application_name")])
case("keys", "server_check_query fails", {"server_check_query": "select 1/0", "server_check_delay": "0",
                                          "pool_mode": "transaction"})(
    lambda pooler: (lambda client: [*client.query("select 1"), *client.query("select 2")])(pooler.client()))
case("keys", "server_reset_query in session mode", {"default_pool_size": "1"})(
    lambda pooler: session_state(pooler, "set work_mem = '9MB'", "show work_mem"))
case("keys", "server_reset_query left empty", {"server_reset_query": "", "default_pool_size": "1"})(
    lambda pooler: session_state(pooler, "set work_mem = '9MB'", "show work_mem"))
case("keys", "server_reset_query_always", {"server_reset_query_always": "1", "pool_mode": "transaction",
                                           "default_pool_size": "1"})(
    lambda pooler: session_state(pooler, "set work_mem = '9MB'", "show work_mem"))
case("keys", "track_extra_parameters", {"track_extra_parameters": "IntervalStyle", "pool_mode": "transaction",
                                        "default_pool_size": "1"})(
    lambda pooler: session_state(pooler, "set intervalstyle = 'iso_8601'", "show intervalstyle"))
case("keys", "max_packet_size: too long a query", {"max_packet_size": "1000"})(
    lambda pooler: pooler.client().query("select '" + "a" * 2000 + "'"))
case("keys", "disable_pqexec", {"disable_pqexec": "1"})(lambda pooler: pooler.client().query("select 1"))
case("keys", "login_notify_message", {"login_notify_message": "maintenance tonight"})(started)
case("keys", "ignore_startup_parameters", {"ignore_startup_parameters": "extra_float_digits"})(
    lambda pooler: pooler.client(extra_float_digits="2").login)
case("keys", "ignore_startup_parameters = options", {"ignore_startup_parameters": "options"})(
    lambda pooler: pooler.client(options="-c work_mem=9MB").login)
case("keys", "transaction mode: SET survives on the same server", {"pool_mode": "transaction", "default_pool_size": "1"})(
    lambda pooler: session_state(pooler, "set work_mem = '9MB'", "show work_mem"))


def session_state(pooler, change, look):
    first = pooler.client()
    first.query(change)
    first.close()
    return pooler.client().query(look)


def closes(pooler):
    first = pooler.client()
    before = first.query("select 1")
    pooler.console().query("reconnect shop")
    return [*before, *(first.read_until_closed() if pooler.home and first.socket.settimeout(4) is None else [])]


case("keys", "server_fast_close: RECONNECT in session mode", {"server_fast_close": "1"})(closes)
case("keys", "server_fast_close = 0: RECONNECT in session mode")(closes)

# ---- [databases], [users], userlist ----------------------------------------------------------------------------------

DATABASE = "x = host=127.0.0.1 port=@SERVER@ dbname=shop"
for key, value, sql in [
    ("client_encoding", "latin1", "show client_encoding"), ("datestyle", "German", "show datestyle"),
    ("timezone", "Asia/Tokyo", "show timezone"), ("application_name", "batch", "show application_name"),
    ("connect_query", "'set work_mem = \"\"9MB\"\"'".replace('""', "''"), "show work_mem"),
    ("user", "bob", "select current_user"), ("auth_user", "postgres", "select 1"), ("pool_mode", "statement", "begin"),
    ("pool_mode", "transaction", "begin"), ("host", "127.0.0.1,127.0.0.1", "select 1"),
    ("load_balance_hosts", "disable", "select 1"), ("server_lifetime", "100", "select 1"),
]:
    case("databases", f"{key}={value}", databases=f"{DATABASE} {key}={value}")(
        lambda pooler, sql=sql: (lambda client: [*client.login, *client.query(sql)])(pooler.client(database="x")))
for key, value in [("pool_size", "3"), ("min_pool_size", "2"), ("reserve_pool", "2"), ("reserve_pool_size", "2"),
                   ("max_db_connections", "5"), ("max_db_client_connections", "6"), ("server_lifetime", "77"),
                   ("pool_mode", "transaction"), ("user", "bob"), ("host", "127.0.0.1,127.0.0.2"),
                   ("load_balance_hosts", "disable"), ("auth_dbname", "shop"), ("auth_query", "'select 1'")]:
    case("databases", f"{key}={value} in SHOW DATABASES", databases=f"{DATABASE} {key}={value}")(
        lambda pooler: [line for line in pooler.console().query("show databases") if line.startswith("row: x ")])
for key, value in [("pool_size", "x"), ("port", "x"), ("pool_mode", "x"), ("load_balance_hosts", "x"), ("nonsense", "1"),
                   ("server_lifetime", "x"), ("max_db_connections", "x")]:
    case("databases", f"{key}={value}", databases=f"{DATABASE} {key}={value}")(started)
case("databases", "name pgbouncer", databases="pgbouncer = host=127.0.0.1")(started)
case("databases", "*", databases="* = host=127.0.0.1 port=@SERVER@")(
    lambda pooler: [*pooler.client(database="template1").query("select current_database()"),
                    *cells(pooler.console().rows("show databases"), "name", "database", "host")])
case("databases", "* with a database that the server does not have", databases="* = host=127.0.0.1 port=@SERVER@")(
    lambda pooler: pooler.client(database="none").login)
case("databases", "quoted name", databases='"my shop" = host=127.0.0.1 port=@SERVER@ dbname=shop')(
    lambda pooler: [started(pooler), *(pooler.client(database="my shop").login if started(pooler) == "runs" else [])])
case("databases", "password with spaces", databases=f"x = host=127.0.0.1 port=@SERVER@ dbname=shop user=scott "
     f"password='{PASSWORD}'")(lambda pooler: pooler.client(database="x").query("select current_user"))
case("databases", "wrong password for the server", databases="x = host=127.0.0.1 port=@SERVER@ dbname=shop user=scott "
     "password=wrong")(lambda pooler: pooler.client(database="x").login)
PEERS = "\n[peers]\n2 = host=127.0.0.1\n1 = host=/tmp port=5555 pool_size=3\n"
case("databases", "peers section without peer_id", text=ini() + PEERS)(
    lambda pooler: [started(pooler), *pooler.console().query("show peers")])
case("databases", "peers section", text=ini({"peer_id": "7"}) + PEERS)(
    lambda pooler: [started(pooler), *cells(pooler.console().rows("show peers"), "peer_id", "host", "port"),
                    *(row for row in pooler.console().query("show lists") if "| peers" in row or ": peers " in row)])
case("databases", "peers section: pool_size", text=ini({"peer_id": "7"}) + PEERS)(
    lambda pooler: cells(pooler.console().rows("show peers"), "peer_id", "pool_size"))
for entry in ["0 = host=127.0.0.1", "x = host=127.0.0.1", "1 = port=6432", "1 = host=127.0.0.1 port=x",
              "1 = host=127.0.0.1 dbname=x", "70000 = host=127.0.0.1"]:
    case("databases", f"peers section: {entry}", text=ini({"peer_id": "7"}) + f"\n[peers]\n{entry}\n")(started)
for key, value in [("pool_mode", "transaction"), ("pool_size", "3"), ("reserve_pool_size", "3"),
                   ("max_user_connections", "4"), ("max_user_client_connections", "5"), ("query_timeout", "3"),
                   ("transaction_timeout", "3"), ("idle_transaction_timeout", "3"), ("client_idle_timeout", "3")]:
    case("users", f"{key}={value} in SHOW USERS", users=f"ann = {key}={value}")(
        lambda pooler: [line for line in pooler.console().query("show users") if line.startswith("row: ann ")])
case("users", "unknown key", users="ann = nonsense=1")(started)
case("users", "pool_mode=x", users="ann = pool_mode=x")(started)
case("users", "user that auth_file lacks", users="ghost = pool_size=1")(
    lambda pooler: pooler.client("ghost").login)
case("users", "pool_mode=transaction has an effect", users="ann = pool_mode=transaction")(
    lambda pooler: (lambda client: [client.query("select 1"), cells(
        pooler.console().rows("show pools"), "database", "user", "pool_mode", "sv_active", "sv_idle")])(pooler.client()))
case("userlist", "plain password with md5", {"auth_type": "md5"})(lambda pooler: pooler.client("pat", password=PASSWORD).login)
case("userlist", "SCRAM secret", {"auth_type": "scram-sha-256"})(
    lambda pooler: pooler.client("scott", password=PASSWORD).query("select current_user"))
case("userlist", "plain password with SCRAM", {"auth_type": "scram-sha-256"})(
    lambda pooler: pooler.client("mia", password=PASSWORD).query("select current_user"))
case("userlist", "line without quotes", text=ini({"auth_file": "list.txt"}), files={"list.txt": "ann secret\n"})(
    lambda pooler: [started(pooler), *(pooler.client().login if started(pooler) == "runs" else [])])
case("userlist", "comment and empty lines", text=ini({"auth_file": "list.txt"}),
     files={"list.txt": '; comment\n\n"ann" ""\n"dba" ""\n'})(lambda pooler: pooler.client().login)
case("userlist", "doubled quotes", text=ini({"auth_file": "list.txt"}), files={"list.txt": '"a""b" ""\n"dba" ""\n'})(
    lambda pooler: pooler.client('a"b').login)
case("userlist", "third field is ignored", text=ini({"auth_file": "list.txt"}),
     files={"list.txt": '"ann" "" 1700000000\n"dba" ""\n'})(lambda pooler: pooler.client().login)

# ---- hba -------------------------------------------------------------------------------------------------------------

for name, rules, user in [
    ("trust", "host all all 127.0.0.1/32 trust", "ann"), ("reject", "host all all 127.0.0.1/32 reject", "ann"),
    ("no line matches", "host other all 127.0.0.1/32 trust", "ann"), ("empty file", "", "ann"),
    ("cert on a host line", "host all ann 127.0.0.1/32 cert\nhost all all 127.0.0.1/32 trust", "bob"),
    ("cert on a host line that matches", "host all ann 127.0.0.1/32 cert\nhost all all 127.0.0.1/32 trust", "ann"),
    ("hostssl without TLS", "hostssl all all 127.0.0.1/32 trust", "ann"),
    ("hostnossl", "hostnossl all all 127.0.0.1/32 trust", "ann"),
    ("unknown method before a good line", "host all ann 127.0.0.1/32 gss\nhost all all 127.0.0.1/32 trust", "ann"),
    ("invalid address", "host all ann nonsense trust\nhost all all 127.0.0.1/32 trust", "ann"),
    ("address and mask", "host all all 127.0.0.0 255.0.0.0 trust", "ann"), ("all addresses", "host all all all trust", "ann"),
    ("database in quotes", 'host "shop" all 127.0.0.1/32 trust', "ann"),
    ("list of users", "host all bob,ann 127.0.0.1/32 trust", "ann"), ("local only", "local all all trust", "ann"),
    ("peer on a host line", "host all all 127.0.0.1/32 peer", "ann"), ("replication", "host replication all 127.0.0.1/32 trust", "ann"),
    ("sameuser", "host sameuser all 127.0.0.1/32 trust", "ann"),
]:
    case("hba", name, {"auth_type": "hba", "auth_hba_file": "hba.conf"}, files={"hba.conf": rules + "\n"})(
        lambda pooler, user=user: [started(pooler), *(pooler.client(user).login if started(pooler) == "runs" else [])])
case("hba", "file that is missing", {"auth_type": "hba", "auth_hba_file": "none.conf"})(
    lambda pooler: [started(pooler), *(pooler.client().login if started(pooler) == "runs" else [])])
case("hba", "peer on a local line", {"auth_type": "hba", "auth_hba_file": "hba.conf"},
     files={"hba.conf": "local all all peer\n"})(lambda pooler: pooler.socket_client("postgres", "shop").login)

# ---- the console -----------------------------------------------------------------------------------------------------

COMMANDS = [
    "show version", "show help", "show", "show nonsense", "show databases extra", "select 1", "select", "begin", "commit",
    "rollback", "start transaction", "end", "abort", "BEGIN;", "", ";", "show datestyle", "show timezone",
    "show client_encoding", "show standard_conforming_strings", "show default_transaction_isolation",
    "show transaction_isolation", "show server_version", "show default_pool_size", "show work_mem",
    "set client_encoding = 'UTF8'", "set datestyle = 'ISO'", "set timezone to 'UTC'", "set extra_float_digits = 3",
    "set application_name = 'x'", "set standard_conforming_strings = on", "set client_min_messages to warning",
    "set default_transaction_isolation = 'read committed'", "set session characteristics as transaction read only",
    "set default_pool_size = 5", "set default_pool_size to '6'", "set default_pool_size = x", "set nonsense = 1",
    "set listen_port = 7", "set listen_addr = '*'", "set pool_mode = 'transaction'", "set verbose = 1", "set verbose = 0",
    "set", "set a", "set default_pool_size", "reload", "reload x", "pause", "resume", "pause shop", "resume shop",
    "pause none", "resume none", "resume shop x", "pause pgbouncer", "resume", "disable shop", "enable shop", "disable",
    "enable", "disable none", "enable none", "disable pgbouncer", "enable pgbouncer", "kill shop", "resume shop",
    "kill none", "kill pgbouncer", "kill_client 1234567", "kill_client x", "kill_client", "reconnect", "reconnect shop",
    "reconnect none", "reconnect pgbouncer", "wait_close", "wait_close shop", "wait_close none", "wait_close pgbouncer",
    "suspend", "resume", "shutdown nonsense", "nonsense", "drop table x", "show version; show version", "show \"version\"",
    "-- comment", "/* */ show version", "show   version ;", "discard all", "deallocate all", "savepoint a",
]


@case("console", "commands")
def _(pooler):
    results = {}
    for command in COMMANDS:
        console = pooler.console()
        lines = console.query(command)
        if any(line.startswith("columns") for line in lines) and "version" in command and "show" in command:
            lines = [line if not line.startswith("row") else "row: version" for line in lines]
        if command in ("show", "show help"):
            lines = [line.split("\n")[0].split(" | ")[:3] for line in lines]
        results[command or "(empty)"] = [re.sub(r"^error: ERROR \| \w+ \|", "error:", line) if isinstance(line, str)
                                         else line for line in lines]
        console.close()
    return results


case("console", "SQLSTATE of errors")(lambda pooler: [
    line.split(" | ")[1] for command in ["nonsense", "set nonsense = 1", "pause none", "resume"]
    for line in pooler.console().query(command)])


@case("console", "stats user")
def _(pooler):
    results = {}
    for command in ["show version", "show pools", "show fds", "reload", "pause", "kill", "set default_pool_size = 3",
                    "shutdown", "kill_client 1", "suspend", "set timezone = 'UTC'"]:
        console = pooler.console("stat")
        results[f"stats user: {command}"] = [re.sub(r"ERROR \| \w+ \|", "ERROR |", line.split("row")[0][:60])
                                             for line in console.query(command)]
    return results


case("console", "user without access")(lambda pooler: pooler.console("ann").login)
case("console", "user pgbouncer by TCP")(lambda pooler: pooler.console("pgbouncer").login)
case("console", "user pgbouncer by the unix socket, same uid")(
    lambda pooler: (lambda console: [*console.login, *console.query("show state")])(
        pooler.socket_client("pgbouncer", "pgbouncer")))
case("console", "parameters at login")(lambda pooler: sorted(
    f"{name}={re.sub('/.*', '', value) if name == 'server_version' else value}"
    for name, value in pooler.console().parameters.items()))
case("console", "extended protocol")(lambda pooler: pooler.console().extended("show version")[:2])
case("console", "any user with auth_type = any", {"auth_type": "any"})(
    lambda pooler: started(pooler) if started(pooler) != "runs" else [*pooler.console("dba").query("show state"), *pooler.console("stat").query("reload"),
                    *pooler.console("ann").login])
case("console", "PAUSE waits for a transaction", {"pool_mode": "transaction"})(
    lambda pooler: pauses(pooler))
case("console", "KILL disconnects clients")(
    lambda pooler: (lambda client: [client.query("select 1"), pooler.console().query("kill shop"),
                                    client.read_until_closed()])(pooler.client()))
case("console", "KILL_CLIENT")(lambda pooler: kills_client(pooler))
case("console", "two databases: PAUSE one", databases=DATABASE)(
    lambda pooler: [pooler.console().query("pause x"), pooler.client().query("select 1"),
                    cells(pooler.console().rows("show databases"), "name", "paused", "disabled")])
case("console", "RELOAD of an invalid file")(
    lambda pooler: (pooler.write("pgbouncer.ini", ini({"default_pool_size": "x"})), pooler.console().query("reload"))[1])
case("console", "RELOAD of a missing file")(
    lambda pooler: ((pooler.home / "pgbouncer.ini").unlink(), pooler.console().query("reload"))[1])
case("console", "RELOAD changes a key")(
    lambda pooler: (pooler.write("pgbouncer.ini", ini({"default_pool_size": "3"})), [
        line for line in pooler.console().query("reload") if line.startswith("tag")], cells([
            row for row in pooler.console().rows("show config") if row["key"] == "default_pool_size"], "value"))[1:])
case("console", "SET, then RELOAD restores the file's value")(
    lambda pooler: (lambda console: [console.query("set query_timeout = 5")[-1:], console.query("reload")[-1:], cells([
        row for row in console.rows("show config") if row["key"] == "query_timeout"], "value")])(pooler.console()))


def pauses(pooler):
    client, console = pooler.client(), pooler.console()
    client.query("begin")
    console.send("Q", b"pause\0")
    time.sleep(0.3)
    seen = [cells(pooler.console().rows("show state"), "key", "value")]
    client.query("commit")
    seen += [console.read(), cells(pooler.console().rows("show state"), "key", "value")]
    client.send("Q", b"select 1\0")
    time.sleep(0.3)
    seen += [pooler.console().query("resume"), client.read()]
    return seen


def kills_client(pooler):
    client = pooler.client()
    client.query("select 1")
    console = pooler.console()
    row = next(row for row in console.rows("show clients") if row["database"] == "shop")
    return [console.query(f"kill_client {row['id']}"), client.read_until_closed()]


def like_driver(begin):
    """The messages of psycopg2 (simple protocol) or psycopg (extended) with autocommit off."""
    def run(pooler):
        console = pooler.console()
        send = console.extended if begin == "extended" else console.query
        lines = [console.query("BEGIN"), send("SHOW STATE")]
        if "closed" not in lines[-1]:
            lines += [console.query("COMMIT"), console.query("ROLLBACK")]
        return [line for part in lines for line in part if not line.startswith(("parsed", "bound", "columns"))]
    return run


case("console", "BEGIN, SHOW, COMMIT as by psycopg2 with autocommit off")(like_driver("simple"))
case("console", "BEGIN, SHOW, COMMIT as by psycopg with autocommit off")(like_driver("extended"))


# ---- tables ----------------------------------------------------------------------------------------------------------

TABLES = ["active_sockets", "clients", "config", "databases", "dns_hosts", "dns_zones", "fds", "lists", "mem", "peer_pools",
          "peers", "pools", "servers", "sockets", "state", "stats", "stats_averages", "stats_totals", "totals", "users",
          "version"]


@case("tables", "columns and types", {"pool_mode": "transaction"})
def _(pooler):
    client = pooler.client()
    client.query("select 1")
    return {f"{name}: columns and types": [line for line in pooler.console().query(f"show {name}")
                                           if line.startswith(("columns", "error"))] for name in TABLES}


@case("tables", "rows", {"pool_mode": "transaction"})
def _(pooler):
    client, console = pooler.client(application_name="app"), pooler.console()
    client.query("select 1")
    busy = pooler.client("bob")
    busy.query("begin")
    shown = {name: console.rows(f"show {name}") for name in TABLES if name not in ("config", "fds", "version")}
    return {
        "clients: rows": sorted(cells(shown["clients"], "type", "user", "database", "replication", "state", "addr", "local_addr",
                               "close_needed", "tls", "application_name", "prepared_statements")),
        "clients: linked ones have a link": sorted(f"{row['user']} {bool(row['link'])}" for row in shown["clients"]),
        "clients: remote_pid": cells([row for row in shown["clients"] if row["database"] == "shop"], "remote_pid"),
        "clients: ids are small": [row["database"] for row in shown["clients"] if int(row["id"]) > 100000],
        "servers: rows": sorted(cells(shown["servers"], "type", "user", "database", "state", "addr", "tls",
                                      "application_name")),
        "sockets: rows": sorted(cells(shown["sockets"], "type", "user", "database", "state", "application_name")),
        "pools: rows": sorted(cells(shown["pools"], "database", "user", "cl_active", "cl_waiting", "sv_active", "sv_idle",
                                    "sv_used", "sv_login", "pool_mode", "load_balance_hosts")),
        "databases: rows": cells(shown["databases"], *shown["databases"][0]),
        "users: rows": sorted(cells(shown["users"], *shown["users"][0])),
        "lists: rows": [line for line in cells(shown["lists"], "list", "items") if not line.startswith(("free_", "dns_"))],
        "lists: names": cells(shown["lists"], "list"),
        "state: rows": cells(shown["state"], "key", "value"),
        "stats: databases": sorted(cells(shown["stats"], "database")),
        "stats: counts": sorted(cells([row for row in shown["stats"] if row["database"] == "shop"], "database", "total_server_assignment_count", "total_xact_count",
                                      "total_query_count", "total_client_parse_count")),
        "stats_totals: counts": sorted(cells([row for row in shown["stats_totals"] if row["database"] == "shop"], "database", "server_assignment_count", "xact_count",
                                             "query_count")),
        "stats_averages: databases": sorted(cells(shown["stats_averages"], "database")),
        "totals: names": cells(shown["totals"], "name"),
        "mem: has rows": bool(shown["mem"]),
        "peers: rows": cells(shown["peers"], "peer_id"),
    }


@case("tables", "a client waits", {"pool_mode": "transaction", "default_pool_size": "1"})
def _(pooler):
    busy, client, console = pooler.client(), pooler.client(), pooler.console()
    busy.query("begin")
    client.send("Q", b"select 1\0")
    wait_until("a waiting client", lambda: any(row["state"] == "waiting" for row in console.rows("show clients")), 5)
    return {
        "clients: a client waits": sorted(cells([row for row in console.rows("show clients") if row["database"] == "shop"],
                                                "user", "state")),
        "pools: a client waits": cells([row for row in console.rows("show pools") if row["database"] == "shop"],
                                       "cl_active", "cl_waiting", "sv_active"),
        "sockets: a client waits": sorted(cells([row for row in console.rows("show sockets") if row["database"] == "shop"],
                                                "type", "state")),
    }


case("tables", "clients: session mode, before the first query")(
    lambda pooler: (pooler.client(), cells([row for row in pooler.console().rows("show clients")], "user", "state"))[1])


@case("tables", "fds: rows", {"pool_mode": "transaction"})
def _(pooler):
    client = pooler.client()
    client.query("select 1")
    rows = pooler.console().rows("show fds")
    return sorted({" | ".join(str(row[name]) for name in ("task", "user", "database", "client_encoding")) for row in rows})


case("tables", "clients: replication connection")(
    lambda pooler: (pooler.client("postgres", "shop", replication="database").login, cells(
        [row for row in pooler.console().rows("show clients") if row["user"] == "postgres"], "replication", "state"))[1])
case("tables", "clients: unix socket")(
    lambda pooler: (pooler.socket_client("ann", "shop"), cells(
        [row for row in pooler.console().rows("show clients") if row["user"] == "ann"], "addr", "local_addr"))[1])

# ---- refusals --------------------------------------------------------------------------------------------------------


def closed_port(template):
    return template.replace("@CLOSED@", str(free_port()))


case("refusals", "unknown database")(lambda pooler: pooler.client(database="none").login)
case("refusals", "unknown user, trust")(lambda pooler: pooler.client("stranger").login)
case("refusals", "unknown user, md5", {"auth_type": "md5"})(lambda pooler: pooler.client("stranger", password="x").login)
case("refusals", "unknown user, scram", {"auth_type": "scram-sha-256"})(
    lambda pooler: pooler.client("stranger", password="x").login)
case("refusals", "unknown user, plain", {"auth_type": "plain"})(lambda pooler: pooler.client("stranger", password="x").login)
case("refusals", "wrong password, md5", {"auth_type": "md5"})(lambda pooler: pooler.client("mia", password="x").login)
case("refusals", "wrong password, scram", {"auth_type": "scram-sha-256"})(
    lambda pooler: pooler.client("scott", password="x").login)
case("refusals", "wrong password, plain", {"auth_type": "plain"})(lambda pooler: pooler.client("mia", password="x").login)
case("refusals", "empty password, md5", {"auth_type": "md5"})(lambda pooler: pooler.client("mia", password="").login)
case("refusals", "role that the server does not have", text=ini({"auth_file": "list.txt"}), files={
    "list.txt": '"nosuch" ""\n"dba" ""\n'})(lambda pooler: pooler.client("nosuch").login)
case("refusals", "database that the server does not have", databases="x = host=127.0.0.1 port=@SERVER@ dbname=none")(
    lambda pooler: pooler.client(database="x").login)
case("refusals", "no user name")(lambda pooler: no_user(pooler))
case("refusals", "unknown startup parameter")(lambda pooler: pooler.client(nonsense="1").login)
case("refusals", "options: unknown parameter")(lambda pooler: pooler.client(options="-c work_mem=9MB").login)
case("refusals", "options: not -c")(lambda pooler: pooler.client(options="-d 5").login)
case("refusals", "protocol 2")(lambda pooler: raw(pooler, b"\0\0\0\x08\0\x02\0\0"))
case("refusals", "protocol 3.9")(lambda pooler: protocol(pooler, 3 << 16 | 9))
case("refusals", "garbage instead of a startup packet")(lambda pooler: raw(pooler, b"GET / HTTP/1.1\r\n\r\n"))
case("refusals", "TLS required, client without", {"client_tls_sslmode": "require", "client_tls_key_file": "server.key",
                                                  "client_tls_cert_file": "server.crt"})(
    lambda pooler: [started(pooler)])
case("refusals", "max_client_conn", {"max_client_conn": "1"})(lambda pooler: second(pooler))
case("refusals", "max_client_conn: the console", {"max_client_conn": "1"})(
    lambda pooler: (setattr(pooler, "first", pooler.client()), pooler.console().login)[1])
case("refusals", "max_db_client_connections", {"max_db_client_connections": "1"})(lambda pooler: second(pooler))
case("refusals", "max_user_client_connections", {"max_user_client_connections": "1"})(lambda pooler: second(pooler))
case("refusals", "query_wait_timeout", {"query_wait_timeout": "1", "default_pool_size": "1", "pool_mode": "transaction"})(
    lambda pooler: (lambda busy, client: (busy.query("begin"), client.query("select 1"))[1])(
        pooler.client(), pooler.client()))
case("refusals", "query_wait_notify", {"query_wait_notify": "1", "query_wait_timeout": "3", "default_pool_size": "1",
                                       "pool_mode": "transaction"})(
    lambda pooler: (lambda busy, client: (busy.query("begin"), client.query("select 1"))[1])(
        pooler.client(), pooler.client()))
case("refusals", "query_timeout", {"query_timeout": "1"})(lambda pooler: pooler.client().query("select pg_sleep(5)"))
case("refusals", "idle_transaction_timeout", {"idle_transaction_timeout": "1"})(
    lambda pooler: (lambda client: [client.query("begin"), client.read_until_closed()])(pooler.client()))
case("refusals", "transaction_timeout", {"transaction_timeout": "1"})(
    lambda pooler: (lambda client: [client.query("begin"), client.read_until_closed()])(pooler.client()))
case("refusals", "client_idle_timeout", {"client_idle_timeout": "1"})(
    lambda pooler: (lambda client: [client.query("select 1"), client.read_until_closed()])(pooler.client()))
case("refusals", "client_login_timeout", {"client_login_timeout": "1"})(lambda pooler: raw(pooler, b""))
case("refusals", "client_login_timeout while the server cannot be reached",
     {"client_login_timeout": "1", "server_login_retry": "60"}, text=None,
     databases="x = host=127.0.0.1 port=1")(lambda pooler: pooler.client(database="x").login)
case("refusals", "server cannot be reached, second client", {"server_login_retry": "60", "query_wait_timeout": "3"},
     databases="x = host=127.0.0.1 port=1")(
    lambda pooler: [pooler.client(database="x").login, pooler.client(database="x").login])
case("refusals", "name of the server cannot be resolved", {"server_login_retry": "60", "query_wait_timeout": "3"},
     databases="x = host=none.invalid")(lambda pooler: pooler.client(database="x").login)
case("refusals", "disabled database")(
    lambda pooler: [pooler.console().query("disable shop"), pooler.client().login])
case("refusals", "paused database, query_wait_timeout", {"query_wait_timeout": "1"})(
    lambda pooler: (lambda client: [pooler.console().query("pause shop"), client.query("select 1")])(pooler.client()))
case("refusals", "statement mode: BEGIN", {"pool_mode": "statement"})(lambda pooler: pooler.client().query("begin"))
case("refusals", "statement mode: two statements in a query", {"pool_mode": "statement"})(
    lambda pooler: pooler.client().query("select 1; select 2"))
case("refusals", "the server ends the connection", {"pool_mode": "session"})(lambda pooler: terminated(pooler, "select 1"))
case("refusals", "the server ends the connection in a transaction", {"pool_mode": "transaction"})(
    lambda pooler: terminated(pooler, "begin"))
case("refusals", "server_tls_sslmode = require, server without", {"server_tls_sslmode": "require",
                                                                "query_wait_timeout": "3"})(
    lambda pooler: pooler.client().login)
case("refusals", "auth_type = pam", {"auth_type": "pam"})(started)
case("refusals", "auth_type = ldap", {"auth_type": "ldap"})(started)
case("refusals", "auth_type = cert without TLS", {"auth_type": "cert"})(started)
case("refusals", "auth_query fails", {"auth_type": "md5", "auth_user": "postgres", "auth_query": "select 1/0, $1"})(
    lambda pooler: pooler.client("ghost", password="x").login)
case("refusals", "auth_query finds no role", {"auth_type": "md5", "auth_user": "postgres"})(
    lambda pooler: pooler.client("ghost", password="x").login)
case("refusals", "prepared statement that does not exist", {"pool_mode": "transaction"})(
    lambda pooler: unknown_statement(pooler))
case("refusals", "CancelRequest with a wrong key")(lambda pooler: raw(pooler, bytes.fromhex("0000001004d2162e0000000000000000")))


def no_user(pooler):
    return raw(pooler, b"\0\0\0\x17\0\x03\0\0database\0shop\0\0")


def raw(pooler, data):
    client = Client(("127.0.0.1", pooler.port))
    client.socket.sendall(data)
    return client.read_until_closed()


def protocol(pooler, version):
    client = Client(("127.0.0.1", pooler.port))
    return [line for line in client.log_in("ann", "shop", protocol=version)]


def second(pooler):
    pooler.first = pooler.client()
    return pooler.client().login


def terminated(pooler, sql):
    client = pooler.client()
    client.query(sql)
    pid = client.rows("select pg_backend_pid() pid")[0]["pid"]
    server = pooler.server.connect("shop")
    server.query(f"select pg_terminate_backend({pid})")
    time.sleep(0.3)
    return client.query("select 2")


def unknown_statement(pooler):
    client = pooler.client()
    client.send("B", b"\0none\0\0\0\0\0\0\0")
    client.send("S")
    return client.read()


# ---- shutdown and signals --------------------------------------------------------------------------------------------


def shutdown(act):
    def run(pooler):
        idle, busy = pooler.client(), pooler.client("bob")
        idle.query("select 1")
        busy.query("begin")
        console = pooler.console()
        if isinstance(act, str):
            console.send("Q", act.encode() + b"\0")
        else:
            pooler.process.send_signal(act)
        time.sleep(0.5)
        seen = {"listens": pooler.listens_tcp(), "runs": pooler.process.poll() is None}
        if seen["runs"]:
            idle.send("Q", b"select 2\0")
            idle.socket.settimeout(2)
            seen["idle client"] = idle.read()
            seen["busy client"] = busy.query("commit")
        else:
            seen["idle client"], seen["busy client"] = idle.read_until_closed(), busy.read_until_closed()
        if isinstance(act, str):
            console.socket.settimeout(2)
            seen["console"] = console.read()
        console.close()
        idle.close(), busy.close()
        seen["exit code"] = pooler.ended(5)
        seen["unix socket is left"] = (pooler.home / f".s.PGSQL.{pooler.port}").exists()
        return {f"{act if isinstance(act, str) else signal.Signals(act).name}: {name}": value for name, value in seen.items()}
    return run


for act in ["shutdown", "shutdown wait_for_servers", "shutdown wait_for_clients", signal.SIGTERM, signal.SIGINT,
            signal.SIGQUIT]:
    case("shutdown", f"{act}", {"pool_mode": "transaction"})(shutdown(act))


@case("shutdown", "SIGTERM twice")
def _(pooler):
    pooler.keep = pooler.client()
    pooler.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    pooler.process.send_signal(signal.SIGTERM)
    return [pooler.ended(5), *pooler.keep.read_until_closed()]


@case("shutdown", "SIGHUP reloads")
def _(pooler):
    pooler.write("pgbouncer.ini", ini({"default_pool_size": "3"}))
    pooler.process.send_signal(signal.SIGHUP)
    console = pooler.console()
    wait_until("the reload", lambda: any(row["key"] == "default_pool_size" and row["value"] == "3"
                                         for row in console.rows("show config")), 5)
    return "reloaded"


@case("shutdown", "SIGUSR1 pauses, SIGUSR2 resumes")
def _(pooler):
    console, seen = pooler.console(), []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        pooler.process.send_signal(number)
        time.sleep(0.3)
        seen += cells(console.rows("show state"), "key", "value")
    return seen


@case("shutdown", "new client of the unix socket while it waits for clients")
def _(pooler):
    pooler.keep = pooler.client()
    pooler.console().query("shutdown wait_for_clients")
    time.sleep(0.3)
    return [pooler.socket_client("ann", "shop").login, pooler.socket_client("dba", "pgbouncer").login]


# ---- log -------------------------------------------------------------------------------------------------------------


def logged(act, *patterns, wait_for=None):
    """The lines that tools look for, without time, process id and addresses of the program's own objects."""
    def run(pooler):
        act(pooler)
        path = pooler.home / "pool.log"
        read = lambda: path.read_text() if path.exists() else pooler.log()  # noqa: E731
        if wait_for:
            try:
                wait_until(f"{wait_for} in the log", lambda: re.search(wait_for, read()), 4)
            except TimeoutError:
                pass
        lines = []
        for line in read().splitlines():
            if any(re.search(pattern, line) for pattern in patterns):
                line = re.sub(r"^\S+ \S+ \S+ \[\d+\] ", "", line)
                lines.append(re.sub(r":\d+\b", ":port", re.sub(r"age=\d+s", "age=@s", re.sub(
                    r"(\d+) (xacts|queries|client parses|server parses|binds|B)/s", r"@ \2/s", line))))
        return lines
    return run


def visit(pooler):
    client = pooler.client()
    client.query("select 1")
    client.close()
    time.sleep(0.2)


case("log", "login of a client")(logged(visit, "login attempt", wait_for="login attempt"))
case("log", "end of a client")(logged(visit, "C-.*closing because", wait_for="C-.*closing because"))
case("log", "new server connection")(logged(visit, "S-.*new connection", wait_for="new connection"))
case("log", "end of a server connection", {"pool_mode": "transaction"})(
    logged(lambda pooler: (visit(pooler), pooler.console().query("reconnect shop")), "S-.*closing because",
           wait_for="S-.*closing because"))
case("log", "refused client")(logged(lambda pooler: pooler.client(database="none"), "no such database|none",
                                     wait_for="pooler error"))
case("log", "wrong password", {"auth_type": "scram-sha-256"})(
    logged(lambda pooler: pooler.client("scott", password="x"), "SASL|pooler error", wait_for="pooler error"))
case("log", "statistics", {"stats_period": "1"})(logged(visit, "stats: ", wait_for="stats: "))
case("log", "log_connections = 0", {"log_connections": "0", "log_disconnections": "0"})(
    logged(visit, "login attempt", "C-.*closing because"))
case("log", "start")(logged(lambda pooler: None, "process up", wait_for="process up"))
case("log", "listening")(logged(lambda pooler: None, "listening on", wait_for="listening on"))
case("log", "console command")(logged(lambda pooler: pooler.console().query("pause shop"), "PAUSE 'shop'",
                                      wait_for="PAUSE 'shop'"))
case("log", "RELOAD")(logged(lambda pooler: pooler.console().query("reload"), "RELOAD command", wait_for="RELOAD command"))
case("log", "SIGTERM")(logged(lambda pooler: pooler.process.send_signal(signal.SIGTERM), "got SIGTERM", wait_for="got SIGTERM"))
case("log", "unknown console command")(logged(lambda pooler: pooler.console().query("nonsense"), "invalid command",
                                              wait_for="invalid command"))
case("log", "form of a line")(lambda pooler: re.sub(r"\d", "9", re.match(r"(\S+ \S+ \S+ \[\d+\] \S+)?", next(iter(
    pooler.log().splitlines()), ""))[0]).replace("[" + "9" * len(str(pooler.process.pid)) + "]", "[pid]"))


@case("log", "logfile", {"logfile": "pool.log"})
def _(pooler):
    visit(pooler)
    path = pooler.home / "pool.log"
    return {"logfile: is written": path.exists() and bool(path.read_text()),
            "logfile: stderr gets the log, too": "login attempt" in pooler.log() or "client" in pooler.log()}


@case("log", "logfile is opened again by SIGHUP", {"logfile": "pool.log"})
def _(pooler):
    path = pooler.home / "pool.log"
    if not path.exists():
        return "no file"
    path.rename(pooler.home / "old.log")
    pooler.process.send_signal(signal.SIGHUP)
    try:
        wait_until("a new file", lambda: path.exists() and path.read_text(), 4)
    except TimeoutError:
        return "not opened again"
    return "opened again"


@case("log", "pidfile", {"pidfile": "pool.pid"})
def _(pooler):
    path = pooler.home / "pool.pid"
    seen = {"pidfile: has the process id": path.exists() and int(path.read_text()) == pooler.process.pid}
    pooler.process.send_signal(signal.SIGINT)
    seen["pidfile: exit code"] = pooler.ended(5)
    seen["pidfile: is removed"] = not path.exists()
    return seen


@case("log", "pidfile of a process that runs", {"pidfile": "pool.pid"}, files={"pool.pid": f"{os.getppid()}\n"})
def _(pooler):
    return started(pooler)


case("log", "pidfile of a process that is gone", {"pidfile": "pool.pid"}, files={"pool.pid": "4194000\n"})(started)
case("log", "logfile in a missing folder", {"logfile": "none/pool.log"})(started)

# ---- TLS -------------------------------------------------------------------------------------------------------------


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", folder / "server.key", "-out",
                    folder / "server.crt"], capture_output=True, check=True)
    return {name: (folder / name).read_text() for name in ("server.key", "server.crt")}


def certificate_files():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        return make_certificate(pathlib.Path(folder))


CERTIFICATE = certificate_files()
TLS = {"client_tls_sslmode": "allow", "client_tls_key_file": "server.key", "client_tls_cert_file": "server.crt"}


def tls_case(name, keys, run, files=None):
    case("tls", name, {**TLS, **keys}, files={**CERTIFICATE, **(files or {})})(run)


def handshake(low=None, high=None, ciphers=None):
    def run(pooler):
        if started(pooler) != "runs":
            return started(pooler)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers(ciphers or "ALL:@SECLEVEL=0")
        context.minimum_version = low or ssl.TLSVersion.TLSv1
        if high:
            context.maximum_version = high
        client = Client(("127.0.0.1", pooler.port))
        try:
            reply = client.start_tls(context)
        except (ssl.SSLError, OSError) as error:
            return f"no handshake ({type(error).__name__.replace('SSLZeroReturnError', 'SSLError')})"
        if reply != "S":
            return f"reply {reply}"
        try:
            return [client.socket.version(), *client.log_in("ann", "shop")]
        except (ssl.SSLError, OSError):
            return [client.socket.version(), "closed"]
    return run


V = ssl.TLSVersion
tls_case("plain connection", {}, lambda pooler: pooler.client().login)
tls_case("TLS", {}, handshake())
tls_case("tls column of SHOW CLIENTS", {}, lambda pooler: (lambda client: (client.start_tls(), client.log_in("ann", "shop"),
         cells([row for row in pooler.console().rows("show clients") if row["user"] == "ann"], "tls"))[2])(
             Client(("127.0.0.1", pooler.port))))
tls_case("sslmode = disable", {"client_tls_sslmode": "disable"}, handshake())
tls_case("sslmode = require, plain client", {"client_tls_sslmode": "require"}, lambda pooler: pooler.client().login)
tls_case("sslmode = verify-full, no certificate", {"client_tls_sslmode": "verify-full", "client_tls_ca_file": "server.crt"},
         handshake())
tls_case("missing certificate", {"client_tls_cert_file": "none.crt"}, started)
for names in ["secure", "all", "legacy", "tlsv1.2", "tlsv1.3", "tlsv1.0", "tlsv1.1", "tlsv1.2,tlsv1.3", "tlsv1.2:tlsv1.3",
              "tlsv1.0,tlsv1.2", "nonsense", "all:!tlsv1.0", "default"]:
    tls_case(f"client_tls_protocols = {names}, client with TLS 1.2", {"client_tls_protocols": names},
             handshake(high=V.TLSv1_2))
    tls_case(f"client_tls_protocols = {names}, client with TLS 1.3", {"client_tls_protocols": names},
             handshake(low=V.TLSv1_3))
tls_case("client_tls_protocols = all, client with TLS 1.0", {"client_tls_protocols": "all"}, handshake(high=V.TLSv1))
for names in ["default", "secure", "normal", "fast", "all", "HIGH:!aNULL", "ECDHE-RSA-AES256-GCM-SHA384",
              "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384", "AES128-SHA", "nonsense", "HIGH:+3DES:!aNULL"]:
    tls_case(f"client_tls_ciphers = {names}", {"client_tls_ciphers": names}, cipher_run := (lambda pooler: [
        started(pooler), *(offered(pooler) if started(pooler) == "runs" else [])]))
for names in ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256", "nonsense"]:
    tls_case(f"client_tls13_ciphers = {names}", {"client_tls13_ciphers": names}, lambda pooler: [
        started(pooler), *(offered(pooler, V.TLSv1_3) if started(pooler) == "runs" else [])])
for names in ["auto", "none", "prime256v1", "nonsense"]:
    tls_case(f"client_tls_ecdhcurve = {names}", {"client_tls_ecdhcurve": names}, lambda pooler: [started(pooler)])
for names in ["auto", "none", "nonsense"]:
    tls_case(f"client_tls_dheparams = {names}", {"client_tls_dheparams": names}, lambda pooler: [started(pooler)])


def offered(pooler, version=V.TLSv1_2):
    """Of some known suites, those with which a handshake succeeds."""
    if version == V.TLSv1_3:
        result = handshake(low=V.TLSv1_3)(pooler)
        return [result[0] if isinstance(result, list) else result]
    found = []
    for name in ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"]:
        result = handshake(high=V.TLSv1_2, ciphers=f"{name}:@SECLEVEL=0")(pooler)
        found.append(f"{name}: {'yes' if isinstance(result, list) else 'no'}")
    return found


# ---- the command line ------------------------------------------------------------------------------------------------


def command(name, args, run, **more):
    case("command line", name, args=args, **more)(run)


command("file as the only argument", (), started)
command("-q", ("-q",), lambda pooler: [started(pooler), bool(pooler.log())])
command("-v", ("-v",), started)
command("-vv", ("-vv",), started)
command("-u USER", ("-u", __import__("pwd").getpwuid(os.geteuid()).pw_name if os.geteuid() else "postgres"), started)
command("--user=USER", ("--user=postgres",), started)
command("-V", ("-V",), lambda pooler: pooler.ended(5), wait=False)
command("--version", ("--version",), lambda pooler: pooler.ended(5), wait=False)
command("-h", ("-h",), lambda pooler: pooler.ended(5), wait=False)
command("--help", ("--help",), lambda pooler: pooler.ended(5), wait=False)
command("unknown option", ("--nonsense",), lambda pooler: pooler.ended(5) != 0, wait=False)
command("-R without an old process", ("-R",), started)
command("-d without a log file", ("-d",), lambda pooler: pooler.ended(5) != 0, wait=False)


@case("command line", "-d with logfile and pidfile", {"logfile": "pool.log", "pidfile": "pool.pid"}, args=("-d",), wait=False)
def _(pooler):
    code = pooler.ended(5)
    path = pooler.home / "pool.pid"
    if code == 0 and path.exists():
        wait_until("the daemon", pooler.listens, 5)
        os.kill(int(path.read_text()), signal.SIGKILL)
    return f"exit code {code}"


@case("command line", "another process uses the unix socket")
def _(pooler):
    done = subprocess.run([str(part) for part in pooler.command], cwd=pooler.home, capture_output=True, text=True, timeout=20)
    return done.returncode != 0


@case("command line", "-R takes over clients", {"pool_mode": "transaction"})
def _(pooler):
    client = pooler.client()
    client.query("select 1")
    at = pooler.command.index("pgbouncer.ini")
    command = [str(part) for part in pooler.command[:at]] + ["-R", "pgbouncer.ini"]
    new = subprocess.Popen(command, cwd=pooler.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        old = pooler.ended(10)
        return [f"old process: exit code {old}", *client.query("select 2")]
    finally:
        new.kill()
        new.wait()
