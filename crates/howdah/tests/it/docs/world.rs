//! [`World`]: the hosts, files and accounts that the pages speak of, as real ones that only one
//! thread of the tests sees.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use howdah_lab::{Cluster, skip_without_postgres};
use rustix::thread::UnshareFlags;
use serde_json::Value;
use tempfile::TempDir;

use super::root;
use crate::text;

/// A server that the pages name.
struct NamedServer {
    host: &'static str,
    /// The address that stands for the host here.
    address: &'static str,
    port: u16,
    major: Option<u32>,
    /// The host whose standby it is.
    primary: Option<&'static str>,
}

const fn server(host: &'static str, address: &'static str) -> NamedServer {
    NamedServer { host, address, port: 5432, major: None, primary: None }
}

/// Primaries come before their standbys. A server is started if the page names its host.
const SERVERS: [NamedServer; 16] = [
    server("localhost", "127.0.0.1"),
    NamedServer { port: 5433, ..server("localhost:5433", "127.0.0.1") },
    NamedServer { primary: Some("localhost"), ..server("standby", "127.0.1.1") },
    server("db1", "127.0.1.2"),
    NamedServer { primary: Some("db1"), ..server("db2", "127.0.1.3") },
    NamedServer { primary: Some("db1"), ..server("db3", "127.0.1.4") },
    server("production", "127.0.1.5"),
    server("copy", "127.0.1.6"),
    server("copy-a", "127.0.1.7"),
    server("copy-b", "127.0.1.8"),
    server("old-copy", "127.0.1.9"),
    server("new-copy", "127.0.1.10"),
    NamedServer { major: Some(15), ..server("copy15", "127.0.1.11") },
    server("copy16", "127.0.1.12"),
    server("copy17", "127.0.1.13"),
    NamedServer { major: Some(18), ..server("copy18", "127.0.1.14") },
];

/// Folders whose contents the pages may change: each is covered by a copy that is forgotten.
const COVERED: [&str; 4] = ["/etc", "/var", "/srv", "/usr/local"];

/// The roles of every server.
const ROLES: &str = "
    create role root superuser login;
    create role nobody login;
    create role app superuser login; create role dba superuser login;
    create role warm superuser login; create role watcher superuser login;
    create role reader superuser login; create role stats login;
    create role sharding_user superuser login; create role admin_user login;
    create role howdah login; grant pg_monitor, pg_read_all_data to howdah;";
/// Databases in addition to `shop`, each with what a page that needs it contains.
const DATABASES: [(&str, &str); 2] = [("sharded_db", "sharded_db"), ("root", "psql -c")];
const TABLES: &str = "
    create table items (id int primary key, note text);
    insert into items select i, repeat('x', 100) from generate_series(1, 20000) i;
    create schema sales;
    create table sales.invoices as select i id from generate_series(1, 1000) i;
    create extension pg_prewarm; create extension pg_buffercache;
    create extension pg_stat_statements;
    analyze;";

pub(super) struct World {
    /// Where commands run.
    pub(super) folder: TempDir,
    servers: Vec<(&'static str, Cluster)>,
}

impl World {
    /// Starts the servers that a page names. `None` if this machine cannot: without PostgreSQL, or
    /// if namespaces are not allowed here.
    ///
    /// The thread leaves the network, and sees other folders than the rest of the process.
    pub(super) fn new(page: &str, commands: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let test = format!("the commands of {page}");
        if !isolate(folder.path()) {
            skip(&format!("{test}: only root can make namespaces and mounts, if at all"));
            return None;
        }
        let mut world = Self { folder, servers: Vec::new() };
        world.make_files();
        for server in &SERVERS {
            if server.host != "localhost" && !names_host(commands, server.host) {
                continue;
            }
            let cluster = skip_without_postgres(&test, world.start(server, commands))?;
            world.servers.push((server.host, cluster));
        }
        world.link_sockets();
        Some(world)
    }

    fn start(
        &self,
        server: &NamedServer,
        commands: &str,
    ) -> Result<Cluster, howdah_lab::ClusterError> {
        let mut builder = Cluster::builder()
            .name("docs")
            .port(server.port)
            .setting("listen_addresses", server.address)
            .setting("max_connections", "200")
            .setting("shared_preload_libraries", "pg_stat_statements,pg_prewarm")
            .setting("unix_socket_permissions", "0777");
        if let Some(major) = server.major {
            builder = builder.major(major);
        }
        if let Some(primary) = server.primary {
            return builder.standby_of(self.server(primary)).start();
        }
        let cluster = builder.start()?;
        self.sql(&cluster, "postgres", ROLES);
        self.sql(&cluster, "postgres", "create database shop");
        self.sql(&cluster, "shop", TABLES);
        for (database, _) in DATABASES.iter().filter(|(_, part)| commands.contains(part)) {
            self.sql(&cluster, "postgres", &format!("create database {database} template shop"));
        }
        Ok(cluster)
    }

    fn server(&self, host: &str) -> &Cluster {
        &self.servers.iter().find(|(name, _)| *name == host).unwrap().1
    }

    /// Replaces the process id, the folders and the times of the pages by those of this world.
    pub(super) fn with_facts(&self, command: &str) -> String {
        let local = self.server("localhost");
        let pid = local.pid().unwrap().to_string();
        let data = local.data_dir().to_str().unwrap();
        let facts = [
            ("4711", pid.as_str()),
            ("/var/lib/postgresql/15/main --until", &format!("{data} --until")),
            ("/var/lib/postgresql/16/main", data),
            ("-T 45", "-T 4"),
            ("sleep 20", "sleep 2"),
            ("--duration 60s --trigger", "--duration 6s --trigger"),
        ];
        let replace = |command: String, (from, to): (&str, &str)| command.replace(from, to);
        let command = facts.into_iter().fold(command.to_owned(), replace);
        self.with_lab(&command)
    }

