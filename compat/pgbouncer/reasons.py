"""Differences that are known: `on purpose` with the reason, or `missing` with the reason why."""
import typing


class Reason(typing.NamedTuple):
    kind: str
    text: str


REASONS = {}


def listed(kind, area, why, *names):
    for name in names:
        REASONS[area, name] = Reason(kind, why)


def on_purpose(area, why, *names):
    listed("on purpose", area, why, *names)


def missing(area, why, *names):
    listed("missing", area, why, *names)


BETTER_SQLSTATE = ("PostgreSQL's SQLSTATE and text, which drivers know, instead of 08P01 for everything")

# ---- keys ----
on_purpose("keys", "the query names its schema, so that a search_path cannot redirect it", "auth_query: default")
on_purpose("keys", "the console has no key for the file: SHOW CONFIG leaves it unset", "conffile: default")
on_purpose("keys", "SET and RELOAD can change it here", "disable_pqexec: default", "track_extra_parameters: default")
on_purpose("keys", "read at start, so that a reload cannot lose the log", "logfile: default", "syslog: default",
           "syslog_facility: default", "syslog_ident: default")
on_purpose("keys", "applies to sockets opened after a restart", "tcp_defer_accept: default", "tcp_keepalive: default",
           "tcp_keepcnt: default", "tcp_keepidle: default", "tcp_keepintvl: default", "tcp_socket_buffer: default",
           "tcp_user_timeout: default")
on_purpose("keys", "the value is octal, as it is written", "unix_socket_mode: default", "unix_socket_mode: another value")
on_purpose("keys", "a key without effect has its default", "auth_ldap_options: another value", "job_name: another value",
           "pkt_buf: another value", "sbuf_loopcnt: another value", "dns_nxdomain_ttl: another value")
on_purpose("keys", "TLS 1.0 and 1.1 are not supported, so `all` is `secure`", "client_tls_protocols: another value")
on_purpose("keys", "a file that is missing is an error at start: no client could log in", "auth_file that is missing")
on_purpose("keys", "the text names the message and the limit", "max_packet_size: too long a query")
on_purpose("keys", "the text names the key", "disable_pqexec")
on_purpose("keys", "a key of later versions, which is accepted", "login_notify_message")
on_purpose("keys", "state that a client leaves on a shared server is reset before the next client gets it",
           "transaction mode: SET survives on the same server")
on_purpose("keys", "the SQLSTATE is that of an administrator's command", "server_fast_close: RECONNECT in session mode")

# ---- databases, users, userlist ----
on_purpose("databases", "the server's own transaction status decides, so its reply comes first", "pool_mode=statement")
on_purpose("databases", "a value that is not a number is an error, it is not read as 0", "pool_size=x", "server_lifetime=x",
           "max_db_connections=x")
on_purpose("databases", "peers have no effect without peer_id, and a warning says so", "peers section without peer_id")
on_purpose("databases", "the number of connections to a peer is fixed", "peers section: pool_size")
on_purpose("users", BETTER_SQLSTATE, "user that auth_file lacks")
on_purpose("userlist", "a line that cannot be read is an error, it is not skipped", "line without quotes")

# ---- hba ----
on_purpose("hba", BETTER_SQLSTATE, "reject", "no line matches", "hostssl without TLS", "local only", "replication", "sameuser",
           "peer on a host line", "cert on a host line that matches")
on_purpose("hba", "a file without rules would refuse all clients: an error at start", "empty file", "file that is missing")
on_purpose("hba", "a rule that cannot be read is an error: to skip a `reject` would let clients in",
           "unknown method before a good line", "invalid address")

# ---- console ----
on_purpose("console", "SHOW without a name is SHOW HELP", "show")
on_purpose("console", "drivers and health checks send it, so it is accepted", "select 1", "begin", "commit", "rollback",
           "start transaction", "end", "abort", "BEGIN;", "(empty)", ";", "show transaction_isolation",
           "show server_version", "set extra_float_digits = 3", "set application_name = 'x'",
           "set client_min_messages to warning", "set session characteristics as transaction read only", "discard all",
           "deallocate all", "savepoint a", "BEGIN, SHOW, COMMIT as by psycopg2 with autocommit off",
           "BEGIN, SHOW, COMMIT as by psycopg with autocommit off")
on_purpose("console", "a single key can be shown", "show default_pool_size")
on_purpose("console", "a notice reports the change", "set default_pool_size = 5", "set default_pool_size to '6'",
           "set pool_mode = 'transaction'", "set verbose = 1", "set verbose = 0", "reload")
on_purpose("console", "the error says why", "set default_pool_size = x", "set nonsense = 1", "RELOAD of an invalid file",
           "RELOAD of a missing file")
on_purpose("console", "a key that only a restart changes is refused, instead of accepted without effect",
           "set listen_port = 7", "set listen_addr = '*'")
on_purpose("console", "one text for every command", "pause pgbouncer", "disable pgbouncer", "enable pgbouncer",
           "kill pgbouncer", "reconnect pgbouncer", "wait_close pgbouncer")
