//! `howdah probe run`: the flight recorder.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    path::PathBuf,
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use howdah_connect::{Client, ConnectTarget};
use howdah_probe::{
    checkpoints::ProbeSource,
    recorder::{
        FlightRecorder, NoteKind, RecordedSource, RecorderEvent, RecorderOptions,
        RecorderStartError, RecordingNote, RecordingTotals, Thresholds, TriggerSetting,
    },
};
use howdah_top::units::parse_size;

use super::{
    names::RelationNames,
    rows,
    target::{LocalServer, TargetArgs},
};
use crate::{context::CommandContext, errors::WithHint as _, outcome::CommandOutcome};

/// Record a server continuously to a file of limited size.
///
/// Cheap data is recorded every second: checkpoints, extension locks, the clock sweep, and waits
/// sampled 100 times per second. When a trigger fires, exact probes of io, wal and locks are
/// attached for ten seconds, and the half minutes before and after are protected from being
/// overwritten. If the server stops, the recorder waits for it. `howdah probe report FILE` shows
/// the result.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The recording; an existing one is continued
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Maximum size of the file; the oldest data is overwritten [default: 64MB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Samples per second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Exit after this time, in seconds or as in 30m [default: run until Ctrl-C or SIGTERM]
    #[arg(long, value_name = "TIME", value_parser = crate::values::time)]
    duration: Option<Duration>,
    /// Threshold for attaching exact probes: extend-p99=100ms, sweep=50, checkpoint-sync=10s, or
    /// NAME=off; repeatable
    ///
    /// The values shown are the defaults. extend-p99: the 99th percentile of at least ten waits for
    /// extension locks in a second. sweep: buffers examined per allocated buffer, over a second
    /// with at least 100 allocations. checkpoint-sync: how long a checkpoint has been syncing
    /// files.
    #[arg(long, value_name = "NAME=VALUE")]
    trigger: Vec<TriggerSetting>,
    /// Disable all triggers
    #[arg(long, conflicts_with = "trigger")]
    no_triggers: bool,
    /// Minimum time from the end of an episode until a trigger fires again
    #[arg(long, value_name = "TIME", value_parser = crate::values::time, default_value = "60s")]
    cool_down: Duration,
    /// Maximum cost of BPF programs, in percent of all CPUs; more expensive ones are detached
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
    /// Exit when the server stops, instead of waiting for it to restart
    #[arg(long)]
    until_server_stops: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe run postgresql://localhost/shop -o shop.rec
  howdah probe run --data-dir /var/lib/postgresql/17/main -o main.rec --max-size 256MB
  howdah probe run --pid 4711 -o main.rec --duration 30m --trigger extend-p99=20ms --trigger sweep=off";

fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|bytes| (1 << 20..=4 << 30).contains(bytes))
        .ok_or_else(|| "write a size from 1MB to 4GB, such as 64MB".to_owned())
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let LocalServer { server, session } = args.target.find()?;
    let started = FlightRecorder::start(&server, &args.output, args.options(), Instant::now());
    let mut recorder = match started {
        Err(error @ RecorderStartError::Server(_)) => Err(error)
            .context("cannot record")
            .hint("`howdah probe doctor` shows what can be measured here")?,
        started => started?,
    };
    let printer = EventPrinter { ctx, names: session.map(RelationNamer::start).transpose()? };
    printer.print_start(args, recorder.metric_sources())?;
    let interrupted = ctx.interrupted();
    let end = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let reason = loop {
        let due = end.map_or(recorder.next_tick_at(), |end| end.min(recorder.next_tick_at()));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if interrupted.load(Ordering::Relaxed) {
            break "interrupted";
        }
        if end.is_some_and(|end| now >= end) {
            break "the duration is over";
        }
        for event in recorder.tick(now) {
            printer.print_event(event)?;
        }
        printer
            .take_names()
            .for_each(|(of, name)| recorder.set_relation_name(of.0, of.1, name, now));
        if args.until_server_stops && recorder.is_waiting() {
            break "the server ended";
        }
    };
    print_summary(ctx, &recorder.finish(reason, Instant::now()), reason)?;
    Ok(CommandOutcome::Done)
}

impl Args {
    fn options(&self) -> RecorderOptions {
        let mut thresholds =
            if self.no_triggers { Thresholds::NONE } else { Thresholds::default() };
        self.trigger.iter().for_each(|setting| thresholds.set(*setting));
        RecorderOptions {
            rate: self.frequency,
            thresholds,
            cool_down: self.cool_down,
            budget: self.budget / 100.0,
            max_bytes: self.max_size,
        }
    }
}