    /// Replaces the connection string of the page's lab by that of one that runs here.
    fn with_lab(&self, command: &str) -> String {
        if !command.contains("howdah-lab-07d1fa32b9c4") {
            return command.to_owned();
        }
        let has_passfile = command.contains("passfile=");
        let labs = self.labs();
        let lab = labs.iter().find(|lab| lab["passfile"].is_null() != has_passfile);
        format!("psql '{}'", lab.unwrap()["uri"].as_str().unwrap())
    }

    fn labs(&self) -> Vec<Value> {
        let list = self.command("howdah lab list --format json").output().unwrap();
        let mut list: Value = serde_json::from_slice(&list.stdout).unwrap();
        serde_json::from_value(list["labs"].take()).unwrap()
    }

    fn sql(&self, cluster: &Cluster, database: &str, sql: &str) {
        let uri = cluster.socket_uri(database);
        let output =
            Command::new("psql").args(["-qX", "-v", "ON_ERROR_STOP=1", "-c", sql, &uri]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Clients look for the sockets of local servers here.
    fn link_sockets(&self) {
        for (_, cluster) in self.servers.iter().filter(|(host, _)| host.starts_with("localhost")) {
            let name = format!(".s.PGSQL.{}", cluster.port());
            symlink(cluster.socket_dir().join(&name), Path::new("/run/postgresql").join(name))
                .unwrap();
        }
    }

    fn make_files(&self) {
        let hosts = SERVERS.iter().filter(|server| !server.host.starts_with("localhost"));
        let hosts: String =
            hosts.map(|server| format!("{} {}\n", server.address, server.host)).collect();
        fs::write("/etc/hosts", format!("127.0.0.1 localhost pooler\n{hosts}")).unwrap();
        self.shell(
            "cp -r \"$FILES/etc/.\" /etc
             cp -r \"$FILES/home/.\" .
             chmod 600 .pgpass
             useradd --system howdah; id postgres >/dev/null 2>&1 || useradd --system postgres
             mkdir -p /var/log/postgresql /var/lib/howdah/captures
             sh \"$FILES/make-logs\"
             cp \"$FILES/sudo\" /usr/local/bin
             chown -R root:howdah /etc/howdah
             chmod 640 /etc/howdah/howdah.toml
             chown -R howdah: /var/lib/howdah
             chmod 1777 /run/postgresql
             cp postgresql.csv /var/log/postgresql/
             chmod 755 .",
        );
    }

    /// Runs a script that must succeed.
    pub(super) fn shell(&self, script: &str) {
        let files = root().join("crates/howdah/tests/it/docs/files");
        let packages = root().join("deploy/packages");
        let mut command = self.command(script);
        let output = command.env("FILES", files).env("PACKAGES", packages).output().unwrap();
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{script}: {}\n{errors}", output.status);
    }

    /// A shell command as a user would run it.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        // The shell outlives signals to its group, so that its exit code is that of the command.
        let line = format!("trap : INT TERM\n{line}");
        command.args(["-e", "-c", &line]).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", self.folder.path()).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        command.env("TMPDIR", "/var/tmp");
        command
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Labs outlive the commands that started them.
        for lab in self.labs() {
            let stop = format!("howdah lab stop {}", lab["name"].as_str().unwrap_or_default());
            let _ = self.command(&stop).output();
        }
    }
}

/// Gives this thread a network with only a loopback interface, and covers folders with copies.
/// Returns `false` if that is not allowed.
fn isolate(folder: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    #[expect(unsafe_code, reason = "the function is unsafe for the flag FILES only")]
    // SAFETY: descriptors are still shared.
    let unshared =
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) };
    if unshared.is_err() {
        return false;
    }
    let binary = assert_cmd::cargo::cargo_bin!("howdah");
    let script = r#"
        mount --make-rprivate /
        ip link set lo up
        mkdir "$FOLDER/.covers"
        mount -t tmpfs tmpfs "$FOLDER/.covers"
        for covered in $COVERED; do
            upper="$FOLDER/.covers$covered/upper" work="$FOLDER/.covers$covered/work"
            mkdir -p "$upper" "$work"
            mount -t overlay overlay -o "lowerdir=$covered,upperdir=$upper,workdir=$work" "$covered"
        done
        mount -t tmpfs tmpfs /run
        mkdir -p /run/postgresql /usr/local/bin
        touch /usr/local/bin/howdah
        mount --bind "$BINARY" /usr/local/bin/howdah"#;
    let output = Command::new("sh")
        .args(["-e", "-c", script])
        .env("FOLDER", folder)
        .env("BINARY", PathBuf::from(binary))
        .env("COVERED", COVERED.join(" "))
        .output()
        .unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    if !output.status.success() {
        skip(&text(&output.stderr));
    }
    output.status.success()
}

/// Says why a test is skipped.
#[expect(clippy::print_stderr, reason = "whoever runs the tests should know")]
fn skip(why: &str) {
    eprintln!("SKIPPED {why}");
}

/// Whether the text has a host: not as a part of a longer name.
fn names_host(text: &str, host: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    text.match_indices(host).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + host.len()..].starts_with(is_part)
    })
}
