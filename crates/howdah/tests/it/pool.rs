//! `howdah pool`: signals, takeover, settings, and connections of real clients.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectError, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{as_this_user, howdah, text, wait_for_value};

/// Maximum time for a process to react.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A running `howdah pool`.
pub(crate) struct PoolerProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
    port: u16,
    output: String,
}

impl Drop for PoolerProcess {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl PoolerProcess {
    /// Writes the settings to a file in the folder, and starts a pooler with them.
    pub(crate) fn start(folder: &Path, file: &str, settings: &str) -> Self {
        Self::start_with(folder, file, settings, |command| command)
    }

    /// Like [`PoolerProcess::start`], with changes to the command.
    fn start_with(
        folder: &Path,
        file: &str,
        settings: &str,
        more: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        fs::write(folder.join(file), settings).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        command
            .args([
                "pool",
                &as_this_user(),
                "--log-level=trace",
                "--log-format=text",
                "--workers=2",
                "-c",
                file,
            ])
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped());
        let mut child = more(&mut command).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child, stderr, port: 0, output: String::new() };
        let place = server.wait_for_value("listening: ");
        server.port = place.rsplit_once(':').unwrap().1.parse().unwrap();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Reads stderr until a line contains `part`, and returns the rest of that line.
    pub(crate) fn wait_for_value(&mut self, part: &str) -> String {
        wait_for_value(&mut self.stderr, &mut self.output, part)
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the process to exit, and returns its status and all of its stderr.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        self.stderr.read_to_string(&mut self.output).unwrap();
        (self.child.wait().unwrap(), std::mem::take(&mut self.output))
    }

    /// Waits until the pooler has closed its listening socket.
    fn wait_until_not_listening(&self) {
        wait_until("the pooler to stop listening", TIMEOUT, || {
            TcpStream::connect(("127.0.0.1", self.port)).is_err()
        });
    }

    pub(crate) fn connect(&self, words: &str) -> Result<Client, ConnectError> {
        connect(&format!("host=127.0.0.1 port={} dbname=postgres {words}", self.port))
    }
}

pub(crate) fn connect(words: &str) -> Result<Client, ConnectError> {
    let words = ConnParams::from_conninfo(words);
    let environment = Environment::empty().with_os_user("tester");
    Client::connect(&ConnectTarget::resolve(&words, &environment).unwrap())
}

pub(crate) fn start_cluster(test: &str) -> Option<Cluster> {
    skip_without_postgres(test, Cluster::builder().setting("max_connections", "60").start())
}

/// Settings that accept `postgres` without a password.
pub(crate) fn settings_without_password(server: &Cluster, more: &str) -> String {
    format!(
        "[pool]\nmode = 'transaction'\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    )
}

#[test]
fn sigterm_waits_for_open_transactions() {
    let Some(server) = start_cluster("sigterm") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool =
        PoolerProcess::start(folder.path(), "howdah.toml", &settings_without_password(&server, ""));
    let mut busy = pool.connect("user=postgres").unwrap();
    let mut idle = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.terminate();
    let error = loop {
        if let Err(error) = idle.query("select 1") {
            break error;
        }
    };
    assert_eq!(error.sqlstate(), Some("57P01"), "{error}");
    // New clients are refused, and the open transaction may end.
    pool.wait_until_not_listening();
    busy.query("create table kept (a int)").unwrap();
    busy.query("commit").unwrap();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    let mut client = connect(&server.uri("postgres")).unwrap();
    assert_eq!(client.one_value("select count(*)::text from kept").unwrap().as_deref(), Some("0"));
}

#[test]
fn shutdown_timeout_or_second_signal_ends_transactions() {
    let Some(server) = start_cluster("second signal") else { return };
    let folder = tempfile::tempdir().unwrap();
    let soon = settings_without_password(&server, "timeouts = { shutdown = '50ms' }");
    let pool = PoolerProcess::start(folder.path(), "howdah.toml", &soon);
    let mut busy = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    busy.query("commit").unwrap_err();

    let pool =
        PoolerProcess::start(folder.path(), "howdah.toml", &settings_without_password(&server, ""));
    let mut busy = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.terminate();
    // The first signal has been handled when the pooler stops listening.
    pool.wait_until_not_listening();
    busy.query("select 1").unwrap();
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{messages}");
}

#[test]
fn takeover_moves_clients_and_stops_old_process() {
    let Some(server) = start_cluster("takeover") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_without_password(&server, "")
        .replace("port = 0", "port = 0\ntakeover = 'takeover'");
    let old = PoolerProcess::start(folder.path(), "howdah.toml", &settings);
    let mut client = old.connect("user=postgres").unwrap();
    client.query("set application_name = 'mover'").unwrap();
    wait_until("the takeover socket", TIMEOUT, || folder.path().join("takeover").exists());
    let new = PoolerProcess::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.arg("--takeover")
    });
    assert_eq!(new.port, old.port);
    let (status, messages) = old.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(messages.contains("another process has taken over"), "{messages}");
    let name = client.one_value("select current_setting('application_name')").unwrap();
    assert_eq!(name.as_deref(), Some("mover"));
    new.connect("user=postgres").unwrap().query("select 1").unwrap();
    new.terminate();
    let (status, messages) = new.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(messages.contains("taken over clients=1"), "{messages}");
    let output = howdah(folder.path())
        .args(["pool", &as_this_user(), "-c", "howdah.toml", "--takeover"])
        .assert()
        .code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("cannot take over: ") && messages.contains("hint: "), "{messages}");
}

