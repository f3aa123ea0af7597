//! `howdah top --pooler`: who is behind which session, by a real PgBouncer and by our own pooler.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use serde_json::Value;

use crate::{howdah, text};

/// A pooler in transaction mode, in front of a cluster, with two server connections to its database `postgres`.
struct Pooler {
    child: Child,
    port: u16,
    /// The database of its console.
    console: &'static str,
    _folder: tempfile::TempDir,
}

impl Pooler {
    /// `None`, said on stderr, where there is no PgBouncer.
    fn bouncer(cluster: &Cluster) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ini = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\nadmin_users = postgres\npool_mode = transaction\n\
             default_pool_size = 2\nignore_startup_parameters = extra_float_digits\n",
            cluster.port()
        );
        let path = folder.path().join("pgbouncer.ini");
        fs::write(&path, ini).unwrap();
        // It refuses to be root, and reads its file as somebody else then.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut command = Command::new(program()?);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        let child = command.arg("-q").arg(&path).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "PgBouncer has ended");
            std::thread::yield_now();
        }
        Some(Self { child, port, console: "pgbouncer", _folder: folder })
    }

    /// Our own.
    fn howdah(cluster: &Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = format!(
            "[pool]\nmode = 'transaction'\nsizes = {{ pool = 2 }}\nadmin-users = ['postgres']\n\
             [pool.listen]\nport = 0\nunix-directories = []\n\
             [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
             [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
            cluster.port()
        );
        fs::write(folder.path().join("howdah.toml"), settings).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_howdah"))
            .args(["pool", "-c", "howdah.toml"])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let place = said.find_map(|line| line.strip_prefix("listening: ").map(str::to_owned));
        let port = place.unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        // It goes on saying things, and must not wait for a reader.
        std::thread::spawn(move || said.for_each(drop));
        Self { child, port, console: "howdah", _folder: folder }
    }

    fn console(&self) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{}", self.port, self.console)
    }

    fn client(&self, application: &str) -> Client {
        connect(&format!(
            "postgresql://postgres@127.0.0.1:{}/postgres?application_name={application}",
            self.port
        ))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// PgBouncer: where Debian has it, or where `scripts/setup` unpacks it.
fn program() -> Option<PathBuf> {
    let unpacked =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/receivers/usr/sbin/pgbouncer");
    let places =
        ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer", unpacked];
    let found = places.map(PathBuf::from).into_iter().find(|path| path.exists());
    if found.is_none() {
        let required = std::env::var_os("HOWDAH_LAB_REQUIRED").is_some_and(|value| value == "1");
        assert!(!required, "there is no PgBouncer: scripts/setup brings it");
        // To stderr itself, which the test harness does not hide even when a test passes.
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: there is no PgBouncer: scripts/setup brings it");
    }
    found
}

fn connect(uri: &str) -> Client {
    let target = Target::resolve(&Words::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).unwrap()
}

/// The rows of one look.
fn rows(folder: &Path, cluster: &Cluster, words: &[&str]) -> Vec<Value> {
    let uri = cluster.uri("postgres");
    let output = howdah(folder)
        .args(["top", &uri, "--once", "--format", "json"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["samples"][0]["rows"].as_array().unwrap().clone()
}

#[test]
fn pgbouncer_names_the_client_behind_a_session() {
    let Some(cluster) = or_say_why_not("top pooler", Cluster::builder().start()) else { return };
    let Some(bouncer) = Pooler::bouncer(&cluster) else { return };
    clients_are_named(&cluster, &bouncer);
}

#[test]
fn our_own_pooler_names_the_client_behind_a_session() {
    let Some(cluster) = or_say_why_not("top pool", Cluster::builder().start()) else { return };
    clients_are_named(&cluster, &Pooler::howdah(&cluster));
}

/// Clients are named by the sessions they hold, and those who wait are shown.
fn clients_are_named(cluster: &Cluster, pooler: &Pooler) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cart, mut order) = (pooler.client("cart"), pooler.client("order"));
    cart.query("BEGIN; SELECT 'of the cart'").unwrap();
    order.query("BEGIN; SELECT 'of the order'").unwrap();
    // There is no third server connection.
    let mut report = pooler.client("report");
    let waits = std::thread::spawn(move || report.query("SELECT 'of the report'").map(drop));
    let console = pooler.console();
    let end = Instant::now() + Duration::from_secs(60);
    let clients = loop {
        let rows = rows(folder.path(), cluster, &["--view", "clients", "--pooler", &console]);
        if rows.len() == 3 {
            break rows;
        }
        assert!(Instant::now() < end, "never three clients: {rows:?}");
    };
    let by = |rows: &[Value], application: &str| {
        rows.iter().find(|row| row["application"] == application).unwrap().clone()
    };
    assert_eq!(by(&clients, "cart")["query"], "BEGIN; SELECT 'of the cart'");
    assert_eq!(by(&clients, "cart")["session"], "idle in transaction");
    let waiting = by(&clients, "report");
    assert_eq!((&waiting["state"], &waiting["pid"]), (&"waiting".into(), &Value::Null));
    assert!(waiting["waits"].as_f64().unwrap() >= 0.0);
    let sessions = rows(folder.path(), cluster, &["--pooler", &console]);
    for (client, statement) in
        [("cart", "BEGIN; SELECT 'of the cart'"), ("order", "BEGIN; SELECT 'of the order'")]
    {
        let session = sessions.iter().find(|row| row["query"] == statement).unwrap();
        assert_eq!(session["pid"], by(&clients, client)["pid"]);
        let pooled = session["pooled"].as_str().unwrap();
        assert!(pooled.starts_with("127.0.0.1:"), "{pooled}");
        assert!(pooled.ends_with(&format!(" postgres@postgres {client}")), "{pooled}");
    }
    cart.query("COMMIT").unwrap();
    waits.join().unwrap().unwrap();
    order.query("COMMIT").unwrap();
    // Nobody holds anything now: sessions stay, and are nobody's.
    let sessions = rows(folder.path(), cluster, &["--idle", "--pooler", &console]);
    assert!(sessions.iter().all(|row| row["pooled"].is_null()), "{sessions:?}");
}

#[test]
fn a_pooler_that_is_away_costs_only_the_names() {
    let Some(cluster) = or_say_why_not("top no pooler", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = connect(&cluster.uri("postgres"));
    client.query("BEGIN; SELECT 'kept'").unwrap();
    // One that takes connections and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let console = format!("postgresql://stats@{}/pgbouncer", silent.local_addr().unwrap());
    let sessions = rows(folder.path(), &cluster, &["--pooler", &console]);
    let mine = sessions.iter().find(|row| row["query"] == "BEGIN; SELECT 'kept'").unwrap();
    assert!(mine["pooled"].is_null());
}