on_purpose("console", "errors have the SQLSTATE of their cause instead of 08P01", "SQLSTATE of errors")
on_purpose("console", BETTER_SQLSTATE, "user without access", "user pgbouncer by TCP", "KILL disconnects clients",
           "KILL_CLIENT")
on_purpose("console", "JDBC expects the parameter", "parameters at login")
on_purpose("console", "the extended protocol is supported, which most drivers use", "extended protocol")
on_purpose("console", "`any` needs a `user` in every database, which is checked at start",
           "any user with auth_type = any")
on_purpose("console", "a suspension lasts until RESUME, also if its console has disconnected", "resume")

# ---- tables ----
on_purpose("tables", "one more counter: logins of clients", "stats: columns and types", "stats_averages: columns and types",
           "stats_totals: columns and types", "totals: names")
on_purpose("tables", "a linked client has the process id of its backend", "clients: remote_pid")
on_purpose("tables", "an open transaction is counted when it ends", "stats: counts", "stats_totals: counts")
on_purpose("tables", "there are no memory pools of fixed size", "mem: has rows")
on_purpose("tables", "`--takeover` passes sockets, with TLS sessions excepted; no console client gets descriptors and secrets",
           "fds: rows")

# ---- refusals ----
on_purpose("refusals", BETTER_SQLSTATE, "unknown database", "unknown user, trust", "unknown user, md5", "unknown user, scram",
           "unknown user, plain", "wrong password, md5", "wrong password, scram", "wrong password, plain",
           "empty password, md5", "no user name", "max_client_conn", "max_db_client_connections",
           "max_user_client_connections", "query_timeout", "idle_transaction_timeout", "transaction_timeout",
           "client_login_timeout", "disabled database", "the server ends the connection",
           "the server ends the connection in a transaction", "auth_query fails", "auth_query finds no role")
on_purpose("refusals", "the text starts with the key and goes on with the cause", "query_wait_timeout", "query_wait_notify")
on_purpose("refusals", "protocol 2 has been gone since PostgreSQL 14; the packet is not parsed", "protocol 2")
on_purpose("refusals", "closed at once", "garbage instead of a startup packet")
on_purpose("refusals", "an idle session is disconnected in session mode, too", "client_idle_timeout")
on_purpose("refusals", "new clients learn at once that the server is down, so that they can try another host",
           "client_login_timeout while the server cannot be reached", "server cannot be reached, second client",
           "name of the server cannot be resolved", "server_tls_sslmode = require, server without")
on_purpose("refusals", "the time of a PAUSE does not count towards query_wait_timeout",
           "paused database, query_wait_timeout")
on_purpose("refusals", "the server's own transaction status decides, so its reply comes first", "statement mode: BEGIN")
missing("refusals", "PAM and LDAP are not supported yet: an error at start", "auth_type = pam", "auth_type = ldap")
on_purpose("refusals", "an error at its place in the pipeline, not a disconnect",
           "prepared statement that does not exist")

# ---- shutdown ----
on_purpose("shutdown", "the command is confirmed before the connection ends", "shutdown: console")
on_purpose("shutdown", BETTER_SQLSTATE, "shutdown wait_for_servers: idle client", "SIGINT: idle client",
           "new client of the unix socket while it waits for clients")

# ---- log ----
STRUCTURED = "log lines are structured (text or JSON) and have the same facts in fields"
on_purpose("log", STRUCTURED, "login of a client", "end of a client", "refused client", "wrong password", "statistics",
           "start", "listening", "SIGTERM", "form of a line", "RELOAD", "console command")
missing("log", "server connections are counted in tables and metrics, but not logged one by one",
        "new server connection", "end of a server connection")
on_purpose("log", "an invalid command is reported to its client only", "unknown console command")
on_purpose("log", "SIGHUP opens the file again at once, so that a rotation needs no copy", "logfile is opened again by SIGHUP")

# ---- TLS ----
on_purpose("tls", BETTER_SQLSTATE, "sslmode = require, plain client")
on_purpose("tls", "`legacy` is documented, but PgBouncer does not know it",
           "client_tls_protocols = legacy, client with TLS 1.2", "client_tls_protocols = legacy, client with TLS 1.3")
on_purpose("tls", "TLS 1.0 and 1.1 are not supported: an error at start, instead of no handshake",
           "client_tls_protocols = tlsv1.0, client with TLS 1.2", "client_tls_protocols = tlsv1.0, client with TLS 1.3",
           "client_tls_protocols = tlsv1.1, client with TLS 1.2", "client_tls_protocols = tlsv1.1, client with TLS 1.3")
on_purpose("tls", "weak suites do not exist here, so a list with keywords allows all; a warning names what has no effect",
           "client_tls_ciphers = all", "client_tls_ciphers = AES128-SHA", "client_tls_ciphers = nonsense", "client_tls13_ciphers = nonsense",
           "client_tls_ecdhcurve = nonsense", "client_tls_dheparams = nonsense")

# ---- command line ----
on_purpose("command line", "-q without a log file keeps the log on stderr, where supervisors expect it", "-q")
on_purpose("command line", "a service manager runs it in the background: -d is refused with advice",
           "-d with logfile and pidfile")