/// With `Type=notify-reload`, the service manager is notified of the start and the end of a reload.
#[test]
fn sighup_reloads_settings() {
    let Some(server) = start_cluster("sighup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let notification = || {
        let mut state = [0; 4096];
        let length = manager.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    let settings = settings_without_password(&server, "");
    let pool = PoolerProcess::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.env("NOTIFY_SOCKET", folder.path().join("notify"))
    });
    assert!(notification().starts_with("READY=1"));
    let mut client = pool.connect("user=postgres").unwrap();
    for (settings, status) in [
        (
            settings_without_password(&server, "sizes = { pool = 3 }\nworkers = 1"),
            "STATUS=settings reloaded, number of changes: 1",
        ),
        (settings_without_password(&server, "sizes = { pol = 3 }"), "STATUS=settings not changed"),
    ] {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        pool.signal(Signal::HUP);
        let began = notification();
        let at = began.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(at.parse::<u64>().unwrap() > 0, "{began}");
        let over = notification();
        assert!(over.starts_with("READY=1\n") && over.contains(status), "{over}");
    }
    client.query("select 1").unwrap();
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(messages.contains("settings: sizes.pool: 20 -> 3"), "{messages}");
    assert!(
        messages.contains(
            "settings not changed: howdah.toml:3: sizes.pol: unknown key (did you mean `pool`?)"
        ),
        "{messages}"
    );
    // --workers=2 overrides the file, also after a reload.
    assert!(!messages.contains("settings: workers"), "{messages}");
}

/// A typical pgbouncer.ini with a separate file of users. The log contains no secrets even at level
/// trace.
#[test]
fn pgbouncer_ini_works_and_log_contains_no_secrets() {
    let Some(server) = start_cluster("pgbouncer.ini") else { return };
    let mut client = connect(&server.uri("postgres")).unwrap();
    let (plain, kept) = ("plain-Sesame-4711", "kept-Sesame-4712");
    client.query(&format!("create role plain login password '{plain}'")).unwrap();
    client.query(&format!("create role kept login password '{kept}'")).unwrap();
    let stored = "select rolpassword from pg_authid where rolname = 'kept'";
    let stored = client.one_value(stored).unwrap().unwrap();
    // From now on the server requires passwords.
    let rules = server.data_dir().join("pg_hba.conf");
    let text_of_rules = fs::read_to_string(&rules).unwrap();
    let mine = "host all plain,kept 127.0.0.1/32 scram-sha-256\n";
    fs::write(&rules, format!("{mine}{text_of_rules}")).unwrap();
    client.query("select pg_reload_conf()").unwrap();

    let folder = tempfile::tempdir().unwrap();
    let users = format!("\"plain\" \"{plain}\"\n\"kept\" \"{stored}\"\n");
    fs::write(folder.path().join("userlist.txt"), users).unwrap();
    let ini = format!(
        "[databases]\npostgres = host=127.0.0.1 port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = 0\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = userlist.txt\n\
         pool_mode = transaction\ndefault_pool_size = 2\npkt_buf = 8192\n",
        server.port()
    );
    let pool = PoolerProcess::start(folder.path(), "pgbouncer.ini", &ini);
    for (user, password) in [("plain", plain), ("kept", kept)] {
        let mut client = pool.connect(&format!("user={user} password={password}")).unwrap();
        assert_eq!(client.one_value("select current_user::text").unwrap().as_deref(), Some(user));
        let error = pool.connect(&format!("user={user} password=wrong-Sesame-4713")).unwrap_err();
        assert_eq!(error.sqlstate(), Some("28P01"), "{error}");
    }
    let error = pool.connect("user=nobody password=no-Sesame-4714").unwrap_err();
    assert_eq!(error.sqlstate(), Some("28P01"), "{error}");
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    assert!(messages.contains("pkt_buf"), "a key without effect is named:\n{messages}");
    let keys = stored.rsplit('$').next().unwrap().split(':');
    for secret in keys.chain([&stored[..], "Sesame", plain, kept]) {
        assert!(!messages.contains(secret), "{secret} is in the log:\n{messages}");
    }
}

