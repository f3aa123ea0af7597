//! The measured servers: how each is installed and started.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{process::ServerProcess, sink::CarbonSink};

/// Versions to install.
const NODE_STATSD: &str = "statsd@0.9.0";
const GOSTATSD: &str = "github.com/atlassian/gostatsd/cmd/gostatsd@latest";
const STATSD_EXPORTER: &str = "github.com/prometheus/statsd_exporter@v0.31.0";

/// A measured server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// A loop over `recvmmsg` that only counts.
    Bare,
    /// `howdah statsd`.
    Howdah,
    /// Etsy's statsd.
    Node,
    /// Atlassian's gostatsd.
    Gostatsd,
    /// Prometheus' statsd_exporter.
    Exporter,
}

impl ServerKind {
    /// The name used in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare `recvmmsg` loop",
            Self::Howdah => "howdah statsd",
            Self::Node => "statsd (node)",
            Self::Gostatsd => "gostatsd",
            Self::Exporter => "statsd_exporter",
        }
    }
}

/// The available servers and their paths.
#[derive(Debug)]
pub(crate) struct ServerInventory {
    howdah: PathBuf,
    cache: PathBuf,
    scratch: PathBuf,
    /// Available servers, the bare loop first.
    pub(crate) kinds: Vec<ServerKind>,
    /// The version of each server, or why it is missing.
    pub(crate) notes: Vec<String>,
}

/// Start options of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerOptions<'s> {
    pub(crate) port: u16,
    pub(crate) buffer_bytes: usize,
    pub(crate) flush: Duration,
    /// The sink to flush to, if any.
    pub(crate) sink: Option<&'s CarbonSink>,
}

impl ServerInventory {
    /// Finds `howdah` and installs the other servers into `cache` from their registries. A server
    /// that cannot be installed is noted and left out.
    pub(crate) fn find(howdah: PathBuf, cache: PathBuf) -> anyhow::Result<Self> {
        ensure!(howdah.is_file(), "{} does not exist: build it first", howdah.display());
        let scratch = env::temp_dir().join(format!("howdah-bench-statsd-{}", std::process::id()));
        fs::create_dir_all(&cache)?;
        fs::create_dir_all(&scratch)?;
        let mut servers = Self {
            howdah,
            cache,
            scratch,
            kinds: vec![ServerKind::Bare, ServerKind::Howdah],
            notes: Vec::new(),
        };
        servers.add_note(ServerKind::Howdah, version(&servers.howdah, "-V"));
        let node = servers.fetch_node();
        servers.add_server(ServerKind::Node, node);
        let gostatsd = servers.fetch_go("gostatsd", GOSTATSD, "--version");
        servers.add_server(ServerKind::Gostatsd, gostatsd);
        let exporter = servers.fetch_go("statsd_exporter", STATSD_EXPORTER, "--version");
        servers.add_server(ServerKind::Exporter, exporter);
        servers.notes.push("brubeck: not in any registry".to_owned());
        Ok(servers)
    }

    fn add_server(&mut self, kind: ServerKind, version: anyhow::Result<String>) {
        if version.is_ok() {
            self.kinds.push(kind);
        }
        self.add_note(kind, version);
    }

    fn add_note(&mut self, kind: ServerKind, version: anyhow::Result<String>) {
        let note = version.unwrap_or_else(|error| format!("not measured, {error:#}"));
        self.notes.push(format!("{}: {note}", kind.name()));
    }

