//! `howdah pool` as a service manager and its clients see it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    time::Duration,
};

use howdah_connect::{Client, ConnectError, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{howdah, text};

/// A pooler that runs.
pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    port: u16,
    said: String,
}

impl Server {
    /// Starts one with these settings, in a folder.
    pub(crate) fn start(folder: &Path, file: &str, settings: &str) -> Self {
        Self::start_with(folder, file, settings, |command| command)
    }

    /// The same with more said to it.
    fn start_with(
        folder: &Path,
        file: &str,
        settings: &str,
        more: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        fs::write(folder.join(file), settings).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        command
            .args(["pool", "--log-level=trace", "--log-format=text", "--workers=2", "-c", file])
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped());
        let mut child = more(&mut command).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child, stderr, port: 0, said: String::new() };
        let place = server.line("listening: ");
        server.port = place.rsplit_once(':').unwrap().1.parse().unwrap();
        server
    }

    /// Waits for a line that begins so, and gives the rest of it.
    fn line(&mut self, start: &str) -> String {
        loop {
            let from = self.said.len();
            let read = self.stderr.read_line(&mut self.said).unwrap();
            assert_ne!(read, 0, "no {start:?} in:\n{}", self.said);
            if let Some(rest) = self.said[from..].strip_prefix(start) {
                return rest.trim_end().to_owned();
            }
        }
    }

    fn signal(&self) {
        self.send(Signal::TERM);
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end; how it ended, and all that it said.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap(), self.said)
    }

    pub(crate) fn connect(&self, words: &str) -> Result<Client, ConnectError> {
        connect(&format!("host=127.0.0.1 port={} dbname=postgres {words}", self.port))
    }
}

fn connect(words: &str) -> Result<Client, ConnectError> {
    let words = Words::from_conninfo(words);
    let environment = Environment::empty().with_os_user("tester");
    Client::connect(&Target::resolve(&words, &environment).unwrap())
}

pub(crate) fn cluster(test: &str) -> Option<Cluster> {
    or_say_why_not(test, Cluster::builder().setting("max_connections", "60").start())
}

/// Settings without a password.
pub(crate) fn trusting(server: &Cluster, more: &str) -> String {
    format!(
        "[pool]\nmode = 'transaction'\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    )
}

#[test]
fn sigterm_lets_transactions_end() {
    let Some(server) = cluster("sigterm") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool = Server::start(folder.path(), "howdah.toml", &trusting(&server, ""));
    let mut busy = pool.connect("user=postgres").unwrap();
    let mut idle = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.signal();
    let farewell = loop {
        if let Err(error) = idle.query("select 1") {
            break error;
        }
    };
    assert_eq!(farewell.sqlstate(), Some("57P01"), "{farewell}");
    // Nobody new is let in, and the one who is in a transaction may end it.
    while TcpStream::connect(("127.0.0.1", pool.port)).is_ok() {}
    busy.query("create table kept (a int)").unwrap();
    busy.query("commit").unwrap();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0), "{said}");
    let mut client = connect(&server.uri("postgres")).unwrap();
    assert_eq!(client.one_value("select count(*)::text from kept").unwrap().as_deref(), Some("0"));
}

#[test]
fn the_deadline_and_a_second_signal_end_transactions() {
    let Some(server) = cluster("second signal") else { return };
    let folder = tempfile::tempdir().unwrap();
    let soon = trusting(&server, "timeouts = { shutdown = '50ms' }");
    let pool = Server::start(folder.path(), "howdah.toml", &soon);
    let mut busy = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0), "{said}");
    busy.query("commit").unwrap_err();

    let pool = Server::start(folder.path(), "howdah.toml", &trusting(&server, ""));
    let mut busy = pool.connect("user=postgres").unwrap();
    busy.query("begin").unwrap();
    pool.signal();
    // The first one was heard when nobody listens any more.
    while TcpStream::connect(("127.0.0.1", pool.port)).is_ok() {}
    busy.query("select 1").unwrap();
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{said}");
}