#[test]
fn unusable_listen_address_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |listen: &str| {
        let settings = format!(
            "[pool.listen]\n{listen}\n[pool.databases.postgres]\nhosts = ['127.0.0.1:1']\n"
        );
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let output = howdah(folder.path())
            .args(["pool", &as_this_user(), "-c", "howdah.toml"])
            .assert()
            .code(1);
        text(&output.get_output().stderr)
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap();
    let messages = refused(&format!("addresses = ['{place}']\nunix-directories = []"));
    assert!(
        messages.contains(&format!("cannot listen on {place}: Address already in use")),
        "{messages}"
    );
    assert!(messages.contains("hint: "), "{messages}");
    // Not even root can create files there.
    let messages = refused("addresses = []\nunix-directories = ['/proc/self']");
    assert!(messages.contains("cannot listen on /proc/self/.s.PGSQL.6432"), "{messages}");
    let messages =
        refused("addresses = []\nunix-directories = ['.']\nunix-group = 'no such group'");
    assert!(messages.contains("cannot use the group \"no such group\""), "{messages}");
}

#[test]
fn second_pooler_on_same_port_fails_to_start() {
    let Some(server) = start_cluster("two poolers") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool =
        PoolerProcess::start(folder.path(), "howdah.toml", &settings_without_password(&server, ""));
    let again = settings_without_password(&server, "")
        .replace("port = 0", &format!("port = {}", pool.port));
    fs::write(folder.path().join("again.toml"), again).unwrap();
    let output =
        howdah(folder.path()).args(["pool", &as_this_user(), "-c", "again.toml"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("is another pooler running there?"), "{messages}");
    pool.terminate();
    assert_eq!(pool.wait().0.code(), Some(0));
}

#[test]
fn both_checks_report_errors_and_ignored_keys() {
    let folder = tempfile::tempdir().unwrap();
    let check = |settings: &str, code: i32| {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let words: [&[&str]; 2] = [&["config", "check"], &["pool", "--check", "-c", "howdah.toml"]];
        words.map(|words| {
            let output = howdah(folder.path()).args(words).assert().code(code);
            text(&output.get_output().stdout)
        })
    };
    let usable = "[pool]\nauth.ident-file = 'x'\n[pool.databases.a]\n";
    let warning = "warning: howdah.toml:2: auth.ident-file: its maps are not used: there is no auth.hba-file\n";
    let [all, own] = check(usable, 0);
    assert_eq!(all, format!("{warning}howdah.toml: ok, 1 values\n"));
    assert_eq!(own, format!("{warning}ok\n"));
    let expected = "howdah.toml:2: listn: unknown key (did you mean `listen`?)";
    for messages in check("[pool]\nlistn = {}\n[pool.databases.a]\n", 3) {
        assert!(messages.starts_with(expected), "{messages}");
    }
    for messages in check("[pool]\n", 3) {
        assert_eq!(messages, "howdah.toml: databases: at least one database is needed\n");
    }
    fs::write(folder.path().join("howdah.toml"), "[statsd]\nprot = 1\n").unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(3);
    let messages = text(&output.get_output().stdout);
    assert!(
        messages.starts_with("howdah.toml:2: prot: unknown key (did you mean `proxy`?)"),
        "{messages}"
    );
}

/// Lines that begin with `differs:` name the keys whose values have another effect than in
/// PgBouncer. They do not prevent the use of the file.
#[test]
fn check_of_pgbouncer_ini_lists_values_with_another_effect() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("userlist.txt");
    fs::write(&users, "\"ann\" \"sesame\"\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let check = |more: &str, code: i32| {
        let ini = format!(
            "[databases]\nshop = host=127.0.0.1\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = 0\n\
             unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = userlist.txt\n{more}"
        );
        fs::write(folder.path().join("pgbouncer.ini"), ini).unwrap();
        let words = ["pool", "--check", "pgbouncer.ini"];
        let output = howdah(folder.path()).args(words).assert().code(code);
        text(&output.get_output().stdout)
    };
    let found = check(
        "server_check_query = select 1\nserver_reset_query = DISCARD ALL\nmin_pool_size = 2\n\
         stats_period = 60\ntrack_extra_parameters = IntervalStyle\n",
        0,
    );
    let differs: Vec<_> = found.lines().filter(|line| line.starts_with("differs: ")).collect();
    let [check_query, min_pool_size] = differs[..] else { panic!("{found}") };
    let expected =
        "differs: pgbouncer.ini:9: server_check_query: a connection that fails the check";
    assert!(check_query.starts_with(expected), "{found}");
    let expected = "differs: pgbouncer.ini:11: min_pool_size: per pool, across all workers";
    assert!(min_pool_size.starts_with(expected), "{found}");
    assert!(found.ends_with("\nok\n"), "{found}");
    // Neither defaults nor PgBouncer's own effects differ. A file with errors cannot be used.
    assert!(
        !check("server_check_query = <empty>\nserver_reset_query = DISCARD ALL\n", 0)
            .contains("differs:")
    );
    let found = check("server_check_query = select 1\nauth_type = pam\n", 3);
    assert!(!found.contains("\nok\n"), "{found}");
}

