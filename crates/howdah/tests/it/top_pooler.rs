//! `howdah top --pooler`: which client uses which session, with PgBouncer and with `howdah pool`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_for, wait_until};
use serde_json::Value;

use crate::{as_this_user, howdah, text};

/// A pooler in transaction mode with two server connections to the database `postgres` of a
/// cluster.
struct TestPooler {
    child: Child,
    port: u16,
    /// The name of the console's database.
    console: &'static str,
    _folder: tempfile::TempDir,
}

impl TestPooler {
    /// Starts PgBouncer; `None` if it is not installed.
    fn start_pgbouncer(cluster: &Cluster) -> Option<Self> {
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
        // PgBouncer refuses to run as root, so another user reads the file.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut command = Command::new(find_pgbouncer()?);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        let child = command.arg("-q").arg(&path).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        wait_until("PgBouncer to listen", Duration::from_secs(60), || {
            assert!(child.try_wait().unwrap().is_none(), "PgBouncer has exited");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(Self { child, port, console: "pgbouncer", _folder: folder })
    }

    /// Starts `howdah pool`.
    fn start_howdah(cluster: &Cluster) -> Self {
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
            .args(["pool", &as_this_user(), "-c", "howdah.toml"])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let place = messages.find_map(|line| line.strip_prefix("listening: ").map(str::to_owned));
        let port = place.unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        // Drains stderr, so that the pooler never blocks on a full pipe.
        std::thread::spawn(move || messages.for_each(drop));
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

impl Drop for TestPooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Finds PgBouncer: installed, or unpacked by `scripts/setup`.
fn find_pgbouncer() -> Option<PathBuf> {
    let unpacked =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/receivers/usr/sbin/pgbouncer");
    let places =
        ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer", unpacked];
    let found = places.map(PathBuf::from).into_iter().find(|path| path.exists());
    if found.is_none() {
        let required = std::env::var_os("HOWDAH_LAB_REQUIRED").is_some_and(|value| value == "1");
        assert!(!required, "PgBouncer is not installed: run scripts/setup");
        // Written to stderr directly, so that the test harness does not hide it.
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: PgBouncer is not installed: run scripts/setup");
    }
    found
}

fn connect(uri: &str) -> Client {
    let target =
        ConnectTarget::resolve(&ConnParams::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).unwrap()
}

/// The rows of one sample.
fn top_rows(folder: &Path, cluster: &Cluster, words: &[&str]) -> Vec<Value> {
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
fn pgbouncer_reports_client_of_each_session() {
    let Some(cluster) = skip_without_postgres("top pooler", Cluster::builder().start()) else {
        return;
    };
    let Some(bouncer) = TestPooler::start_pgbouncer(&cluster) else { return };
    check_client_names(&cluster, &bouncer);
}

#[test]
fn howdah_pool_reports_client_of_each_session() {
    let Some(cluster) = skip_without_postgres("top pool", Cluster::builder().start()) else {
        return;
    };
    check_client_names(&cluster, &TestPooler::start_howdah(&cluster));
}

/// Sessions show the name of their client, and waiting clients are listed.
fn check_client_names(cluster: &Cluster, pooler: &TestPooler) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cart, mut order) = (pooler.client("cart"), pooler.client("order"));
    cart.query("BEGIN; SELECT 'of the cart'").unwrap();
    order.query("BEGIN; SELECT 'of the order'").unwrap();
    // The third client waits, because the pool has two connections.
    let mut report = pooler.client("report");
    let waits = std::thread::spawn(move || report.query("SELECT 'of the report'").map(drop));
    let console = pooler.console();
    let clients = wait_for("three clients", Duration::from_secs(60), || {
        let rows = top_rows(folder.path(), cluster, &["--view", "clients", "--pooler", &console]);
        (rows.len() == 3).then_some(rows)
    });
    let by = |rows: &[Value], application: &str| {
        rows.iter().find(|row| row["application"] == application).unwrap().clone()
    };
    assert_eq!(by(&clients, "cart")["query"], "BEGIN; SELECT 'of the cart'");
    assert_eq!(by(&clients, "cart")["session"], "idle in transaction");
    let waiting = by(&clients, "report");
    assert_eq!((&waiting["state"], &waiting["pid"]), (&"waiting".into(), &Value::Null));
    assert!(waiting["waits"].as_f64().unwrap() >= 0.0);
    let sessions = top_rows(folder.path(), cluster, &["--pooler", &console]);
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
    // No client uses a connection now: sessions remain without a client.
    let sessions = top_rows(folder.path(), cluster, &["--idle", "--pooler", &console]);
    assert!(sessions.iter().all(|row| row["pooled"].is_null()), "{sessions:?}");
}

#[test]
fn unresponsive_pooler_only_omits_client_names() {
    let Some(cluster) = skip_without_postgres("top no pooler", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut client = connect(&cluster.uri("postgres"));
    client.query("BEGIN; SELECT 'kept'").unwrap();
    // Accepts connections but never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let console = format!("postgresql://stats@{}/pgbouncer", silent.local_addr().unwrap());
    let sessions = top_rows(folder.path(), &cluster, &["--pooler", &console]);
    let mine = sessions.iter().find(|row| row["query"] == "BEGIN; SELECT 'kept'").unwrap();
    assert!(mine["pooled"].is_null());
}