#[test]
fn a_new_process_takes_over_and_the_old_one_ends() {
    let Some(server) = cluster("takeover") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = trusting(&server, "").replace("port = 0", "port = 0\ntakeover = 'takeover'");
    let old = Server::start(folder.path(), "howdah.toml", &settings);
    let mut client = old.connect("user=postgres").unwrap();
    client.query("set application_name = 'mover'").unwrap();
    while !folder.path().join("takeover").exists() {}
    let new = Server::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.arg("--takeover")
    });
    assert_eq!(new.port, old.port);
    let (status, said) = old.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("another process has taken over"), "{said}");
    let name = client.one_value("select current_setting('application_name')").unwrap();
    assert_eq!(name.as_deref(), Some("mover"));
    new.connect("user=postgres").unwrap().query("select 1").unwrap();
    new.signal();
    let (status, said) = new.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("taken over clients=1"), "{said}");
    let output =
        howdah(folder.path()).args(["pool", "-c", "howdah.toml", "--takeover"]).assert().code(1);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("cannot take over: ") && said.contains("hint: "), "{said}");
}

/// A service manager of `Type=notify-reload` is told when a reload begins and when it is over.
#[test]
fn sighup_reads_the_settings_again() {
    let Some(server) = cluster("sighup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut state = [0; 4096];
        let length = manager.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    let settings = trusting(&server, "");
    let pool = Server::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.env("NOTIFY_SOCKET", folder.path().join("notify"))
    });
    assert!(told().starts_with("READY=1"));
    let mut client = pool.connect("user=postgres").unwrap();
    for (settings, status) in [
        (
            trusting(&server, "sizes = { pool = 3 }\nworkers = 1"),
            "STATUS=settings read again, 1 changes",
        ),
        (trusting(&server, "sizes = { pol = 3 }"), "STATUS=settings not changed"),
    ] {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        pool.send(Signal::HUP);
        let began = told();
        let at = began.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(at.parse::<u64>().unwrap() > 0, "{began}");
        let over = told();
        assert!(over.starts_with("READY=1\n") && over.contains(status), "{over}");
    }
    client.query("select 1").unwrap();
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("settings: sizes.pool: 20 -> 3"), "{said}");
    assert!(
        said.contains(
            "settings not changed: howdah.toml:3: sizes.pol: no such key (did you mean `pool`?)"
        ),
        "{said}"
    );
    // --workers=2 wins over the file, then and now.
    assert!(!said.contains("settings: workers"), "{said}");
}

/// A pgbouncer.ini as people have it, its users in a file of their own; and no secret in the log,
/// however much is logged.
#[test]
fn a_pgbouncer_ini_is_enough_and_its_secrets_stay_out_of_the_log() {
    let Some(server) = cluster("pgbouncer.ini") else { return };
    let mut client = connect(&server.uri("postgres")).unwrap();
    let (plain, kept) = ("plain-Sesame-4711", "kept-Sesame-4712");
    client.query(&format!("create role plain login password '{plain}'")).unwrap();
    client.query(&format!("create role kept login password '{kept}'")).unwrap();
    let stored = "select rolpassword from pg_authid where rolname = 'kept'";
    let stored = client.one_value(stored).unwrap().unwrap();
    // From now on the server asks for passwords.
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
         pool_mode = transaction\ndefault_pool_size = 2\nlogfile = /var/log/pgbouncer.log\n",
        server.port()
    );
    let pool = Server::start(folder.path(), "pgbouncer.ini", &ini);
    for (user, password) in [("plain", plain), ("kept", kept)] {
        let mut client = pool.connect(&format!("user={user} password={password}")).unwrap();
        assert_eq!(client.one_value("select current_user::text").unwrap().as_deref(), Some(user));
        let error = pool.connect(&format!("user={user} password=wrong-Sesame-4713")).unwrap_err();
        assert_eq!(error.sqlstate(), Some("28P01"), "{error}");
    }
    let error = pool.connect("user=nobody password=no-Sesame-4714").unwrap_err();
    assert_eq!(error.sqlstate(), Some("28P01"), "{error}");
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("logfile"), "a key without effect is named:\n{said}");
    assert_eq!(said.contains("running as root"), geteuid().is_root(), "{said}");
    let keys = stored.rsplit('$').next().unwrap().split(':');
    for secret in keys.chain([&stored[..], "Sesame", plain, kept]) {
        assert!(!said.contains(secret), "{secret} is in the log:\n{said}");
    }
}

