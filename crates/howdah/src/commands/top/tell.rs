//! Whom `howdah top` tells what: rules, webhooks, the log of slow statements.

use std::{fmt, fs, io::Read as _, path::Path, path::PathBuf, str::FromStr, time::Duration};

use anyhow::Context as _;
use howdah_top::{
    AlertEngine, Plan,
    audit::Audit,
    rules::Rule,
    slow::{LogFormat, SlowLog},
    webhook::{Form, Pace, Webhook, WebhookSender},
};

use crate::{context::Context, errors};

/// The options of what is told. Flatten into `Args`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Telling")]
pub(super) struct TellArgs {
    /// From how long on a statement is slow: it is marked, and told where something is told
    #[arg(long, alias = "slow_threshold", value_name = "TIME", default_value = "60s", value_parser = crate::values::time)]
    pub(super) slow_threshold: Duration,
    /// A file that slow statements are appended to; pgtop.log with the keys of pgtop
    #[arg(long, value_name = "FILE")]
    slow_log: Option<PathBuf>,
    /// Its form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    slow_log_format: LogFormatName,
    /// Tell of it: 'query > 5m', 'connections > 90% for 1m', 'lag > 1GB until 100MB'. Subjects: query,
    /// idle-in-transaction, transaction, blocked, connections, lag, wraparound, away
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    alert: Vec<Rule>,
    /// Tell a Slack channel of slow statements and alerts. Others see the URL in the list of processes: give it
    /// as HOWDAH_TOP_SLACK_WEBHOOK, or in a file
    #[arg(long, alias = "slack_webhook", value_name = "URL", hide_default_value = true)]
    slack_webhook: Option<Secret>,
    /// The same, with the URL in a file
    #[arg(long, value_name = "FILE")]
    slack_webhook_file: Option<PathBuf>,
    /// Tell a program: a JSON document is sent to this URL
    #[arg(long, value_name = "URL", hide_default_value = true)]
    webhook: Option<Secret>,
    /// The same, with the URL in a file
    #[arg(long, value_name = "FILE")]
    webhook_file: Option<PathBuf>,
    /// Sign what is sent to --webhook with the key in this file
    #[arg(long, value_name = "FILE")]
    webhook_key_file: Option<PathBuf>,
    /// Certificates to trust for both webhooks, instead of the system's
    #[arg(long, value_name = "FILE")]
    webhook_ca_file: Option<PathBuf>,
    /// A file that gets a line for each signal that is sent from the screen: who, to whom, why, what became of it
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Neither screen nor rows: only tell, until SIGTERM or Ctrl-C
    #[arg(long, conflicts_with_all = ["once", "count", "format"])]
    pub(super) watch: bool,
}

/// A text that is not to be seen in anything that is printed.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormatName {
    /// Time, host, database, user, pid, seconds, statement, with tabs between
    #[default]
    Pgtop,
    /// A JSON document a line
    Json,
}

/// A file with an address or a key is not longer.
const SECRET_BYTES_MAX: u64 = 64 << 10;

impl TellArgs {
    /// What looks out, and whom it tells. `slow_log` is where slow statements go unless it was said;
    /// `figures` whether metrics are wanted.
    pub(super) fn lookout(
        &self,
        slow_log: Option<PathBuf>,
        figures: bool,
        ctx: &Context,
    ) -> anyhow::Result<AlertEngine> {
        let format = match self.slow_log_format {
            LogFormatName::Pgtop => LogFormat::Pgtop,
            LogFormatName::Json => LogFormat::Json,
        };
        let path = self.slow_log.clone().or(slow_log);
        let slow_log = path.map(|path| SlowLog::open(&path, format));
        if let Some(trouble) = slow_log.as_ref().and_then(SlowLog::trouble) {
            tracing::warn!("{trouble}");
        }
        Ok(AlertEngine::new(Plan {
            slow: Some(self.slow_threshold),
            slow_log,
            rules: self.alert.clone(),
            couriers: self.couriers()?,
            audit: self.audit()?,
            registry: figures.then(|| ctx.registry().clone()),
            logs: self.watch,
        }))
    }

    /// Where signals are written. A file that cannot be opened is an error: it was asked for, to be relied on.
    fn audit(&self) -> anyhow::Result<Option<Audit>> {
        let Some(path) = &self.audit_log else { return Ok(None) };
        let person = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER"));
        Ok(Some(Audit::open(path, person.unwrap_or_else(|_| "-".to_owned()))?))
    }

    fn couriers(&self) -> anyhow::Result<Vec<WebhookSender>> {
        let key = self.webhook_key_file.as_deref().map(read_secret).transpose()?;
        let document = Form::Document { key: key.map(|key| key.into_bytes().into()) };
        let wanted = [
            ("slack-webhook", &self.slack_webhook, &self.slack_webhook_file, Form::Slack),
            ("webhook", &self.webhook, &self.webhook_file, document),
        ];
        let mut couriers = Vec::new();
        for (option, url, file, form) in wanted {
            let url = match (url, file) {
                (Some(url), _) => url.0.clone(),
                (None, Some(file)) => read_secret(file)?,
                (None, None) => continue,
            };
            let webhook = Webhook::new(&url, form, self.webhook_ca_file.as_deref())
                .map_err(|error| errors::wrong_usage(format!("--{option}: {error}")))?;
            couriers.push(WebhookSender::start(webhook, Pace::default())?);
        }
        Ok(couriers)
    }
}

/// What a file holds, without white space around it.
fn read_secret(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(SECRET_BYTES_MAX).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let text = text.trim();
    anyhow::ensure!(!text.is_empty(), "{} is empty", path.display());
    Ok(text.to_owned())
}