    fn fetch_node(&self) -> anyhow::Result<String> {
        let node = version(Path::new("node"), "--version").context("no node")?;
        if !self.node_main().is_file() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--omit=optional", "--prefix"]);
            run_quietly(npm.arg(&self.cache).arg(NODE_STATSD))?;
        }
        Ok(format!("{NODE_STATSD} on node {node}"))
    }

    fn node_main(&self) -> PathBuf {
        self.cache.join("node_modules/statsd/stats.js")
    }

    fn fetch_go(&self, name: &str, package: &str, asks: &str) -> anyhow::Result<String> {
        let program = self.bin(name);
        if !program.is_file() {
            run_quietly(
                Command::new("go").args(["install", package]).env("GOBIN", self.cache.join("bin")),
            )?;
        }
        version(&program, asks)
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.cache.join("bin").join(name)
    }

    /// Starts a server and waits until its socket is open.
    pub(crate) fn start(
        &self,
        kind: ServerKind,
        setting: &ServerOptions<'_>,
    ) -> anyhow::Result<ServerProcess> {
        let command = match kind {
            ServerKind::Bare => self.bare(setting)?,
            ServerKind::Howdah => self.howdah(setting)?,
            ServerKind::Node => self.node(setting)?,
            ServerKind::Gostatsd => self.gostatsd(setting)?,
            ServerKind::Exporter => self.exporter(setting),
        };
        ServerProcess::start(command, setting.port)
    }

    fn bare(&self, setting: &ServerOptions<'_>) -> anyhow::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("bare").arg(setting.port.to_string()).arg(setting.buffer_bytes.to_string());
        Ok(command)
    }

    fn howdah(&self, setting: &ServerOptions<'_>) -> anyhow::Result<Command> {
        let ServerOptions { port, buffer_bytes, flush, sink } = setting;
        let graphite = sink.map_or_else(String::new, |sink| {
            let port = sink.port();
            format!("[[statsd.backends.graphite]]\nhost = \"127.0.0.1\"\nport = {port}\n")
        });
        let file = self.write(
            "howdah.toml",
            &format!(
                "[statsd]\nflush-interval = {}\nmanagement = \"127.0.0.1:0\"\n\n\
                 [[statsd.listen]]\ntype = \"udp\"\naddress = \"127.0.0.1:{port}\"\n\
                 buffer-bytes = {buffer_bytes}\n\n{graphite}",
                flush.as_millis(),
            ),
        )?;
        let mut command = Command::new(&self.howdah);
        command.args(["statsd", "-c"]).arg(file);
        Ok(command)
    }

    /// Starts howdah with only the Prometheus backend, with these lines in its section. Also
    /// returns the port of the endpoint.
    pub(crate) fn start_with_prometheus(
        &self,
        port: u16,
        section: &str,
    ) -> anyhow::Result<(ServerProcess, u16)> {
        let endpoint = free_tcp_port()?;
        let file = self.write(
            "prometheus.toml",
            &format!(
                "[statsd]\nflush-interval = 2000\nmanagement = \"127.0.0.1:0\"\n\n\
                 [[statsd.listen]]\ntype = \"udp\"\naddress = \"127.0.0.1:{port}\"\n\n\
                 [statsd.backends.prometheus]\nlisten = \"127.0.0.1:{endpoint}\"\n{section}",
            ),
        )?;
        let mut command = Command::new(&self.howdah);
        command.args(["statsd", "-c"]).arg(file);
        Ok((ServerProcess::start(command, port)?, endpoint))
    }

    fn node(&self, setting: &ServerOptions<'_>) -> anyhow::Result<Command> {
        let ServerOptions { port, flush, sink, .. } = setting;
        let file = self.write(
            "node.js",
            &format!(
                "{{ port: {port}, address: '127.0.0.1', mgmt_port: {}, mgmt_address: '127.0.0.1',\n  \
                 flushInterval: {}, backends: ['./backends/graphite'],\n  \
                 graphiteHost: '127.0.0.1', graphitePort: {} }}\n",
                free_tcp_port()?,
                flush.as_millis(),
                sink.map_or(2003, CarbonSink::port),
            ),
        )?;
        let mut command = Command::new("node");
        command.arg(self.node_main()).arg(file);
        Ok(command)
    }

    fn gostatsd(&self, setting: &ServerOptions<'_>) -> anyhow::Result<Command> {
        let ServerOptions { port, flush, sink, .. } = setting;
        let file = self.write(
            "gostatsd.toml",
            &format!("[graphite]\naddress = '127.0.0.1:{}'\n", sink.map_or(2003, CarbonSink::port)),
        )?;
        let mut command = Command::new(self.bin("gostatsd"));
        command
            .arg(format!("--metrics-addr=127.0.0.1:{port}"))
            .arg(format!("--flush-interval={}ms", flush.as_millis()))
            .args(["--backends=graphite", "--max-readers=1", "--ignore-host", "--config-path"])
            .arg(file)
            .stderr(Stdio::null());
        Ok(command)
    }

    fn exporter(&self, setting: &ServerOptions<'_>) -> Command {
        let ServerOptions { port, buffer_bytes, .. } = setting;
        let mut command = Command::new(self.bin("statsd_exporter"));
        command
            .arg(format!("--statsd.listen-udp=127.0.0.1:{port}"))
            .args(["--statsd.listen-tcp=", "--web.listen-address=127.0.0.1:0"])
            .arg(format!("--statsd.read-buffer={buffer_bytes}"))
            .stderr(Stdio::null());
        command
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.scratch.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for ServerInventory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn free_tcp_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs an installer; on failure the error quotes the last line of its stderr.
fn run_quietly(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("no {name}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "{name}: {}",
        stderr.lines().last().unwrap_or_default().trim()
    );
    Ok(())
}

/// The first line of a program's version output.
fn version(program: &Path, asks: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(asks).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned())
}
