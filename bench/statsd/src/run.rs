//! Runs all benchmarks in sequence and writes one page of tables.

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    parse,
    process::{RaisedBufferLimits, ServerProcess, backlog_drops, free_port, pin},
    rules,
    sender::{SendStats, send},
    servers::{ServerInventory, ServerKind, ServerOptions},
    sink::CarbonSink,
    tables::{MarkdownTable, MedianRange},
    workload,
};

/// Options of the `run` subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The howdah binary to measure
    #[arg(long, default_value = "target/release/howdah")]
    howdah: PathBuf,
    /// Directory for the other servers
    #[arg(long)]
    cache: PathBuf,
    /// Fewer packets, one repetition: two minutes instead of ten
    #[arg(long)]
    quick: bool,
    /// Only these tables: flat, paced, ladder, flush, parse, packed, keys, memory, rules
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Receive buffer of all runs except the ladder.
const BUFFER_BYTES: usize = 32 << 20;
/// Flush interval of all runs.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// Runs all benchmarks, prints the page and writes it to `target/bench-statsd.md`.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let servers = ServerInventory::find(args.howdah.clone(), args.cache.clone())?;
    pin(crate::process::SENDER_CORE)?;
    let buffers = RaisedBufferLimits::raise(BUFFER_BYTES);
    let bench = StatsdBench {
        servers,
        sink: CarbonSink::open()?,
        singles: workload::singles(),
        quick: args.quick,
    };
    let mut page = bench.header(buffers.is_some());
    let sections: [(&str, Section); 9] = [
        ("flat", StatsdBench::flat_out),
        ("paced", StatsdBench::paced),
        ("ladder", StatsdBench::ladder),
        ("flush", StatsdBench::during_flush),
        ("parse", StatsdBench::parsing),
        ("packed", StatsdBench::packed),
        ("keys", StatsdBench::many_keys),
        ("memory", StatsdBench::prometheus_memory),
        ("rules", StatsdBench::rules),
    ];
    for (name, section) in sections {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        // A failing server must not prevent the other tables.
        let text = section(&bench).unwrap_or_else(|error| format!("Not measured: {error:#}\n"));
        print(&text)?;
        page += "\n";
        page += &text;
    }
    write!(page, "\nThe whole run took {:.0} s.\n", started.elapsed().as_secs_f64())?;
    let out = PathBuf::from("target/bench-statsd.md");
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&out, &page).with_context(|| format!("cannot write {}", out.display()))?;
    print(&format!("\nThe full page is in {}.\n", out.display()))
}

type Section = fn(&StatsdBench) -> anyhow::Result<String>;

fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

struct StatsdBench {
    servers: ServerInventory,
    sink: CarbonSink,
    singles: Vec<Vec<u8>>,
    quick: bool,
}

/// The measurements of one run.
#[derive(Clone, Copy, Debug)]
struct ServerRun {
    sent: SendStats,
    /// Packets dropped at the socket or before it.
    lost: u64,
    cpu: Duration,
    memory_mb: u64,
    /// Packets received according to the server itself, if it reports them.
    counted: Option<f64>,
}

impl ServerRun {
    fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / self.sent.packets as f64
    }

    /// CPU nanoseconds of the server per received packet, flushes included.
    fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / (self.sent.packets - self.lost).max(1) as f64
    }
}