#[test]
fn places_that_cannot_be_listened_at_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |listen: &str| {
        let settings = format!(
            "[pool.listen]\n{listen}\n[pool.databases.postgres]\nhosts = ['127.0.0.1:1']\n"
        );
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let output = howdah(folder.path()).args(["pool", "-c", "howdah.toml"]).assert().code(1);
        text(&output.get_output().stderr)
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap();
    let said = refused(&format!("addresses = ['{place}']\nunix-directories = []"));
    assert!(said.contains(&format!("cannot listen on {place}: Address already in use")), "{said}");
    assert!(said.contains("hint: "), "{said}");
    // Nobody may make anything there, root neither.
    let said = refused("addresses = []\nunix-directories = ['/proc/self']");
    assert!(said.contains("cannot listen on /proc/self/.s.PGSQL.6432"), "{said}");
    let said = refused("addresses = []\nunix-directories = ['.']\nunix-group = 'no such group'");
    assert!(said.contains("cannot use the group \"no such group\""), "{said}");
}

#[test]
fn a_second_pooler_does_not_take_half_of_the_first_ones_clients() {
    let Some(server) = cluster("two poolers") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool = Server::start(folder.path(), "howdah.toml", &trusting(&server, ""));
    let again = trusting(&server, "").replace("port = 0", &format!("port = {}", pool.port));
    fs::write(folder.path().join("again.toml"), again).unwrap();
    let output = howdah(folder.path()).args(["pool", "-c", "again.toml"]).assert().code(1);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("is another pooler running there?"), "{said}");
    pool.signal();
    assert_eq!(pool.end().0.code(), Some(0));
}

#[test]
fn what_is_wrong_or_without_effect_is_told_by_both_checks() {
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
    let warning =
        "warning: howdah.toml:2: auth.ident-file: there is no auth.hba-file to name its maps\n";
    let [all, own] = check(usable, 0);
    assert_eq!(all, format!("{warning}howdah.toml: ok, 1 values\n"));
    assert_eq!(own, format!("{warning}ok\n"));
    let told = "howdah.toml:2: listn: no such key (did you mean `listen`?)";
    for said in check("[pool]\nlistn = {}\n[pool.databases.a]\n", 3) {
        assert!(said.starts_with(told), "{said}");
    }
    for said in check("[pool]\n", 3) {
        assert_eq!(said, "howdah.toml: databases: at least one database is needed\n");
    }
    fs::write(folder.path().join("howdah.toml"), "[statsd]\nprot = 1\n").unwrap();
    let output = howdah(folder.path()).args(["config", "check"]).assert().code(3);
    let said = text(&output.get_output().stdout);
    assert!(said.starts_with("howdah.toml: line 2: "), "{said}");
}

