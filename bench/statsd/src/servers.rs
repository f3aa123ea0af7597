//! The servers that are measured: how each is had, and how it is started.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{process::Server, sink::Sink};

/// Versions that are fetched.
const NODE_STATSD: &str = "statsd@0.9.0";
const GOSTATSD: &str = "github.com/atlassian/gostatsd/cmd/gostatsd@latest";
const STATSD_EXPORTER: &str = "github.com/prometheus/statsd_exporter@v0.31.0";

/// A server that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A loop over `recvmmsg` that counts.
    Bare,
    /// `howdah statsd`.
    Howdah,
    /// Etsy's server.
    Node,
    /// Atlassian's.
    Gostatsd,
    /// Prometheus'.
    Exporter,
}

impl Kind {
    /// How tables call it.
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

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Servers {
    howdah: PathBuf,
    cache: PathBuf,
    scratch: PathBuf,
    /// Those that can be had, the bare loop first.
    pub(crate) kinds: Vec<Kind>,
    /// What each says its version is, and why others are missing.
    pub(crate) notes: Vec<String>,
}

/// How a server is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'s> {
    pub(crate) port: u16,
    pub(crate) buffer_bytes: usize,
    pub(crate) flush: Duration,
    /// Where it flushes to, if anywhere.
    pub(crate) sink: Option<&'s Sink>,
}

impl Servers {
    /// Looks for what is there, and fetches the others' servers into `cache` from their registries.
    /// What cannot be had is noted and left out.
    pub(crate) fn find(howdah: PathBuf, cache: PathBuf) -> anyhow::Result<Self> {
        ensure!(howdah.is_file(), "{} is not there: build it first", howdah.display());
        let scratch = env::temp_dir().join(format!("howdah-bench-statsd-{}", std::process::id()));
        fs::create_dir_all(&cache)?;
        fs::create_dir_all(&scratch)?;
        let mut servers = Self {
            howdah,
            cache,
            scratch,
            kinds: vec![Kind::Bare, Kind::Howdah],
            notes: Vec::new(),
        };
        servers.note(Kind::Howdah, version(&servers.howdah, "--version"));
        let node = servers.fetch_node();
        servers.offer(Kind::Node, node);
        let gostatsd = servers.fetch_go("gostatsd", GOSTATSD, "--version");
        servers.offer(Kind::Gostatsd, gostatsd);
        let exporter = servers.fetch_go("statsd_exporter", STATSD_EXPORTER, "--version");
        servers.offer(Kind::Exporter, exporter);
        servers.notes.push("brubeck: in no registry".to_owned());
        Ok(servers)
    }

    fn offer(&mut self, kind: Kind, found: anyhow::Result<String>) {
        if found.is_ok() {
            self.kinds.push(kind);
        }
        self.note(kind, found);
    }

    fn note(&mut self, kind: Kind, found: anyhow::Result<String>) {
        let note = found.unwrap_or_else(|error| format!("not measured, {error:#}"));
        self.notes.push(format!("{}: {note}", kind.name()));
    }

    fn fetch_node(&self) -> anyhow::Result<String> {
        let node = version(Path::new("node"), "--version").context("no node")?;
        if !self.node_main().is_file() {
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-audit", "--no-fund", "--omit=optional", "--prefix"]);
            quietly(npm.arg(&self.cache).arg(NODE_STATSD))?;
        }
        Ok(format!("{NODE_STATSD} on node {node}"))
    }

    fn node_main(&self) -> PathBuf {
        self.cache.join("node_modules/statsd/stats.js")
    }

    fn fetch_go(&self, name: &str, package: &str, asks: &str) -> anyhow::Result<String> {
        let program = self.bin(name);
        if !program.is_file() {
            quietly(
                Command::new("go").args(["install", package]).env("GOBIN", self.cache.join("bin")),
            )?;
        }
        version(&program, asks)
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.cache.join("bin").join(name)
    }

    /// Starts one, with its socket open.
    pub(crate) fn start(&self, kind: Kind, setting: &Setting<'_>) -> anyhow::Result<Server> {
        let command = match kind {
            Kind::Bare => self.bare(setting)?,
            Kind::Howdah => self.howdah(setting)?,
            Kind::Node => self.node(setting)?,
            Kind::Gostatsd => self.gostatsd(setting)?,
            Kind::Exporter => self.exporter(setting),
        };
        Server::start(command, setting.port)
    }

    fn bare(&self, setting: &Setting<'_>) -> anyhow::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("bare").arg(setting.port.to_string()).arg(setting.buffer_bytes.to_string());
        Ok(command)
    }

    fn howdah(&self, setting: &Setting<'_>) -> anyhow::Result<Command> {
        let Setting { port, buffer_bytes, flush, sink } = setting;
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

    fn node(&self, setting: &Setting<'_>) -> anyhow::Result<Command> {
        let Setting { port, flush, sink, .. } = setting;
        let file = self.write(
            "node.js",
            &format!(
                "{{ port: {port}, address: '127.0.0.1', mgmt_port: {}, mgmt_address: '127.0.0.1',\n  \
                 flushInterval: {}, backends: ['./backends/graphite'],\n  \
                 graphiteHost: '127.0.0.1', graphitePort: {} }}\n",
                free_tcp_port()?,
                flush.as_millis(),
                sink.map_or(2003, Sink::port),
            ),
        )?;
        let mut command = Command::new("node");
        command.arg(self.node_main()).arg(file);
        Ok(command)
    }

    fn gostatsd(&self, setting: &Setting<'_>) -> anyhow::Result<Command> {
        let Setting { port, flush, sink, .. } = setting;
        let file = self.write(
            "gostatsd.toml",
            &format!("[graphite]\naddress = '127.0.0.1:{}'\n", sink.map_or(2003, Sink::port)),
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

    fn exporter(&self, setting: &Setting<'_>) -> Command {
        let Setting { port, buffer_bytes, .. } = setting;
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

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn free_tcp_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs an installer; its last line is what went wrong, if anything did.
fn quietly(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("no {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{name}: {}", said.lines().last().unwrap_or_default().trim());
    Ok(())
}

/// The first line that a program says about itself.
fn version(program: &Path, asks: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(asks).output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).lines().next().unwrap_or_default().trim().to_owned())
}