/// Prints events, and looks up names of relations.
struct EventPrinter<'a> {
    ctx: &'a CommandContext,
    names: Option<RelationNamer>,
}

impl EventPrinter<'_> {
    fn print_start(&self, args: &Args, metrics: &[RecordedSource]) -> io::Result<()> {
        let thresholds = args.options().thresholds;
        let triggers: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
        let triggers = if triggers.is_empty() { "none".to_owned() } else { triggers.join(", ") };
        let mut out = self.ctx.stdout();
        writeln!(out, "recording to {}; triggers: {triggers}", args.output.display())?;
        for RecordedSource { metric, source, limitation } in metrics {
            let source = source.map_or("none", |source| source.as_str());
            let limitation =
                if limitation.is_empty() { String::new() } else { format!("  {limitation}") };
            writeln!(out, "  {metric:<12} {source:<7}{limitation}")?;
        }
        let is_exact =
            |of: &RecordedSource| of.metric == "extend" && of.source == Some(ProbeSource::Bpf);
        if thresholds.extend_p99.is_some() && !metrics.iter().any(is_exact) {
            writeln!(out, "extend-p99 cannot fire: extension locks are not traced")?;
        }
        out.flush()
    }

    fn print_event(&self, event: RecorderEvent) -> io::Result<()> {
        let (at_us, line) = match event {
            RecorderEvent::ThresholdCrossed(fired) => (fired.at_us, format!("trigger {fired}")),
            RecorderEvent::Note(RecordingNote { at_us, kind: NoteKind::ServerEnded, text }) => {
                (at_us, format!("{text}; waiting for it to restart"))
            }
            RecorderEvent::Note(RecordingNote { at_us, text, .. }) => (at_us, text),
            RecorderEvent::Unnamed { database, relation } => {
                if let Some(names) = &self.names {
                    names.request(database, relation);
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        let at = UNIX_EPOCH + Duration::from_micros(u64::try_from(at_us).unwrap_or(0));
        let mut out = self.ctx.stdout();
        writeln!(out, "{}  {line}", rows::time(at))?;
        out.flush()
    }

    fn take_names(&self) -> impl Iterator<Item = ((u32, u32), String)> {
        self.names.iter().flat_map(|names| names.answers.try_iter())
    }
}

fn print_summary(ctx: &CommandContext, summary: &RecordingTotals, reason: &str) -> io::Result<()> {
    let RecordingTotals { elapsed, recorded, samples, triggered: fired, suppressed, cpu, .. } =
        summary;
    let mut out = ctx.stdout();
    writeln!(out, "{}  {reason}", rows::time(SystemTime::now()))?;
    writeln!(
        out,
        "{} of {} recorded, {samples} samples; {:.2} % of one CPU",
        rows::display(*recorded),
        rows::display(*elapsed),
        100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
    )?;
    writeln!(out, "triggers fired {fired} times, and were suppressed for {suppressed} seconds")?;
    out.flush()?;
    for (number, what) in summary.lost.descriptions() {
        ctx.report(format_args!("{number} {what}"));
    }
    if summary.omitted > 0 {
        ctx.report(format_args!("{} records of episodes did not fit", summary.omitted));
    }
    if let Some(trouble) = &summary.trouble {
        ctx.report(format_args!("the end of the recording was not written: {trouble}"));
    }
    Ok(())
}

/// Looks up names of relations in a separate thread, because a stalled server may not respond.
struct RelationNamer {
    questions: Sender<(u32, u32)>,
    answers: Receiver<((u32, u32), String)>,
}

impl RelationNamer {
    fn start(session: (ConnectTarget, Client)) -> io::Result<Self> {
        let (questions, requests) = channel::<(u32, u32)>();
        let (answer, answers) = channel();
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            let mut names = RelationNames::new(Some(session));
            let mut known = BTreeSet::new();
            for (database, relation) in requests {
                if known.insert((database, relation)) {
                    let name = names.name(database, relation);
                    // Fails only after the recorder has ended.
                    let _ = answer.send(((database, relation), name));
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    fn request(&self, database: u32, relation: u32) {
        // Fails only if the thread has ended.
        let _ = self.questions.send((database, relation));
    }
}