/// Both SIGHUP and RELOAD on the console open a renamed log file again.
#[test]
fn log_file_is_opened_again_by_both_kinds_of_reload() {
    let Some(server) = start_cluster("log file") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let settings =
        settings_without_password(&server, "log.file = 'pool.log'\nadmin-users = ['postgres']");
    let pool = PoolerProcess::start(folder.path(), "howdah.toml", &settings);
    let mut console = pool.connect("user=postgres dbname=howdah").unwrap();
    for old in ["old.1", "old.2"] {
        fs::rename(path("pool.log"), path(old)).unwrap();
        if old == "old.1" {
            console.query("reload").unwrap();
        } else {
            pool.signal(Signal::HUP);
        }
        wait_until("the new log file has the result of the reload", TIMEOUT, || {
            fs::read_to_string(path("pool.log")).is_ok_and(|log| log.contains("settings reloaded"))
        });
        let before = fs::read_to_string(path(old)).unwrap();
        assert_eq!(before.matches("settings reloaded").count(), usize::from(old == "old.2"));
    }
    pool.terminate();
    assert_eq!(pool.wait().0.code(), Some(0));
}

#[test]
fn check_reports_all_causes_of_a_failed_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("no.key"), "nothing\n").unwrap();
    fs::write(path("file"), "").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = format!(
        "[pool]\nauth.file = 'users'\n[pool.listen]\naddresses = ['127.0.0.1', '192.0.2.1']\n\
         port = {port}\nunix-directories = ['missing', 'file']\nunix-group = 'nobody-is-here'\n\
         [pool.tls.client]\nmode = 'require'\ncertificate = 'no.crt'\nkey = 'no.key'\n\
         [pool.tls.server]\nmode = 'verify-ca'\nca-file = 'no-ca.crt'\n\
         [pool.capture]\npath = 'file/below'\n[pool.databases.a]\n"
    );
    fs::write(path("users"), "").unwrap();
    fs::write(path("howdah.toml"), settings).unwrap();
    let check = |words: &[&str], code: i32| {
        let words = [&["pool", "--check", "-c", "howdah.toml"], words].concat();
        let output = howdah(folder.path()).args(words).assert().code(code);
        text(&output.get_output().stdout)
    };
    let found = check(&[], 3);
    for part in [
        &format!("warning: howdah.toml:4: listen.addresses: 127.0.0.1:{port} is in use"),
        "\nhowdah.toml:4: listen.addresses: cannot listen on 192.0.2.1:",
        "\nhowdah.toml:6: listen.unix-directories: missing: No such file",
        "\nhowdah.toml:6: listen.unix-directories: file is not a directory",
        "\nhowdah.toml:7: listen.unix-group: cannot use the group \"nobody-is-here\"",
        "howdah.toml:10: tls.client.certificate: cannot read no.crt: No such file",
        "howdah.toml:11: tls.client.key: ",
        "howdah.toml:14: tls.server.ca-file: ",
        "howdah.toml:16: capture.path: file is not a directory",
    ] {
        assert!(found.contains(part), "{part}\n{found}");
    }
    // A process that takes over does not bind the addresses.
    assert!(!check(&["--takeover"], 3).contains("listen.addresses"));
    // The hint about another pooler is only given for an address in use.
    let output =
        howdah(folder.path()).args(["pool", &as_this_user(), "-c", "howdah.toml"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("hint: is another pooler running there?"), "{messages}");
    drop(taken);
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.databases.a]\n\
                    [pool.tls.client]\nmode = 'require'\ncertificate = 'no.crt'\nkey = 'no.key'\n";
    fs::write(path("howdah.toml"), settings).unwrap();
    let output =
        howdah(folder.path()).args(["pool", &as_this_user(), "-c", "howdah.toml"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(messages.contains("tls.client.certificate: cannot read no.crt"), "{messages}");
    assert!(
        messages.contains("hint: `howdah pool --check") && !messages.contains("another pooler"),
        "{messages}"
    );
}

#[test]
fn console_changes_log_level() {
    let Some(server) = start_cluster("log level") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_without_password(&server, "admin-users = ['postgres']");
    let pool = PoolerProcess::start(folder.path(), "howdah.toml", &settings);
    let port = pool.port;
    let console = || connect(&format!("host=127.0.0.1 port={port} dbname=pgbouncer user=postgres"));
    let mut console = console().unwrap();
    console.query("set verbose = 0").unwrap();
    console.query("set log-level = warn").unwrap();
    // A reload is logged at level info, which is disabled now.
    console.query("reload").unwrap();
    console.query("set verbose = 1").unwrap();
    assert_eq!(console.query("set verbose = loud").unwrap_err().sqlstate(), Some("22023"));
    assert_eq!(console.query("set log-level = loud").unwrap_err().sqlstate(), Some("22023"));
    console.query("reload").unwrap();
    console.close();
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0));
    assert!(messages.contains("log-level: trace -> info"), "{messages}");
    assert!(messages.contains("log-level: warn -> debug"), "{messages}");
    assert_eq!(messages.matches("settings reloaded").count(), 1, "{messages}");
}