impl StatsdBench {
    /// The size of a run: `quick` with `--quick`, else `full`.
    fn size(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    fn header(&self, raised: bool) -> String {
        let mut text = String::from("### Machine and versions\n\n");
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("?");
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
        let _ = writeln!(text, "- {cores} cores, {model}, Linux {}", kernel.trim());
        for note in &self.servers.notes {
            let _ = writeln!(text, "- {note}");
        }
        let default =
            if raised { "rmem_default raised to 32 MiB for" } else { "rmem_default left to" };
        let _ = writeln!(text, "- {default} servers that do not size their buffer themselves");
        text
    }

    /// Starts a server, calls `send`, and waits until everything is read and flushed.
    fn measure(
        &self,
        kind: ServerKind,
        buffer_bytes: usize,
        send: impl FnOnce(&ServerProcess, u16) -> anyhow::Result<SendStats>,
    ) -> anyhow::Result<ServerRun> {
        self.measure_into(kind, buffer_bytes, Some(&self.sink), send)
    }

    /// As [`measure`](Self::measure), with another sink or none.
    fn measure_into(
        &self,
        kind: ServerKind,
        buffer_bytes: usize,
        sink: Option<&CarbonSink>,
        send: impl FnOnce(&ServerProcess, u16) -> anyhow::Result<SendStats>,
    ) -> anyhow::Result<ServerRun> {
        let port = free_port()?;
        self.sink.clear();
        let setting = ServerOptions { port, buffer_bytes, flush: FLUSH_INTERVAL, sink };
        let server = self.servers.start(kind, &setting)?;
        // Startup costs must not count as packet costs.
        std::thread::sleep(Duration::from_millis(300));
        let (cpu, backlog) = (server.cpu()?, backlog_drops());
        let sent = send(&server, port)?;
        anyhow::ensure!(
            server.wait_until_drained()?,
            "{} did not drain its socket within 60 s",
            kind.name()
        );
        let lost = server.socket()?.drops + (backlog_drops() - backlog);
        if kind != ServerKind::Bare && kind != ServerKind::Exporter {
            self.sink.wait_for_flush(2 * FLUSH_INTERVAL);
            std::thread::sleep(Duration::from_millis(100));
        }
        let (cpu, memory_mb) = (server.cpu()?.saturating_sub(cpu), server.memory_mb()?.1);
        server.stop()?;
        let counted = self.sink.count("statsd.packets_received");
        Ok(ServerRun { sent, lost, cpu, memory_mb, counted })
    }

    fn flat_out(&self) -> anyhow::Result<String> {
        let packets = self.size(5_000_000, 1_000_000);
        let mut outcomes: Vec<(ServerKind, Vec<ServerRun>)> =
            self.servers.kinds.iter().map(|kind| (*kind, Vec::new())).collect();
        for round in 0..self.size(5, 1) {
            for (kind, outcomes) in &mut outcomes {
                // Slow servers are measured once: repetitions add little.
                if round > 0 && !matches!(kind, ServerKind::Bare | ServerKind::Howdah) {
                    continue;
                }
                outcomes.push(self.measure(*kind, BUFFER_BYTES, |_, port| {
                    send(port, &self.singles, packets, None)
                })?);
            }
        }
        let title = format!(
            "### Flat out: {packets} packets of one metric, 32 MiB buffer, median [min–max]\n\n"
        );
        Ok(title + &self.comparison(&outcomes))
    }

    fn paced(&self) -> anyhow::Result<String> {
        let packets = self.size(1_000_000, 400_000);
        let mut outcomes = Vec::new();
        for kind in &self.servers.kinds {
            let mut one = Vec::new();
            for _ in 0..if matches!(kind, ServerKind::Bare | ServerKind::Howdah) {
                self.size(3, 1)
            } else {
                1
            } {
                one.push(self.measure(*kind, BUFFER_BYTES, |_, port| {
                    send(port, &self.singles, packets, Some(200_000.0))
                })?);
            }
            outcomes.push((*kind, one));
        }
        let title = format!("### Paced: {packets} packets at 200,000 a second, 32 MiB buffer\n\n");
        Ok(title + &self.comparison(&outcomes))
    }

    fn comparison(&self, outcomes: &[(ServerKind, Vec<ServerRun>)]) -> String {
        let bare =
            outcomes.first().map_or(f64::NAN, |(_, runs)| spread(runs, ServerRun::cpu_ns).median);
        let mut table = MarkdownTable::new(&[
            "server",
            "runs",
            "sent per second",
            "lost",
            "lost %",
            "CPU ns per packet",
            "× bare loop",
            "MB",
            "sent − lost − its own count",
        ]);
        for (kind, runs) in outcomes {
            let cpu = spread(runs, ServerRun::cpu_ns);
            let open = runs
                .iter()
                .filter_map(|run| Some((run.sent.packets - run.lost) as f64 - run.counted?));
            table.row(&[
                kind.name().to_owned(),
                runs.len().to_string(),
                spread(runs, |run| run.sent.rate()).text(0),
                spread(runs, |run| run.lost as f64).text(0),
                spread(runs, ServerRun::lost_percent).text(2),
                cpu.text(0),
                format!("{:.2}", cpu.median / bare),
                spread(runs, |run| run.memory_mb as f64).text(0),
                MedianRange::from_values(open).map_or("–".to_owned(), |open| open.text(0)),
            ]);
        }
        table.text()
    }

    fn ladder(&self) -> anyhow::Result<String> {
        let packets = self.size(2_000_000, 500_000);
        let sizes: &[usize] = if self.quick { &[1, 8, 64] } else { &[1, 2, 4, 8, 16, 32, 64] };
        let mut table = MarkdownTable::new(&[
            "buffer",
            "sent per second",
            "lost",
            "lost %",
            "CPU ns per packet",
        ]);
        for megabytes in sizes {
            let run = self.measure(ServerKind::Howdah, megabytes << 20, |_, port| {
                send(port, &self.singles, packets, None)
            })?;
            table.row(&[
                format!("{megabytes} MiB"),
                format!("{:.0}", run.sent.rate()),
                run.lost.to_string(),
                format!("{:.2}", run.lost_percent()),
                format!("{:.0}", run.cpu_ns()),
            ]);
        }
        let title = format!("### Ladder of buffers: howdah statsd, {packets} packets flat out\n\n");
        Ok(title + &table.text())
    }

    /// Fills an interval with many keys and samples, and sends flat out during its flush.
    fn during_flush(&self) -> anyhow::Result<String> {
        let keys = workload::packed(&workload::counters(100_000));
        let samples = workload::packed(&workload::timings(1_000_000, 1000));
        let packets = self.size(2_500_000, 1_500_000);
        let mut table =
            MarkdownTable::new(&["run", "sent", "sent per second", "lost", "processing_time ms"]);
        for run in 1..=self.size(3, 1) {
            let mut total = 0;
            let outcome = self.measure(ServerKind::Howdah, BUFFER_BYTES, |_, port| {
                total += send(port, &keys, keys.len() as u64, None)?.packets;
                total += send(port, &samples, samples.len() as u64, None)?.packets;
                // Longer than an interval, so that the expensive flush happens meanwhile.
                send(port, &self.singles, packets, None)
            })?;
            let processing = self.sink.largest("statsd.processing_time");
            table.row(&[
                run.to_string(),
                (total + outcome.sent.packets).to_string(),
                format!("{:.0}", outcome.sent.rate()),
                outcome.lost.to_string(),
                processing.map_or("–".to_owned(), |ms| format!("{ms:.0}")),
            ]);
        }
        let title = "### Through a flush of 100,000 keys and 1,000,000 timer samples\n\n\
                     First the keys and the samples, then packets of one metric, all flat out.\n\n";
        Ok(title.to_owned() + &table.text())
    }

    /// Parsing and aggregation without sockets.
    fn parsing(&self) -> anyhow::Result<String> {
        let metrics = self.size(40_000_000, 10_000_000);
        let mut table = MarkdownTable::new(&[
            "input",
            "CPU ns per metric",
            "M metrics/s per core",
            "instructions per metric",
        ]);
        for (name, keys, singles) in [
            ("1432-byte packets, 500 names", None, false),
            ("one metric per packet, 500 names", None, true),
            ("1432-byte packets, 100,000 counters", Some(100_000), false),
            ("1432-byte packets, 1,000,000 counters", Some(1_000_000), false),
        ] {
            let args = parse::Args { metrics, keys, singles };
            let ns = parse::nanoseconds_per_metric(args)?;
            let instructions = if keys.is_none() { instructions(singles) } else { None };
            table.row(&[
                name.to_owned(),
                format!("{ns:.1}"),
                format!("{:.1}", 1e3 / ns),
                instructions.map_or("–".to_owned(), |count| format!("{count:.0}")),
            ]);
        }
        Ok(format!("### Parse and aggregate alone\n\n{}", table.text()))
    }

    /// Aggregation and flushes with and without rules, alternating.
    fn rules(&self) -> anyhow::Result<String> {
        let metrics = self.size(10_000_000, 3_000_000);
        let (mut none, mut ten) = (Vec::new(), Vec::new());
        for _ in 0..self.size(5, 1) {
            none.push(rules::nanoseconds_per_metric(metrics, &[])?);
            ten.push(rules::nanoseconds_per_metric(metrics, &rules::ten_rules())?);
        }
        let mut table = MarkdownTable::new(&["rules", "CPU ns per metric"]);
        for (name, values) in [("none", none), ("ten", ten)] {
            let median = MedianRange::from_values(values).unwrap_or_default();
            table.row(&[name.to_owned(), format!("{:.1}", median.median)]);
        }
        let keys = workload::TAGGED_KEYS;
        let title = format!("### Rules: {keys} counters with four tags, flushes included\n\n");
        Ok(title + &table.text())
    }

    /// Full packets, at a rate that node can handle.
    fn packed(&self) -> anyhow::Result<String> {
        let ring = workload::packed(&self.singles);
        let per_packet = self.singles.len() as f64 / ring.len() as f64;
        let packets = self.size(30_000, 10_000);
        let mut table = MarkdownTable::new(&["server", "lost", "CPU ns per metric", "× node"]);
        let mut runs = Vec::new();
        for kind in self.servers.kinds.iter().filter(|kind| **kind != ServerKind::Bare) {
            let run = self.measure(*kind, BUFFER_BYTES, |_, port| {
                send(port, &ring, packets, Some(4_000.0))
            })?;
            runs.push((*kind, run.lost, run.cpu_ns() / per_packet));
        }
        let node = runs.iter().find(|(kind, ..)| *kind == ServerKind::Node).map(|(.., ns)| *ns);
        for (kind, lost, ns) in runs {
            table.row(&[
                kind.name().to_owned(),
                lost.to_string(),
                format!("{ns:.0}"),
                node.map_or("–".to_owned(), |node| format!("{:.3}", ns / node)),
            ]);
        }
        let title = format!(
            "### Packed: {packets} packets of {per_packet:.1} metrics, {:.0} metrics a second\n\n",
            4_000.0 * per_packet
        );
        Ok(title + &table.text())
    }

    /// A million keys, sent twice with a flush in between.
    fn many_keys(&self) -> anyhow::Result<String> {
        let ring = workload::packed(&workload::counters(1_000_000));
        let mut table = MarkdownTable::new(&["backends", "MB in use", "MB at the most", "lost"]);
        for (name, sink) in [("none", None), ("graphite", Some(&self.sink))] {
            let mut in_use = 0;
            let outcome =
                self.measure_into(ServerKind::Howdah, BUFFER_BYTES, sink, |server, port| {
                    let mut all = send(port, &ring, ring.len() as u64, Some(20_000.0))?;
                    std::thread::sleep(2 * FLUSH_INTERVAL);
                    let again = send(port, &ring, ring.len() as u64, Some(20_000.0))?;
                    std::thread::sleep(2 * FLUSH_INTERVAL);
                    all.packets += again.packets;
                    in_use = server.memory_mb()?.0;
                    Ok(all)
                })?;
            table.row(&[
                name.to_owned(),
                in_use.to_string(),
                outcome.memory_mb.to_string(),
                outcome.lost.to_string(),
            ]);
        }
        Ok(format!("### 1,000,000 counters, sent in two intervals\n\n{}", table.text()))
    }
}

impl StatsdBench {
    /// Many keys with the Prometheus backend: three flushes and a scrape.
    fn prometheus_memory(&self) -> anyhow::Result<String> {
        let (counters, timers) = (1_000_000, 300_000);
        let shapes: [(&str, Vec<Vec<u8>>, u64, &str); 3] = [
            ("counters", workload::named(counters, "c"), counters as u64, ""),
            ("histograms", workload::named(timers, "ms"), timers as u64, "timers = 'histogram'\n"),
            ("summaries", workload::named(timers, "ms"), timers as u64, ""),
        ];
        let mut table = MarkdownTable::new(&[
            "metrics",
            "keys",
            "MB idle",
            "MB at the most",
            "bytes per key",
            "scrape MB",
            "lost",
        ]);
        for (name, lines, keys, settings) in shapes {
            let ring = workload::packed(&lines);
            let port = free_port()?;
            let (server, scrapes) = self.servers.start_with_prometheus(port, settings)?;
            std::thread::sleep(Duration::from_millis(300));
            let idle = server.memory_kb()?.0;
            for _ in 0..3 {
                send(port, &ring, ring.len() as u64, Some(10_000.0))?;
                anyhow::ensure!(server.wait_until_drained()?, "the socket was not drained");
                std::thread::sleep(2 * FLUSH_INTERVAL);
            }
            let scraped = scrape_bytes(scrapes)?;
            let (peak, lost) = (server.memory_kb()?.1, server.socket()?.drops);
            server.stop()?;
            table.row(&[
                name.to_owned(),
                keys.to_string(),
                (idle / 1024).to_string(),
                (peak / 1024).to_string(),
                ((peak - idle) * 1024 / keys).to_string(),
                (scraped >> 20).to_string(),
                lost.to_string(),
            ]);
        }
        let title = "### Memory with the Prometheus backend: names of 23 bytes, three intervals, \
                     one scrape\n\n";
        Ok(title.to_owned() + &table.text())
    }
}

/// Scrapes a Prometheus endpoint; returns the size of the response.
fn scrape_bytes(port: u16) -> anyhow::Result<u64> {
    use std::io::{Write as _, copy, sink};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    Ok(copy(&mut stream, &mut sink())?)
}

fn spread(runs: &[ServerRun], of: impl Fn(&ServerRun) -> f64) -> MedianRange {
    MedianRange::from_values(runs.iter().map(of)).unwrap_or_default()
}

/// Instructions to parse and aggregate one metric: the difference of two runs under valgrind.
fn instructions(singles: bool) -> Option<f64> {
    let count = |metrics: u64| {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
        valgrind.arg(std::env::current_exe().ok()?).arg("parse");
        valgrind.arg(format!("--metrics={metrics}")).args(singles.then_some("--singles"));
        let output = valgrind.output().ok()?;
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        // ==123== I refs:        1,234,567
        let line =
            report.lines().find(|line| line.contains("I refs") || line.contains("I   refs"))?;
        let digits: String =
            line.rsplit(':').next()?.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<f64>().ok()
    };
    Some((count(280_000)? - count(80_000)?) / 200_000.0)
}