#[test]
fn check_tells_all_that_a_start_would_fail_on() {
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
        "\nhowdah.toml:6: listen.unix-directories: file is no directory",
        "\nhowdah.toml:7: listen.unix-group: cannot use the group \"nobody-is-here\"",
        "howdah.toml:10: tls.client.certificate: cannot read no.crt: No such file",
        "howdah.toml:11: tls.client.key: ",
        "howdah.toml:14: tls.server.ca-file: ",
        "howdah.toml:16: capture.path: file is no directory",
    ] {
        assert!(found.contains(part), "{part}\n{found}");
    }
    // What another process has is not for one that takes it over.
    assert!(!check(&["--takeover"], 3).contains("listen.addresses"));
    // A start that fails names the file, and no other pooler.
    let output = howdah(folder.path()).args(["pool", "-c", "howdah.toml"]).assert().code(1);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("hint: is another pooler running there?"), "{said}");
    drop(taken);
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.databases.a]\n\
                    [pool.tls.client]\nmode = 'require'\ncertificate = 'no.crt'\nkey = 'no.key'\n";
    fs::write(path("howdah.toml"), settings).unwrap();
    let output = howdah(folder.path()).args(["pool", "-c", "howdah.toml"]).assert().code(1);
    let said = text(&output.get_output().stderr);
    assert!(said.contains("tls.client.certificate: cannot read no.crt"), "{said}");
    assert!(
        said.contains("hint: `howdah pool --check") && !said.contains("another pooler"),
        "{said}"
    );
}

#[test]
fn operators_change_the_level_of_the_log() {
    let Some(server) = cluster("log level") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = trusting(&server, "admin-users = ['postgres']");
    let pool = Server::start(folder.path(), "howdah.toml", &settings);
    let port = pool.port;
    let console = || connect(&format!("host=127.0.0.1 port={port} dbname=pgbouncer user=postgres"));
    let mut console = console().unwrap();
    console.query("set verbose = 0").unwrap();
    console.query("set log-level = warn").unwrap();
    // Logged at level info, before the answer: not this time.
    console.query("reload").unwrap();
    console.query("set verbose = 1").unwrap();
    assert_eq!(console.query("set verbose = loud").unwrap_err().sqlstate(), Some("22023"));
    assert_eq!(console.query("set log-level = loud").unwrap_err().sqlstate(), Some("22023"));
    console.query("reload").unwrap();
    console.close();
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0));
    assert!(said.contains("log-level: trace -> info"), "{said}");
    assert!(said.contains("log-level: warn -> debug"), "{said}");
    assert_eq!(said.matches("settings read again").count(), 1, "{said}");
}

/// What `make compat` does with PostgreSQL's own programs, as far as the machine has them.
#[test]
fn psql_pgbench_and_pg_dump_work_through_the_pooler() {
    let Some(server) = cluster("compat") else { return };
    let folder = tempfile::tempdir().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compat/psql");
    let path = std::env::var("PATH").unwrap_or_default();
    for (mode, script) in [("transaction", "check"), ("session", "dump")] {
        let settings = trusting(&server, "sizes = { pool = 2 }").replace("transaction", mode);
        let pool = Server::start(folder.path(), "howdah.toml", &settings);
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
        let said = text(&output.stdout);
        assert!(output.status.success(), "{mode}: {said}{}", text(&output.stderr));
        assert!(said.ends_with("ok\n"), "{mode}: {said}");
        pool.signal();
        assert_eq!(pool.end().0.code(), Some(0));
    }
}

#[test]
fn garbage_on_the_port_is_for_nobodys_log() {
    let Some(server) = cluster("garbage") else { return };
    let folder = tempfile::tempdir().unwrap();
    let pool = Server::start(folder.path(), "howdah.toml", &trusting(&server, ""));
    let mut stranger = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
    stranger.write_all(b"GET /secret-Sesame HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert_eq!(answer, b"", "nothing is said to who speaks another language");
    let mut client = pool.connect("user=postgres").unwrap();
    assert_eq!(client.one_value("select 'up'").unwrap().as_deref(), Some("up"));
    pool.signal();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0));
    assert!(!said.contains("Sesame"), "{said}");
}