/// The part of `make compat` that uses PostgreSQL's own programs, if they are installed.
#[test]
fn psql_pgbench_and_pg_dump_work_through_pooler() {
    let Some(server) = start_cluster("compat") else { return };
    let folder = tempfile::tempdir().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compat/psql");
    let path = std::env::var("PATH").unwrap_or_default();
    for (mode, script) in [("transaction", "check"), ("session", "dump")] {
        let settings =
            settings_without_password(&server, "sizes = { pool = 2 }").replace("transaction", mode);
        let pool = PoolerProcess::start(folder.path(), "howdah.toml", &settings);
        let output = Command::new(scripts.join(script))
            .env_clear()
            .env("PATH", format!("{}:{path}", server.binaries().dir().display()))
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", pool.port.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
            .env("CLIENTS", "12")
            .output()
            .unwrap();
        let messages = text(&output.stdout);
        assert!(output.status.success(), "{mode}: {messages}{}", text(&output.stderr));
        assert!(messages.ends_with("ok\n"), "{mode}: {messages}");
        pool.terminate();
        assert_eq!(pool.wait().0.code(), Some(0));
    }
}

#[test]
fn garbage_on_the_port_is_not_logged() {
    let Some(server) = start_cluster("garbage") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool =
        PoolerProcess::start(folder.path(), "howdah.toml", &settings_without_password(&server, ""));
    let mut stranger = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
    stranger.write_all(b"GET /secret-Sesame HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert_eq!(answer, b"", "no reply to an unknown protocol");
    let mut client = pool.connect("user=postgres").unwrap();
    assert_eq!(client.one_value("select 'up'").unwrap().as_deref(), Some("up"));
    pool.terminate();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0));
    assert!(!messages.contains("Sesame"), "{messages}");
}

