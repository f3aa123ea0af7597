//! `howdah top`: what servers are doing.

mod past;
mod tell;

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use howdah_connect::{Environment, Target, Words};
use howdah_top::{
    AlertEngine, Filter, Palette, Poolers, Screen, Settings,
    batch::{self, Batch},
    history::Keeper,
    keys::Keymap,
    kill::Policy,
    output::Format,
    run::{self, Watch},
    watch,
};

use self::{
    past::PastArgs,
    tell::{Secret, TellArgs},
};
use crate::{
    connection::ConnectionArgs, context::Context, logging, metrics::MetricsArgs,
    notify::service_state, outcome::Outcome,
};

/// What servers are doing, and the power to stop it.
///
/// A screen for one or many servers: sessions, who waits for whom, databases, tables, statements,
/// replication and more. Statements can be cancelled and sessions terminated; always a list of who and why
/// comes first. Where stdout is no terminal, or with --once, --count or --format, the same rows are written.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES,
          mut_arg("metrics", |arg| arg.visible_alias("listen")),
          mut_arg("username", |arg| arg.alias("user")),
          mut_arg("dbname", |arg| arg.aliases(["db", "database"])))]
pub(crate) struct Args {
    /// The servers: URIs, keyword strings, or databases' names
    #[arg(value_name = "URI")]
    servers: Vec<String>,
    /// What to look at first
    #[arg(long, value_name = "NAME", default_value = "activity", value_parser = screens())]
    view: Screen,
    /// From one reading to the next: 500ms, 2s, 1m
    #[arg(short, long, alias = "delay", value_name = "TIME", default_value = "2s", value_parser = crate::values::time)]
    interval: Duration,
    /// Which rows: words, user:app, state=active, >5s, !not
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = Filter::parse)]
    filter: Filter,
    /// Idle sessions too
    #[arg(long)]
    idle: bool,
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
    #[arg(long, visible_alias = "batch", conflicts_with = "count")]
    once: bool,
    /// So many samples of each server, and end
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Write rows instead of showing a screen
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// The password, as pgtop takes it
    #[arg(long, alias = "password", hide = true)]
    pass: Option<Secret>,
    /// The console of a pooler in front of the servers, of PgBouncer or with its columns: who is behind
    /// which session
    #[arg(long, value_name = "URI")]
    pooler: Vec<String>,
    #[command(flatten)]
    tell: TellArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    past: PastArgs,
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// What the screen looks like, and what it takes of the terminal.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The screen")]
struct LookArgs {
    /// Which colours, where NO_COLOR does not forbid them
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    theme: ThemeName,
    /// Leave clicks and the wheel to the terminal
    #[arg(long)]
    no_mouse: bool,
    /// Put nothing on the clipboard through the terminal (OSC 52)
    #[arg(long)]
    no_osc52: bool,
    /// The role that asks for plans; one that may only read
    #[arg(long, value_name = "ROLE")]
    plan_user: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ThemeName {
    /// For a dark background
    #[default]
    Dark,
    /// For a light background
    Light,
    /// Black, white and full colours
    Contrast,
    /// Bold, faint and reversed only
    Mono,
}

impl From<ThemeName> for Palette {
    fn from(name: ThemeName) -> Self {
        match name {
            ThemeName::Dark => Self::Dark,
            ThemeName::Light => Self::Light,
            ThemeName::Contrast => Self::Contrast,
            ThemeName::Mono => Self::Mono,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  howdah top postgresql://localhost/shop
  howdah top 'host=db1 dbname=shop' 'host=db2 dbname=shop' --read-only
  howdah top -h db1 --view blocking --once --format json
  howdah top -d shop --view statements --interval 10s --format csv > statements.csv
  howdah top -h db1 --once --alert 'blocked > 30s'; test $? = 3 && echo somebody waits
  howdah top -h db1 --watch --alert 'lag > 1GB for 1m' --listen 127.0.0.1:9189
  howdah top -d shop --record shop.top
  howdah top --replay shop.top --view blocking --format json";

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

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let settings = args.settings();
    if let Some(path) = &args.past.replay {
        return args.replay(path, settings, ctx);
    }
    let servers = args.watched()?;
    let keeper = args.past.keeper(servers.iter().map(|watch| watch.name.clone()))?;
    let lookout = args.lookout(ctx)?;
    let _metrics = args.metrics.serve(ctx)?;
    let is_over = ctx.interrupted();
    let is_over = || is_over.load(Ordering::Relaxed);
    let outcome = if args.tell.watch {
        watch_only(&args, &servers, &lookout, &keeper, is_over)
    } else {
        past::also_on_hangup(&ctx.interrupted())?;
        args.show(servers, settings, &lookout, &keeper, ctx, is_over)
    };
    lookout.finish(PATIENCE);
    let recorded = keeper.finish().context("the end of the recording may be lost");
    outcome.and_then(|outcome| recorded.map(|()| outcome))
}

/// How long a webhook may take when all else is done.
const PATIENCE: Duration = Duration::from_secs(5);

/// A service: it tells, and shows nothing.
fn watch_only(
    args: &Args,
    servers: &[Watch],
    lookout: &AlertEngine,
    keeper: &Keeper,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<Outcome> {
    // What happens is what its log is for.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    service_state("READY=1");
    let keeper = keeper.wants_all_views().then_some(keeper);
    watch::run(servers, args.interval, lookout, keeper, is_over)?;
    service_state("STOPPING=1");
    Ok(Outcome::Done)
}

impl Args {
    /// A screen, or rows.
    fn show(
        &self,
        servers: Vec<Watch>,
        settings: Settings,
        lookout: &AlertEngine,
        keeper: &Keeper,
        ctx: &Context,
        is_over: impl Fn() -> bool,
    ) -> anyhow::Result<Outcome> {
        let terminal = ctx.terminal();
        let count = if self.once { Some(1) } else { self.count };
        if self.format.is_none() && count.is_none() && terminal.stdout {
            logging::spare_the_screen(ctx);
            run::run(servers, settings, lookout, keeper, terminal.color_stdout, is_over)
                .context("the terminal cannot be used")?;
            return Ok(Outcome::Done);
        }
        let format = self.format.unwrap_or(FormatName::Table).into();
        let batch = Batch::new(&settings, format, count);
        // Without a screen nobody looks back: only a recording needs to be fed.
        let keeper = keeper.wants_all_views().then_some(keeper);
        let ended = batch::run(&servers, &batch, lookout, keeper, ctx.stdout(), is_over)?;
        for alert in &ended.alerts {
            ctx.say(format_args!("{}: {alert}", alert.server));
        }
        let unchecked =
            ended.unchecked.iter().map(|unchecked| format!("{}: {unchecked}", unchecked.server));
        let mut unchecked: Vec<String> = unchecked.collect();
        if let Some((first, others)) = ended.unread.split_first() {
            for unchecked in &unchecked {
                ctx.say(format_args!("{unchecked}"));
            }
            for unread in others {
                ctx.say(format_args!("{}: {}", unread.server, unread.reason));
            }
            return Err(anyhow::anyhow!("{}: {}", first.server, first.reason));
        }
        // The last is the error itself.
        let last = unchecked.pop();
        for unchecked in &unchecked {
            ctx.say(format_args!("{unchecked}"));
        }
        if let Some(last) = last {
            return Err(anyhow::anyhow!(last));
        }
        Ok(if ended.alerts.is_empty() { Outcome::Done } else { Outcome::No })
    }

    /// A recording, on a screen or as rows.
    fn replay(&self, path: &Path, settings: Settings, ctx: &Context) -> anyhow::Result<Outcome> {
        let recording = past::open(path, ctx)?;
        let terminal = ctx.terminal();
        let count = if self.once { Some(1) } else { self.count };
        if self.format.is_none() && count.is_none() && terminal.stdout {
            let is_over = ctx.interrupted();
            past::also_on_hangup(&is_over)?;
            let is_over = || is_over.load(Ordering::Relaxed);
            let name = path.display().to_string();
            logging::spare_the_screen(ctx);
            run::replay(name, recording.history, settings, terminal.color_stdout, is_over)
                .context("the terminal cannot be used")?;
            return Ok(Outcome::Done);
        }
        let format = self.format.unwrap_or(FormatName::Table).into();
        let batch = Batch::new(&settings, format, count);
        batch::replay(&recording.history, &batch, self.past.moments_us(), ctx.stdout())
            .with_context(|| format!("replaying {}", path.display()))?;
        Ok(Outcome::Done)
    }

    /// The servers by the names that a person gave them, without what must not be seen.
    fn watched(&self) -> anyhow::Result<Vec<Watch>> {
        let words: Vec<Option<&str>> = match self.servers.as_slice() {
            [] => vec![None],
            servers => servers.iter().map(|words| Some(words.as_str())).collect(),
        };
        let mut environment = Environment::from_process();
        if let Some(Secret(pass)) = &self.pass {
            tracing::warn!("a password in options or in pgtop's file: ~/.pgpass is a safer place");
            if std::env::var_os("PGPASSWORD").is_none() {
                environment = environment.with_variable("PGPASSWORD", pass);
            }
        }
        let poolers = self.poolers(&environment)?;
        let watch = |words: Option<&str>| -> anyhow::Result<Watch> {
            let target = self.connection.target_in(words, &environment)?;
            let name = format!("{}/{}", place(&target), target.database());
            Ok(Watch { name, target, poolers: poolers.clone() })
        };
        words.into_iter().map(watch).collect()
    }

    /// The consoles of poolers. What the other options say of a connection is not theirs.
    fn poolers(&self, environment: &Environment) -> anyhow::Result<Poolers> {
        let console = |uri: &String| -> anyhow::Result<_> {
            let target = Target::resolve(&Words::from_conninfo(uri), environment)
                .context("cannot make sense of --pooler")?;
            Ok((place(&target), target))
        };
        let consoles = self.pooler.iter().map(console).collect::<anyhow::Result<_>>()?;
        Ok(Poolers::start(consoles)?)
    }

    /// What looks out for what is to be told.
    fn lookout(&self, ctx: &Context) -> anyhow::Result<AlertEngine> {
        let by_keymap = (self.keymap == KeymapName::Pgtop).then(|| PathBuf::from("pgtop.log"));
        self.tell.lookout(by_keymap, self.metrics.is_wanted(), ctx)
    }

    fn settings(&self) -> Settings {
        Settings {
            interval: self.interval,
            slow: Some(self.tell.slow_threshold),
            is_read_only: self.read_only,
            keymap: self.keymap.into(),
            screen: self.view,
            filter: self.filter.clone(),
            with_idle: self.idle,
            policy: Policy { with_superusers: self.superusers },
            palette: self.look.theme.into(),
            has_mouse: !self.look.no_mouse,
            has_clipboard: !self.look.no_osc52,
            plan_user: self.look.plan_user.clone(),
        }
    }
}

/// Host and port.
fn place(target: &Target) -> String {
    let endpoint = target.endpoints().first();
    endpoint.map_or_else(String::new, |endpoint| format!("{}:{}", endpoint.host(), endpoint.port()))
}