/// What PgBouncer was told, in our words: it is written once, kept from others, and means the same.
#[test]
fn a_pgbouncer_ini_is_imported() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let ini = "[databases]\nshop = host=db1 user=app password=Sesame\n[pgbouncer]\n\
               listen_addr = *\nauth_file = users\nserver_login_retry = 3\nlogfile = x\n";
    fs::write(folder.path().join("pgbouncer.ini"), ini).unwrap();
    fs::write(folder.path().join("users"), "\"u\" \"s\"\n").unwrap();
    let run = |words: &[&str], code: i32| {
        let output = howdah(folder.path()).args(words).assert().code(code);
        let output = output.get_output();
        (text(&output.stdout), text(&output.stderr))
    };
    let (toml, _) = run(&["pool", "import", "pgbouncer.ini"], 0);
    for part in [
        "# server_login_retry: the longest pause",
        "server-login-retry = 3\n",
        "pgbouncer.ini:7: logfile: ",
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
    let (_, said) = run(&to_file, 1);
    assert!(said.contains("cannot write pool.toml") && said.contains("not written over"), "{said}");
    assert_eq!(run(&["pool", "--check", "-c", "pool.toml"], 0).0, "ok\n");
    fs::write(folder.path().join("pgbouncer.ini"), "[pgbouncer]\nlisten_prt = 1\n").unwrap();
    let (_, said) = run(&["pool", "import", "pgbouncer.ini"], 1);
    assert!(said.contains(":2: listen_prt: no such key"), "{said}");
    let (example, _) = run(&["pool", "--example"], 0);
    fs::write(folder.path().join("howdah.toml"), example).unwrap();
    assert_eq!(run(&["pool", "--check", "-c", "howdah.toml"], 0).0, "ok\n");
}

/// A load balancer is told that nobody new is taken while those who are there end their work.
#[test]
fn who_drains_is_alive_and_not_ready() {
    let Some(server) = cluster("readiness") else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = trusting(&server, "");
    let mut pool = Server::start_with(folder.path(), "howdah.toml", &settings, |command| {
        command.args(["--metrics", "127.0.0.1:0"])
    });
    let place = pool.line("metrics: http://");
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
    pool.signal();
    while !ask("/readyz").starts_with("HTTP/1.1 503") {}
    assert!(ask("/healthz").starts_with("HTTP/1.1 200"));
    busy.query("commit").unwrap();
    let (status, said) = pool.end();
    assert_eq!(status.code(), Some(0), "{said}");
}

/// Connects and sends a startup packet with these parameters.
fn start(port: u16, parameters: &[(&str, &str)]) -> TcpStream {
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

/// Whatever a stranger puts into a startup packet, it makes no line of the log and controls no terminal.
#[test]
fn hostile_startup_packets_make_one_escaped_line_each_in_the_text_log() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
                    [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n";
    let pool = Server::start(folder.path(), "howdah.toml", settings);
    let hostile = "x\"\n2026-11-23T07:00:00.0Z  INFO forged: all is well\r\x1b[2J\u{7f}\u{9b}\u{202e}\u{2028}";
    for parameters in [
        vec![("user", hostile), ("database", "shop")],
        vec![("user", "ann"), ("database", hostile)],
        vec![("user", "ann"), (hostile, "value")],
        vec![("user", "ann"), ("options", hostile)],
        vec![("user", "ann"), ("replication", hostile)],
    ] {
        let mut answer = Vec::new();
        start(pool.port, &parameters).read_to_end(&mut answer).unwrap();
        assert_eq!(answer.first(), Some(&b'E'), "{parameters:?}");
    }
    pool.signal();
    let (_, said) = pool.end();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("forged")).collect();
    assert!(lines.len() >= 4, "{said}");
    for line in lines {
        assert!(line.contains("WARN") && line.contains("login refused"), "{line:?}");
    }
    let is_control = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202e}' | '\u{2028}');
    assert!(!said.contains(is_control), "{said:?}");
}