/// The imported file is private, is not overwritten, and passes the check.
#[test]
fn import_converts_pgbouncer_ini() {
    let folder = tempfile::tempdir().unwrap();
    let ini = "[databases]\nshop = host=db1 user=app password=Sesame\n[pgbouncer]\n\
               listen_addr = *\nauth_file = users\nserver_login_retry = 3\npkt_buf = 1\n";
    fs::write(folder.path().join("pgbouncer.ini"), ini).unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "\"u\" \"s\"\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let run = |words: &[&str], code: i32| {
        let output = howdah(folder.path()).args(words).assert().code(code);
        let output = output.get_output();
        (text(&output.stdout), text(&output.stderr))
    };
    let (toml, _) = run(&["pool", "import", "pgbouncer.ini"], 0);
    for part in [
        "# server_login_retry: the longest pause",
        "server-login-retry = 3\n",
        "pgbouncer.ini:7: pkt_buf: ",
        "secret = \"Sesame\"\n",
        "/users\"\n",
    ] {
        assert!(toml.contains(part), "{part} is not in:\n{toml}");
    }
    let to_file = ["pool", "import", "pgbouncer.ini", "-o", "pool.toml"];
    run(&to_file, 0);
    let written = folder.path().join("pool.toml");
    assert_eq!(fs::read_to_string(&written).unwrap(), toml);
    assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o600);
    let (_, messages) = run(&to_file, 1);
    assert!(
        messages.contains("cannot write pool.toml") && messages.contains("not overwritten"),
        "{messages}"
    );
    assert_eq!(run(&["pool", "--check", "-c", "pool.toml"], 0).0, "ok\n");

    // The file of a package has no settings; it keeps its mode, unless that would show passwords.
    for (mode, code) in [(0o640, 0), (0o644, 1)] {
        fs::write(&written, "# Settings of the pooler.\n\n  # [pool]\n").unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(mode)).unwrap();
        let (_, messages) = run(&to_file, code);
        assert_eq!(fs::read_to_string(&written).unwrap() == toml, code == 0, "{messages}");
        assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, mode);
    }

    fs::write(folder.path().join("pgbouncer.ini"), "[pgbouncer]\nlisten_prt = 1\n").unwrap();
    let (_, messages) = run(&["pool", "import", "pgbouncer.ini"], 1);
    assert!(messages.contains(":2: listen_prt: unknown key"), "{messages}");
    let (example, _) = run(&["pool", "--example"], 0);
    fs::write(folder.path().join("howdah.toml"), example).unwrap();
    assert_eq!(run(&["pool", "--check", "-c", "howdah.toml"], 0).0, "ok\n");
}

/// While the pooler drains, a load balancer sees that it accepts no new clients.
#[test]
fn draining_pooler_is_alive_but_not_ready() {
    let Some(server) = start_cluster("readiness") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_without_password(&server, "");
    let mut pool = PoolerProcess::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.args(["--metrics", "127.0.0.1:0"])
    });
    let place = pool.wait_for_value("metrics: http://");
    let address = place.strip_suffix("/metrics").unwrap().to_owned();
    let ask = |path: &str| {
        let mut socket = TcpStream::connect(&address).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/readyz").starts_with("HTTP/1.1 200"));
    let mut busy = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.terminate();
    wait_until("the readiness check to fail", TIMEOUT, || {
        ask("/readyz").starts_with("HTTP/1.1 503")
    });
    assert!(ask("/healthz").starts_with("HTTP/1.1 200"));
    busy.query("commit").unwrap();
    let (status, messages) = pool.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
}

/// Connects and sends a startup packet with these parameters.
fn send_startup_packet(port: u16, parameters: &[(&str, &str)]) -> TcpStream {
    let mut packet = vec![0, 0, 0, 0, 0, 3, 0, 0];
    for (name, value) in parameters {
        packet.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
    }
    packet.push(0);
    let length = u32::try_from(packet.len()).unwrap().to_be_bytes();
    packet[..4].copy_from_slice(&length);
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.write_all(&packet).unwrap();
    socket
}

