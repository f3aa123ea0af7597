//! Notification options of `howdah top`: alert rules, webhooks, logs.

use std::{fs, io::Read as _, path::Path, path::PathBuf, time::Duration};

use anyhow::Context as _;
use howdah_connect::Environment;
use howdah_top::{
    AlertConfig, AlertEngine,
    audit::Audit,
    rules::AlertRule,
    slow_statements::{SlowLog, SlowLogFormat},
    webhook::{RetryPolicy, Webhook, WebhookFormat, WebhookSender},
};

use crate::{context::CommandContext, errors, values::SecretArg};

/// Notification options. Flatten into `Args`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Notifications")]
pub(super) struct NotifyArgs {
    /// Duration from which a statement is slow: it is highlighted and reported
    #[arg(long, alias = "slow_threshold", value_name = "TIME", default_value = "60s", value_parser = crate::values::time)]
    pub(super) slow_threshold: Duration,
    /// Append slow statements to this file [default with --keymap pgtop: pgtop.log]
    #[arg(long, value_name = "FILE")]
    slow_log: Option<PathBuf>,
    /// Format of the lines in the slow log
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    slow_log_format: SlowLogFormatName,
    /// Alert rule: 'query > 5m', 'connections > 90% for 1m', 'lag > 1GB until 100MB'; repeatable.
    /// Subjects: query, idle-in-transaction, transaction, blocked, connections, lag, wraparound,
    /// unreachable
    #[arg(long, value_name = "RULE", value_parser = AlertRule::parse)]
    alert: Vec<AlertRule>,
    /// Report slow statements and alerts to a Slack channel. Other users can see the URL in the
    /// process list: set HOWDAH_TOP_SLACK_WEBHOOK or use a file instead
    #[arg(long, alias = "slack_webhook", value_name = "URL", hide_default_value = true)]
    slack_webhook: Option<SecretArg>,
    /// File with the URL for --slack-webhook
    #[arg(long, value_name = "FILE")]
    slack_webhook_file: Option<PathBuf>,
    /// Report slow statements and alerts to this URL, as JSON documents
    #[arg(long, value_name = "URL", hide_default_value = true)]
    webhook: Option<SecretArg>,
    /// File with the URL for --webhook
    #[arg(long, value_name = "FILE")]
    webhook_file: Option<PathBuf>,
    /// Sign requests to --webhook with the key in this file
    #[arg(long, value_name = "FILE")]
    webhook_key_file: Option<PathBuf>,
    /// CA certificates for both webhooks, instead of the system's
    #[arg(long, value_name = "FILE")]
    webhook_ca_file: Option<PathBuf>,
    /// Append a line to this file for each signal sent from the screen: who, to whom, why, and the
    /// result
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Only send notifications, without screen or rows, until SIGTERM or Ctrl-C
    #[arg(long, conflicts_with_all = ["once", "count", "format"])]
    pub(super) watch: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum SlowLogFormatName {
    /// Time, host, database, user, pid, seconds and statement, separated by tabs
    #[default]
    Pgtop,
    /// One JSON document per line
    Json,
}

/// Maximum number of bytes read from a file with a URL or a key.
const SECRET_BYTES_MAX: u64 = 64 << 10;

impl NotifyArgs {
    /// Creates the alert engine. `slow_log` is the default slow log; `has_metrics` is whether
    /// metrics are enabled.
    pub(super) fn alert_engine(
        &self,
        slow_log: Option<PathBuf>,
        has_metrics: bool,
        ctx: &CommandContext,
    ) -> anyhow::Result<AlertEngine> {
        let format = match self.slow_log_format {
            SlowLogFormatName::Pgtop => SlowLogFormat::Pgtop,
            SlowLogFormatName::Json => SlowLogFormat::Json,
        };
        let path = self.slow_log.clone().or(slow_log);
        let slow_log = path.map(|path| SlowLog::open(&path, format));
        if let Some(problem) = slow_log.as_ref().and_then(SlowLog::problem) {
            tracing::warn!("{problem}");
        }
        Ok(AlertEngine::new(AlertConfig {
            slow: Some(self.slow_threshold),
            slow_log,
            rules: self.alert.clone(),
            webhooks: self.webhook_senders()?,
            audit: self.audit()?,
            registry: has_metrics.then(|| ctx.registry().clone()),
            log_events: self.watch,
        }))
    }

    /// Opens the audit log. Failing to open it is an error, because the user relies on it.
    fn audit(&self) -> anyhow::Result<Option<Audit>> {
        let Some(path) = &self.audit_log else { return Ok(None) };
        let user = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty());
        let user = user
            .or_else(|| Environment::from_process().os_user().map(str::to_owned))
            .unwrap_or_else(|| format!("uid {}", rustix::process::geteuid().as_raw()));
        Ok(Some(Audit::open(path, user)?))
    }

    fn webhook_senders(&self) -> anyhow::Result<Vec<WebhookSender>> {
        let key = self.webhook_key_file.as_deref().map(read_secret).transpose()?;
        let document = WebhookFormat::Document { key: key.map(|key| key.into_bytes().into()) };
        let webhooks = [
            ("slack-webhook", &self.slack_webhook, &self.slack_webhook_file, WebhookFormat::Slack),
            ("webhook", &self.webhook, &self.webhook_file, document),
        ];
        let mut webhook_senders = Vec::new();
        for (option, url, file, form) in webhooks {
            let url = match (url, file) {
                (Some(url), _) => url.0.clone(),
                (None, Some(file)) => read_secret(file)?,
                (None, None) => continue,
            };
            let webhook = Webhook::new(&url, form, self.webhook_ca_file.as_deref())
                .map_err(|error| errors::wrong_usage(format!("--{option}: {error}")))?;
            webhook_senders.push(WebhookSender::start(webhook, RetryPolicy::default())?);
        }
        Ok(webhook_senders)
    }
}

/// Reads a URL or key from a file, without surrounding white space. An empty file is an error.
fn read_secret(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let bytes = fs::File::open(path)
        .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(
        bytes as u64 <= SECRET_BYTES_MAX,
        "{} is larger than {SECRET_BYTES_MAX} bytes: it must have a URL or key only",
        path.display()
    );
    let text = text.trim();
    anyhow::ensure!(!text.is_empty(), "{} is empty: it must have a URL or key", path.display());
    Ok(text.to_owned())
}