/// Nobody has to raise the level to see who was refused.
#[test]
fn refused_logins_are_logged_by_default_and_summed_up_when_there_are_many() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
                    [pool.users.ann]\n[pool.databases.shop]\nhosts = ['127.0.0.1:1']\n";
    let run = |level: Option<&str>| {
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("howdah"));
        command.args(["pool", "--log-format=text", "-c", "howdah.toml"]);
        command.args(level.map(|level| format!("--log-level={level}")));
        command.current_dir(folder.path()).env("HOME", folder.path()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut pool = Server { child, stderr, port: 0, said: String::new() };
        pool.port = pool.line("listening: ").rsplit_once(':').unwrap().1.parse().unwrap();
        for _ in 0..200 {
            let mut answer = Vec::new();
            let mut socket = start(pool.port, &[("user", "mallory"), ("database", "shop")]);
            socket.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.first(), Some(&b'E'));
        }
        for _ in 0..20 {
            let mut socket = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
            socket.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
            // A CancelRequest for nobody.
            let mut socket = TcpStream::connect(("127.0.0.1", pool.port)).unwrap();
            let cancel = b"\0\0\0\x10\x04\xd2\x16\x2e\x7f\0\0\0wxyz";
            socket.write_all(cancel).unwrap();
            let _ = socket.read_to_end(&mut Vec::new());
        }
        pool.signal();
        let (status, said) = pool.end();
        assert_eq!(status.code(), Some(0), "{said}");
        said
    };
    for level in [None, Some("warn")] {
        let said = run(level);
        let count = |words: &[&str]| {
            said.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
        };
        let refused = count(&["WARN", "login refused", "user=\"mallory\"", "reason=\"user\""]);
        assert!((10..150).contains(&refused), "{said}");
        assert!(count(&["more logins refused", "reason=\"user\"", "suppressed="]) > 0, "{said}");
        for reason in ["protocol", "cancel-key"] {
            let reason = format!("reason=\"{reason}\"");
            assert!((1..20).contains(&count(&["WARN", &reason])), "{said}");
        }
        assert_eq!(count(&[" INFO ", "listening"]), usize::from(level.is_none()), "{said}");
    }
}

/// SIGTERM and SIGINT are those of PgBouncer.
#[test]
fn signals_mean_what_they_mean_for_pgbouncer_when_the_settings_are_its_own() {
    let Some(server) = cluster("pgbouncer signals") else { return };
    let ini = format!(
        "[databases]\npostgres = host=127.0.0.1 port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = 0\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n",
        server.port()
    );
    let ini = ini.replace("postgres = host", "postgres = user=postgres host");
    let toml = trusting(&server, "shutdown-mode = 'wait-for-clients'");
    for (file, settings) in [("pgbouncer.ini", &ini), ("howdah.toml", &toml)] {
        let folder = tempfile::tempdir().unwrap();
        let pool = Server::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        pool.send(Signal::TERM);
        while TcpStream::connect(("127.0.0.1", pool.port)).is_ok() {}
        client.query("select 1").unwrap();
        client.close();
        let (status, said) = pool.end();
        assert_eq!(status.code(), Some(0), "{said}");

        let pool = Server::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        pool.send(Signal::INT);
        let farewell = loop {
            if let Err(error) = client.query("select 1") {
                break error;
            }
        };
        assert_eq!(farewell.sqlstate(), Some("57P01"), "{farewell}");
        let (status, said) = pool.end();
        assert_eq!(status.code(), Some(0), "{said}");

        // A second one of either kind is at once, and is no crash.
        let pool = Server::start(folder.path(), file, settings);
        let mut client = pool.connect("user=postgres").unwrap();
        client.query("begin").unwrap();
        pool.send(Signal::TERM);
        while TcpStream::connect(("127.0.0.1", pool.port)).is_ok() {}
        pool.send(Signal::INT);
        let (status, said) = pool.end();
        assert_eq!(status.code(), Some(0), "{said}");
        client.query("commit").unwrap_err();
    }
}