/// A startup packet can neither forge a line of the log nor control the terminal.
#[test]
fn hostile_startup_packets_are_logged_escaped_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
                    [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n";
    let pool = PoolerProcess::start(folder.path(), "howdah.toml", settings);
    let hostile = "x\"\n2026-11-23T07:00:00.0Z  INFO forged: all is well\r\x1b[2J\u{7f}\u{9b}\u{202e}\u{2028}";
    for parameters in [
        vec![("user", hostile), ("database", "shop")],
        vec![("user", "ann"), ("database", hostile)],
        vec![("user", "ann"), (hostile, "value")],
        vec![("user", "ann"), ("options", hostile)],
        vec![("user", "ann"), ("replication", hostile)],
    ] {
        let mut answer = Vec::new();
        send_startup_packet(pool.port, &parameters).read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), Some(&b'E'), "{parameters:?}");
    }
    pool.terminate();
    let (_, messages) = pool.wait();
    let lines: Vec<_> = messages.lines().filter(|line| line.contains("forged")).collect();
    assert!(lines.len() >= 4, "{messages}");
    for line in lines {
        assert!(line.contains("WARN") && line.contains("login refused"), "{line:?}");
    }
    let is_control = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202e}' | '\u{2028}');
    assert!(!messages.contains(is_control), "{messages:?}");
}

/// Refused logins are logged at the default level and at `warn`.
#[test]
fn refused_logins_are_logged_by_default_and_rate_limited() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
                    [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n";
    let run = |level: Option<&str>| {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        command.args(["pool", &as_this_user(), "--log-format=text", "-c", "howdah.toml"]);
        command.args(level.map(|level| format!("--log-level={level}")));
        command.current_dir(folder.path()).env("HOME", folder.path()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut pool = PoolerProcess { child, stderr, port: 0, output: String::new() };
        pool.port = pool.wait_for_value("listening: ").rsplit_once(':').unwrap().1.parse().unwrap();
        for _ in 0..200 {
            let mut answer = Vec::new();
            let mut socket =
                send_startup_packet(pool.port, &[("user", "mallory"), ("database", "shop")]);
            socket.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.first(), Some(&b'E'));
        }
        for _ in 0..20 {
            let mut socket = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
            socket.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
            // A CancelRequest with an unknown key.
            let mut socket = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
            let cancel = b"\0\0\0\x10\x04\xd2\x16\x2e\x7f\0\0\0wxyz";
            socket.write_all(cancel).unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
        }
        pool.terminate();
        let (status, messages) = pool.wait();
        assert_eq!(status.code(), Some(0), "{messages}");
        messages
    };
    for level in [None, Some("warn")] {
        let messages = run(level);
        let count = |words: &[&str]| {
            messages.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
        };
        let refused = count(&["WARN", "login refused", "user=\"mallory\"", "reason=\"user\""]);
        assert!((10..150).contains(&refused), "{messages}");
        assert!(
            count(&["more logins refused", "reason=\"user\"", "suppressed="]) > 0,
            "{messages}"
        );
        for reason in ["protocol", "cancel-key"] {
            let reason = format!("reason=\"{reason}\"");
            assert!((1..20).contains(&count(&["WARN", &reason])), "{messages}");
        }
        assert_eq!(count(&[" INFO ", "listening"]), usize::from(level.is_none()), "{messages}");
    }
}

/// SIGTERM and SIGINT have PgBouncer's meaning.
#[test]
fn pgbouncer_settings_enable_pgbouncer_signals() {
    let Some(server) = start_cluster("pgbouncer signals") else { return };
    let ini = format!(
        "[databases]\npostgres = host=127.0.0.1 port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = 0\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n",
        server.port()
    );
    let ini = ini.replace("postgres = host", "postgres = user=postgres host");
    let toml = settings_without_password(&server, "shutdown-mode = 'wait-for-clients'");
    for (file, settings) in [("pgbouncer.ini", &ini), ("howdah.toml", &toml)] {
        let folder = tempfile::tempdir().unwrap();
        let pool = PoolerProcess::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        pool.signal(Signal::TERM);
        pool.wait_until_not_listening();
        client.query("select 1").unwrap();
        client.close();
        let (status, messages) = pool.wait();
        assert_eq!(status.code(), Some(0), "{messages}");

        let pool = PoolerProcess::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        pool.signal(Signal::INT);
        let error = loop {
            if let Err(error) = client.query("select 1") {
                break error;
            }
        };
        assert_eq!(error.sqlstate(), Some("57P01"), "{error}");
        let (status, messages) = pool.wait();
        assert_eq!(status.code(), Some(0), "{messages}");

        // A second signal of either kind stops the pooler immediately, with exit code 0.
        let pool = PoolerProcess::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        client.query("begin").unwrap();
        pool.signal(Signal::TERM);
        pool.wait_until_not_listening();
        pool.signal(Signal::INT);
        let (status, messages) = pool.wait();
        assert_eq!(status.code(), Some(0), "{messages}");
        client.query("commit").unwrap_err();
    }
}

