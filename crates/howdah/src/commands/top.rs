//! `howdah top`: monitors servers.

mod agent;
mod history;
mod notify;

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_top::{
    AlertEngine, ColumnChoice, ColumnChoices, Palette, Poolers, RowFilter, ScreenKind, TopSettings,
    batch::{self, BatchOptions},
    history::HistoryWriter,
    interactive,
    keys::Keymap,
    monitor,
    output::OutputFormat,
    sampler::WatchTarget,
    signal_plan::SignalPolicy,
};

use self::{agent::AgentArgs, history::HistoryArgs, notify::NotifyArgs};
use crate::{
    config, connection::ConnectionArgs, context::CommandContext, logging, metrics::MetricsArgs,
    notify::service_state, outcome::CommandOutcome, values::SecretArg,
};

/// Monitor what servers are doing, and cancel or terminate it.
///
/// A screen for one or more servers: sessions, blocking, databases, tables, statements, replication
/// and more. Statements can be cancelled and sessions terminated, after confirming a list of
/// affected sessions. If stdout is not a terminal, or with --once, --count or --format, rows are
/// written instead.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES,
          mut_arg("metrics", |arg| arg.visible_alias("listen")),
          mut_arg("username", |arg| arg.alias("user")),
          mut_arg("dbname", |arg| arg.aliases(["db", "database"])))]
