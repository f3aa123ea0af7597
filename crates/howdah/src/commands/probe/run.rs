//! `howdah probe run`: a flight recorder.

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
use howdah_connect::{Client, Target};
use howdah_probe::{
    checkpoints::Source,
    recorder::{
        BeginError, Event, FigureSource, Note, NoteKind, Options, Recorder, Setting, Summary,
        Thresholds,
    },
};
use howdah_top::units::parse_size;

use super::{
    names::Names,
    rows,
    target::{Found, TargetArgs},
};
use crate::{context::Context, errors::WithHint as _, outcome::Outcome};

/// Record a server all the time into a file that never grows beyond its size.
///
/// What is cheap goes in every second: checkpoints, extension locks, the clock sweep, waits 100 times a
/// second. When a trigger fires, exact probes of io, wal and locks are attached for ten seconds, and half a
/// minute before and after is kept from being written over. A server that ends is waited for. `howdah probe
/// report FILE` shows what happened.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The file: begun, or gone on with
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The largest that the file may become: the oldest goes [default: 64MB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Looks a second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// End after so long, in seconds or as 30m; without it, at Ctrl-C or SIGTERM
    #[arg(long, value_name = "TIME", value_parser = crate::values::time)]
    duration: Option<Duration>,
    /// When to look more closely: extend-p99=100ms, sweep=50, checkpoint-sync=10s, or NAME=off; repeat for more
    ///
    /// The values shown are those that hold without it. extend-p99: the 99th percentile of at least ten waits
    /// for extension locks in a second. sweep: buffers looked at for one handed out, over a second with at
    /// least 100 of these. checkpoint-sync: how long a checkpoint has been syncing files.
    #[arg(long, value_name = "NAME=VALUE")]
    trigger: Vec<Setting>,
    /// No trigger at all
    #[arg(long, conflicts_with = "trigger")]
    no_triggers: bool,
    /// From the end of an episode until a trigger may fire again
    #[arg(long, value_name = "TIME", value_parser = crate::values::time, default_value = "60s")]
    cool_down: Duration,
    /// What programs in the kernel may cost, in percent of all processors; what costs more is taken away
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
    /// End when the server ends; without it, it is waited for
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

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let Found { server, session } = args.target.find()?;
    let begun = Recorder::begin(&server, &args.output, args.options(), Instant::now());
    let mut recorder = match begun {
        Err(error @ BeginError::Server(_)) => Err(error)
            .context("cannot record")
            .hint("`howdah probe doctor` says what can be measured here")?,
        begun => begun?,
    };
    let told = EventPrinter { ctx, names: session.map(Namer::start).transpose()? };
    told.begin(args, recorder.figures())?;
    let interrupted = ctx.interrupted();
    let end = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let reason = loop {
        let due = end.map_or(recorder.due(), |end| end.min(recorder.due()));
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if interrupted.load(Ordering::Relaxed) {
            break "interrupted";
        }
        if end.is_some_and(|end| now >= end) {
            break "the time is over";
        }
        for event in recorder.tick(now) {
            told.event(event)?;
        }
        told.named().for_each(|(of, name)| recorder.name(of.0, of.1, name, now));
        if args.until_server_stops && recorder.is_waiting() {
            break "the server ended";
        }
    };
    tell_end(ctx, &recorder.finish(reason, Instant::now()), reason)?;
    Ok(Outcome::Done)
}

impl Args {
    fn options(&self) -> Options {
        let mut thresholds =
            if self.no_triggers { Thresholds::NONE } else { Thresholds::default() };
        self.trigger.iter().for_each(|setting| thresholds.set(*setting));
        Options {
            rate: self.frequency,
            thresholds,
            cool_down: self.cool_down,
            budget: self.budget / 100.0,
            max_bytes: self.max_size,
        }
    }
}

/// Lines about what happens, and names for what has only numbers.
struct EventPrinter<'a> {
    ctx: &'a Context,
    names: Option<Namer>,
}

impl EventPrinter<'_> {
    fn begin(&self, args: &Args, figures: &[FigureSource]) -> io::Result<()> {
        let thresholds = args.options().thresholds;
        let triggers: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
        let triggers = if triggers.is_empty() { "none".to_owned() } else { triggers.join(", ") };
        let mut out = self.ctx.stdout();
        writeln!(out, "recording to {}; triggers: {triggers}", args.output.display())?;
        for FigureSource { figure, source, lacks } in figures {
            let source = source.map_or("none", |source| source.as_str());
            let lacks = if lacks.is_empty() { String::new() } else { format!("  {lacks}") };
            writeln!(out, "  {figure:<12} {source:<7}{lacks}")?;
        }
        let is_exact = |of: &FigureSource| of.figure == "extend" && of.source == Some(Source::Bpf);
        if thresholds.extend_p99.is_some() && !figures.iter().any(is_exact) {
            writeln!(out, "extend-p99 cannot fire: extension locks are not traced")?;
        }
        out.flush()
    }

    fn event(&self, event: Event) -> io::Result<()> {
        let (at_us, line) = match event {
            Event::Fired(fired) => (fired.at_us, format!("trigger {fired}")),
            Event::Note(Note { at_us, kind: NoteKind::ServerEnded, text }) => {
                (at_us, format!("{text}; waiting for it"))
            }
            Event::Note(Note { at_us, text, .. }) => (at_us, text),
            Event::Unnamed { database, relation } => {
                if let Some(names) = &self.names {
                    names.ask(database, relation);
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

    fn named(&self) -> impl Iterator<Item = ((u32, u32), String)> {
        self.names.iter().flat_map(|names| names.answers.try_iter())
    }
}

fn tell_end(ctx: &Context, summary: &Summary, reason: &str) -> io::Result<()> {
    let Summary { elapsed, recorded, looks, fired, held_back, cpu, .. } = summary;
    let mut out = ctx.stdout();
    writeln!(out, "{}  {reason}", rows::time(SystemTime::now()))?;
    writeln!(
        out,
        "{} of {} recorded, {looks} looks; {:.2} % of one processor",
        rows::shown(*recorded),
        rows::shown(*elapsed),
        100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)
    )?;
    writeln!(out, "triggers fired {fired} times, and would have in {held_back} seconds more")?;
    out.flush()?;
    for (number, what) in summary.lost.in_words() {
        ctx.say(format_args!("{number} {what}"));
    }
    if summary.left_out > 0 {
        ctx.say(format_args!("{} records of episodes found no room", summary.left_out));
    }
    if let Some(trouble) = &summary.trouble {
        ctx.say(format_args!("the end is not in the file: {trouble}"));
    }
    Ok(())
}

/// Asks for names of relations in a thread of its own: a server that stalls does not answer.
struct Namer {
    questions: Sender<(u32, u32)>,
    answers: Receiver<((u32, u32), String)>,
}

impl Namer {
    fn start(session: (Target, Client)) -> io::Result<Self> {
        let (questions, asked) = channel::<(u32, u32)>();
        let (answer, answers) = channel();
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            let mut names = Names::new(Some(session));
            let mut known = BTreeSet::new();
            for (database, relation) in asked {
                if known.insert((database, relation)) {
                    let name = names.of(database, relation);
                    // Nobody listens any longer when the recorder has ended.
                    let _ = answer.send(((database, relation), name));
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    fn ask(&self, database: u32, relation: u32) {
        // Its thread ends with this process at the latest.
        let _ = self.questions.send((database, relation));
    }
}
