//! `howdah top`: what servers are doing.

use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use howdah_top::{
    Filter, Screen, Settings,
    batch::{self, Batch},
    keys::Keymap,
    kill::Policy,
    output::Format,
    run::{self, Announcer, Watch},
    slow::{LogFormat, SlowLog},
    units::parse_span,
};

use crate::{connection::ConnectionArgs, context::Context, outcome::Outcome};

/// What servers are doing, and the power to stop it.
///
/// A screen for one or many servers: sessions, who waits for whom, databases, tables, statements,
/// replication and more. Statements can be cancelled and sessions terminated; always a list of who and why
/// comes first. Where stdout is no terminal, or with --once, --count or --format, the same rows are written.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The servers: URIs, keyword strings, or databases' names
    #[arg(value_name = "URI")]
    servers: Vec<String>,
    /// What to look at first
    #[arg(long, value_name = "NAME", default_value = "activity", value_parser = screens())]
    view: Screen,
    /// From one reading to the next: 500ms, 2s, 1m
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = span)]
    interval: Duration,
    /// Which rows: words, user:app, state=active, >5s, !not
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = Filter::parse)]
    filter: Filter,
    /// Idle sessions too
    #[arg(long)]
    idle: bool,
    /// From how long on a statement is marked as slow
    #[arg(long, alias = "slow_threshold", value_name = "TIME", default_value = "60s", value_parser = span)]
    slow_threshold: Duration,
    /// A file that slow statements are appended to; pgtop.log with the keys of pgtop
    #[arg(long, value_name = "FILE")]
    slow_log: Option<PathBuf>,
    /// Its form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    slow_log_format: LogFormatName,
    /// No key does anything to a server
    #[arg(long)]
    read_only: bool,
    /// Sessions of superusers can be ended, too
    #[arg(long)]
    superusers: bool,
    /// Which keys
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    keymap: KeymapName,
    /// One sample of each server, and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// So many samples of each server, and end
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Write rows instead of showing a screen
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatName>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah top postgresql://localhost/shop
  howdah top 'host=db1 dbname=shop' 'host=db2 dbname=shop' --read-only
  howdah top -h db1 --view blocking --once --format json
  howdah top -d shop --view statements --interval 10s --format csv > statements.csv";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum KeymapName {
    /// Howdah's own
    #[default]
    Default,
    /// Those of pgtop
    Pgtop,
    /// Those of pg_activity
    #[value(name = "pg_activity")]
    PgActivity,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormatName {
    /// Time, host, database, user, pid, seconds, statement, with tabs between
    #[default]
    Pgtop,
    /// A JSON document a line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    /// Columns padded with spaces
    Table,
    /// One document
    Json,
    /// A document a line
    Ndjson,
    /// RFC 4180
    Csv,
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Table => Self::Table,
            FormatName::Json => Self::Json,
            FormatName::Ndjson => Self::Ndjson,
            FormatName::Csv => Self::Csv,
        }
    }
}

impl From<KeymapName> for Keymap {
    fn from(name: KeymapName) -> Self {
        match name {
            KeymapName::Default => Self::Default,
            KeymapName::Pgtop => Self::Pgtop,
            KeymapName::PgActivity => Self::PgActivity,
        }
    }
}

/// The names of screens, with what they show.
fn screens() -> impl TypedValueParser<Value = Screen> {
    let value = |screen: Screen| PossibleValue::new(screen.name()).help(screen.help());
    PossibleValuesParser::new(Screen::all().map(value))
        .map(|name| Screen::named(&name).expect("it is one of the possible values"))
}

fn span(text: &str) -> Result<Duration, String> {
    parse_span(text)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|span| !span.is_zero())
        .ok_or_else(|| "write a time such as 500ms, 2s, 1m or 1h".to_owned())
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let servers = args.watched()?;
    let settings = args.settings();
    let announcer = args.announcer()?;
    let terminal = ctx.terminal();
    let is_over = ctx.interrupted();
    let is_over = || is_over.load(Ordering::Relaxed);
    let count = if args.once { Some(1) } else { args.count };
    if args.format.is_none() && count.is_none() && terminal.stdout {
        run::run(servers, settings, announcer.as_ref(), terminal.color_stdout, is_over)
            .context("the terminal cannot be used")?;
        return Ok(Outcome::Done);
    }
    let format = args.format.unwrap_or(FormatName::Table).into();
    let batch = Batch::new(&settings, format, count);
    let unread = batch::run(&servers, &batch, announcer.as_ref(), ctx.stdout(), is_over)?;
    match unread.first() {
        None => Ok(Outcome::Done),
        Some(first) => {
            for unread in &unread[1..] {
                ctx.say(format_args!("{}: {}", unread.server, unread.reason));
            }
            Err(anyhow::anyhow!("{}: {}", first.server, first.reason))
        }
    }
}

impl Args {
    /// The servers by the names that a person gave them, without what must not be seen.
    fn watched(&self) -> anyhow::Result<Vec<Watch>> {
        let words: Vec<Option<&str>> = match self.servers.as_slice() {
            [] => vec![None],
            servers => servers.iter().map(|words| Some(words.as_str())).collect(),
        };
        let watch = |words: Option<&str>| -> anyhow::Result<Watch> {
            let target = self.connection.target(words)?;
            let endpoint = target.endpoints().first();
            let place = endpoint.map_or_else(String::new, |endpoint| {
                format!("{}:{}", endpoint.host(), endpoint.port())
            });
            Ok(Watch { name: format!("{place}/{}", target.database()), target })
        };
        words.into_iter().map(watch).collect()
    }

    /// Where slow statements go, if anywhere.
    fn announcer(&self) -> anyhow::Result<Option<Announcer>> {
        let by_keymap = (self.keymap == KeymapName::Pgtop).then(|| PathBuf::from("pgtop.log"));
        let Some(path) = self.slow_log.clone().or(by_keymap) else { return Ok(None) };
        let format = match self.slow_log_format {
            LogFormatName::Pgtop => LogFormat::Pgtop,
            LogFormatName::Json => LogFormat::Json,
        };
        Ok(Some(Announcer::new(self.slow_threshold, SlowLog::open(&path, format)?)))
    }

    fn settings(&self) -> Settings {
        Settings {
            interval: self.interval,
            slow: Some(self.slow_threshold),
            is_read_only: self.read_only,
            keymap: self.keymap.into(),
            screen: self.view,
            filter: self.filter.clone(),
            with_idle: self.idle,
            policy: Policy { with_superusers: self.superusers },
        }
    }
}