pub(crate) struct Args {
    /// The servers: URIs, keyword strings or database names
    #[arg(value_name = "URI")]
    servers: Vec<String>,
    /// Screen to show first
    #[arg(long, value_name = "NAME", default_value = "activity", value_parser = screens())]
    view: ScreenKind,
    /// Refresh interval: 500ms, 2s, 1m
    #[arg(short, long, alias = "delay", value_name = "TIME", default_value = "2s", value_parser = crate::values::time)]
    interval: Duration,
    /// Rows to show: words, user:app, state=active, >5s, !not
    #[arg(long, value_name = "WORDS", default_value = "", value_parser = RowFilter::parse)]
    filter: RowFilter,
    /// Include idle sessions
    #[arg(long)]
    idle: bool,
    /// Disable all keys that affect a server
    #[arg(long)]
    read_only: bool,
    /// Allow ending sessions of superusers
    #[arg(long)]
    superusers: bool,
    /// Key bindings
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    keymap: KeymapName,
    /// Take one sample of each server and exit
    #[arg(long, visible_alias = "batch", conflicts_with = "count")]
    once: bool,
    /// Take this many samples of each server and exit
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Write rows instead of showing a screen
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// The password, as for pgtop
    #[arg(long, alias = "password", hide = true)]
    pass: Option<SecretArg>,
    /// Console of a pooler in front of the servers (PgBouncer or compatible), to show the client of
    /// each session
    #[arg(long, value_name = "URI")]
    pooler: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    notify: NotifyArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    history: HistoryArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Appearance of the screen, and use of the terminal.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Screen")]
struct DisplayArgs {
    /// Columns to show of a screen; other screens show all
    #[arg(long, value_name = "VIEW=NAME,NAME")]
    columns: Vec<ColumnChoice>,
    /// Color theme, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    theme: ThemeName,
    /// Leave mouse clicks and the wheel to the terminal
    #[arg(long)]
    no_mouse: bool,
    /// Do not copy to the clipboard through the terminal (OSC 52)
    #[arg(long)]
    no_osc52: bool,
    /// Role for EXPLAIN, preferably a read-only role
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
    /// Black, white and full colors
    Contrast,
    /// Only bold, faint and reversed
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
  howdah top -h db1 --once --alert 'blocked > 30s'; test $? = 3 && echo blocked
  howdah top -h db1 --watch --alert 'lag > 1GB for 1m' --listen 127.0.0.1:9189
  howdah top -h db1 --agent http://127.0.0.1:9190
  howdah top -d shop --record shop.top
  howdah top --replay shop.top --view blocking --format json";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum KeymapName {
    /// Howdah's own keys
    #[default]
    Default,
    /// Keys of pgtop
    Pgtop,
    /// Keys of pg_activity
    #[value(name = "pg_activity")]
    PgActivity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    /// Aligned columns
    Table,
    /// One JSON document
    Json,
    /// One JSON document per line
    Ndjson,
    /// Comma-separated values (RFC 4180)
    Csv,
}

impl From<FormatName> for OutputFormat {
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

/// Returns a parser that accepts the names of screens, and describes them in the help.
fn screens() -> impl TypedValueParser<Value = ScreenKind> {
    let value = |screen: ScreenKind| PossibleValue::new(screen.name()).help(screen.help());
    PossibleValuesParser::new(ScreenKind::all().map(value))
        .map(|name| ScreenKind::from_name(&name).expect("it is one of the possible values"))
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let settings = args.settings();
    if let Some(path) = &args.history.replay {
        return args.replay(path, settings, ctx);
    }
    let servers = args.targets()?;
    let history = args.history.writer(servers.iter().map(|watch| watch.name.clone()))?;
    let alerts = args.alert_engine(ctx)?;
    let _metrics = args.metrics.serve(ctx)?;
    let is_over = ctx.interrupted();
    let is_over = || is_over.load(Ordering::Relaxed);
    let outcome = if args.notify.watch {
        watch_only(args, &servers, &alerts, &history, is_over)
    } else {
        history::interrupt_on_hangup(&ctx.interrupted())?;
        args.show(servers, settings, &alerts, &history, ctx, is_over)
    };
    alerts.finish(WEBHOOK_TIMEOUT);
    let recorded = history.finish().context("the end of the recording may be lost");
    outcome.and_then(|outcome| recorded.map(|()| outcome))
}

/// Maximum time to wait at exit until queued notifications are sent to webhooks.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs as a service that sends notifications, without output.
fn watch_only(
    args: &Args,
    servers: &[WatchTarget],
    alerts: &AlertEngine,
    history: &HistoryWriter,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<CommandOutcome> {
    // A service logs its events, so info is the default level.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    service_state("READY=1");
    let history = history.needs_all_views().then_some(history);
    monitor::run(servers, args.interval, alerts, history, is_over)?;
    service_state("STOPPING=1");
    Ok(CommandOutcome::Done)
}

impl Args {
    /// Shows a screen on the terminal. Writes rows if stdout is not a terminal, or if a format or
    /// count was requested.
    fn show(
        &self,
        servers: Vec<WatchTarget>,
        settings: TopSettings,
        alerts: &AlertEngine,
        history: &HistoryWriter,
        ctx: &CommandContext,
        is_over: impl Fn() -> bool,
    ) -> anyhow::Result<CommandOutcome> {
        let terminal = ctx.terminal();
        let count = if self.once { Some(1) } else { self.count };
        if self.format.is_none() && count.is_none() && terminal.stdout {
            logging::silence_on_terminal(ctx.terminal());
            let settings = self.with_saved_columns(settings);
            interactive::run(servers, settings, alerts, history, terminal.color_stdout, is_over)
                .context("cannot use the terminal")?;
            return Ok(CommandOutcome::Done);
        }
        let format = self.format.unwrap_or(FormatName::Table).into();
        let batch = BatchOptions::new(&settings, format, count);
        // Without a screen, the history is only needed for a recording.
        let history = history.needs_all_views().then_some(history);
        let ended = batch::run(&servers, &batch, alerts, history, ctx.stdout(), is_over)?;
        for alert in &ended.alerts {
            ctx.report(format_args!("{}: {alert}", alert.server));
        }
        let unchecked =
            ended.unchecked.iter().map(|unchecked| format!("{}: {unchecked}", unchecked.server));
        let mut unchecked: Vec<String> = unchecked.collect();
        if let Some((first, others)) = ended.unsampled.split_first() {
            for unchecked in &unchecked {
                ctx.report(format_args!("{unchecked}"));
            }
            for unread in others {
                ctx.report(format_args!("{}: {}", unread.server, unread.reason));
            }
            return Err(anyhow::anyhow!("{}: {}", first.server, first.reason));
        }
        // The last problem becomes the error; the others are reported first.
        let last = unchecked.pop();
        for unchecked in &unchecked {
            ctx.report(format_args!("{unchecked}"));
        }
        if let Some(last) = last {
            return Err(anyhow::anyhow!(last));
        }
        Ok(if ended.alerts.is_empty() { CommandOutcome::Done } else { CommandOutcome::CheckFailed })
    }

    /// Shows a recording on a screen, or writes its rows.
    fn replay(
        &self,
        path: &Path,
        settings: TopSettings,
        ctx: &CommandContext,
    ) -> anyhow::Result<CommandOutcome> {
        let recording = history::open(path, ctx)?;
        let terminal = ctx.terminal();
        let count = if self.once { Some(1) } else { self.count };
        if self.format.is_none() && count.is_none() && terminal.stdout {
            let is_over = ctx.interrupted();
            history::interrupt_on_hangup(&is_over)?;
            let is_over = || is_over.load(Ordering::Relaxed);
            let name = path.display().to_string();
            logging::silence_on_terminal(ctx.terminal());
            let settings = self.with_saved_columns(settings);
            interactive::replay(name, recording.history, settings, terminal.color_stdout, is_over)
                .context("cannot use the terminal")?;
            return Ok(CommandOutcome::Done);
        }
        let format = self.format.unwrap_or(FormatName::Table).into();
        let batch = BatchOptions::new(&settings, format, count);
        batch::replay(&recording.history, &batch, self.history.time_range_us(), ctx.stdout())
            .with_context(|| format!("cannot show the recording {}", path.display()))?;
        Ok(CommandOutcome::Done)
    }

    /// Returns the servers to monitor, with names that do not contain passwords.
    fn targets(&self) -> anyhow::Result<Vec<WatchTarget>> {
        let conninfos: Vec<Option<&str>> = match self.servers.as_slice() {
            [] => vec![None],
            servers => servers.iter().map(|conninfo| Some(conninfo.as_str())).collect(),
        };
        let mut environment = Environment::from_process();
        if let Some(SecretArg(pass)) = &self.pass {
            tracing::warn!("password given in an option or in pgtop's file: ~/.pgpass is safer");
            if std::env::var_os("PGPASSWORD").is_none() {
                environment = environment.with_variable("PGPASSWORD", pass);
            }
        }
        let poolers = self.poolers(&environment)?;
        let mut agents = self.agent.endpoints(conninfos.len())?.into_iter();
        let mut watch = |conninfo: Option<&str>| -> anyhow::Result<WatchTarget> {
            let target = self.connection.target_with_environment(conninfo, &environment)?;
            let name = format!("{}/{}", host_and_port(&target), target.database());
            Ok(WatchTarget { name, target, poolers: poolers.clone(), agent: agents.next() })
        };
        conninfos.into_iter().map(&mut watch).collect()
    }

    /// Starts polling the consoles of the poolers. Other connection options do not apply to them.
    fn poolers(&self, environment: &Environment) -> anyhow::Result<Poolers> {
        let console = |uri: &String| -> anyhow::Result<_> {
            let target = ConnectTarget::resolve(&ConnParams::from_conninfo(uri), environment)
                .context("invalid value of --pooler")?;
            Ok((host_and_port(&target), target))
        };
        let consoles = self.pooler.iter().map(console).collect::<anyhow::Result<_>>()?;
        Ok(Poolers::start(consoles)?)
    }

    /// Creates the engine that evaluates alert rules and reports slow statements.
    fn alert_engine(&self, ctx: &CommandContext) -> anyhow::Result<AlertEngine> {
        let by_keymap = (self.keymap == KeymapName::Pgtop).then(|| PathBuf::from("pgtop.log"));
        self.notify.alert_engine(by_keymap, self.metrics.is_enabled(), ctx)
    }

    /// Adds the columns that the user has saved. Those of options have precedence. Only the screen
    /// uses saved columns: the output for programs must not depend on them.
    fn with_saved_columns(&self, mut settings: TopSettings) -> TopSettings {
        let Some(folder) = config::user_folder() else { return settings };
        let path = folder.join("top-columns");
        match ColumnChoices::read(&path) {
            Ok((mut columns, problems)) => {
                settings.notice = problems.into_iter().next();
                self.display.columns.iter().for_each(|choice| columns.add(choice.clone()));
                settings.columns = columns;
            }
            Err(error) => {
                settings.notice =
                    Some(format!("saved columns are not used: {}: {error}", path.display()));
            }
        }
        TopSettings { columns_file: Some(path), ..settings }
    }

    fn settings(&self) -> TopSettings {
        let mut columns = ColumnChoices::default();
        self.display.columns.iter().for_each(|choice| columns.add(choice.clone()));
        TopSettings {
            interval: self.interval,
            slow: Some(self.notify.slow_threshold),
            is_read_only: self.read_only,
            keymap: self.keymap.into(),
            screen: self.view,
            filter: self.filter.clone(),
            with_idle: self.idle,
            policy: SignalPolicy { with_superusers: self.superusers },
            palette: self.display.theme.into(),
            has_mouse: !self.display.no_mouse,
            has_clipboard: !self.display.no_osc52,
            plan_user: self.display.plan_user.clone(),
            columns,
            columns_file: None,
            notice: None,
        }
    }
}

/// Formats the first endpoint as `HOST:PORT`, without user or password.
fn host_and_port(target: &ConnectTarget) -> String {
    let endpoint = target.endpoints().first();
    endpoint.map_or_else(String::new, |endpoint| format!("{}:{}", endpoint.host(), endpoint.port()))
}