#[test]
fn pooler_started_as_root_changes_its_user_or_refuses() {
    if !geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = |more: &str| {
        format!(
            "[pool]\n{more}\n[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
             [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n"
        )
    };
    let refused = |settings: String| {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let ended = howdah(folder.path()).args(["pool", "-c", "howdah.toml"]).assert().code(1);
        text(&ended.get_output().stderr)
    };
    let message = refused(settings(""));
    assert!(message.contains("the pooler must not run as root"), "{message}");
    assert!(message.contains("--os-user"), "{message}");
    let message = refused(settings("os-user = 'nobody-is-here'"));
    assert!(message.contains("there is no user nobody-is-here"), "{message}");
    let check =
        howdah(folder.path()).args(["pool", "--check", "-c", "howdah.toml"]).assert().code(3);
    let check = text(&check.get_output().stdout) + &text(&check.get_output().stderr);
    assert!(check.contains("howdah.toml:2: os-user: there is no user"), "{check}");

    let path = folder.path().join("howdah.toml");
    fs::write(&path, settings("os-user = 'nobody'")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
    command.args(["pool", "--log-format=text", "-c", "howdah.toml"]);
    command.current_dir(folder.path()).env("HOME", folder.path()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut pool = PoolerProcess { child, stderr, port: 0, output: String::new() };
    pool.wait_for_value("listening: ");
    let process = pool.child.id();
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread may have ended meanwhile.
    let statuses: Vec<String> = threads
        .filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("status")).ok())
        .collect();
    pool.terminate();
    let (status, messages) = pool.wait();
    assert!(status.success(), "{messages}");
    // Only root can read the settings.
    assert!(messages.contains("reloads will fail"), "{messages}");
    assert!(statuses.len() >= 2, "{statuses:?}");
    for status in statuses {
        let ids = |name: &str| -> Vec<String> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let user = ids("Uid:");
        assert!(user.len() == 4 && user.iter().all(|id| *id == user[0] && id != "0"), "{status}");
        assert!(ids("Gid:").iter().all(|id| id != "0"), "{status}");
        assert!(ids("Groups:").iter().all(|id| id != "0"), "{status}");
        assert_eq!(ids("CapEff:"), ["0000000000000000"], "{status}");
    }
}

/// Resident memory of a process, in bytes.
fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The limit is documented in `docs/src/reference/security.md`.
#[test]
fn clients_that_have_not_logged_in_cost_little_memory() {
    const CLIENT_BYTES_MAX: u64 = 32 << 10;
    let folder = tempfile::tempdir().unwrap();
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
                    [pool.limits]\nclients = 2000\nlogins = 2000\n\
                    [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n";
    let pool = PoolerProcess::start(folder.path(), "howdah.toml", settings);
    let connect = |count: usize| -> Vec<TcpStream> {
        let connections = (0..count).map(|_| {
            let mut socket = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
            // Half of a startup packet: the pooler waits for the rest.
            socket.write_all(&[0, 0, 1, 0, 0, 3, 0, 0, b'u', b's', b'e', b'r', 0]).unwrap();
            socket
        });
        let connections: Vec<TcpStream> = connections.collect();
        // Both workers have read what was sent before once they have answered later connections.
        for _ in 0..16 {
            let mut last = send_startup_packet(pool.port, &[("user", "nobody"), ("database", "x")]);
            last.read_to_end(&mut Vec::new()).unwrap();
        }
        connections
    };
    let _first = connect(100);
    let before = resident_bytes(pool.child.id());
    let more = connect(300);
    let grown = resident_bytes(pool.child.id()).saturating_sub(before);
    let each = grown / more.len() as u64;
    assert!(each <= CLIENT_BYTES_MAX, "{each} bytes for each client");
    pool.terminate();
    assert!(pool.wait().0.success());
}
