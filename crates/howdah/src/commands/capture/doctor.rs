//! `howdah capture doctor`: checks whether a server's log settings allow a complete capture.

use std::{
    io::Write as _,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use anyhow::Context as _;
use howdah_collect::settings;
use howdah_connect::ConnectTarget;
use howdah_logs::{
    ImportOptions, ReadFilesError,
    diagnosis::{self, LoggingDiagnosis, ServerLogSettings, SettingOverride},
};
use howdah_report::logging;

use super::LogArgs;
use crate::{
    connection::{self, ConnectionArgs},
    context::CommandContext,
    errors, format,
    outcome::CommandOutcome,
};

/// Check which logging settings a capture needs, and what is lost without each.
///
/// Reads a log, or queries a server (a URI, a keyword string, or -h, -p, -U and -d; no superuser
/// needed). Exits with 3 if a setting is missing without which a replay would differ from what
/// clients did.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    /// Server logs, or a server to query
    #[arg(value_name = "LOG|CONNINFO")]
    inputs: Vec<String>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: DiagnosisFormat,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum DiagnosisFormat {
    /// A table, and lines to copy into postgresql.conf or psql
    #[default]
    Table,
    /// One JSON document
    Json,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let diagnosis = match &args.inputs[..] {
        [] if !args.connection.names_a_server() => {
            let error = errors::wrong_usage("no log or server given");
            return Err(errors::with_hint(error, "name log files, or a server: postgresql://…"));
        }
        [] => diagnose_server(&args.connection.target(None)?)?,
        [conninfo] if is_conninfo(conninfo) => {
            diagnose_server(&args.connection.target(Some(conninfo))?)?
        }
        logs => {
            let logs: Vec<PathBuf> = logs.iter().map(PathBuf::from).collect();
            diagnose_logs(&logs, args.log.options()?, ctx)?
        }
    };
    let mut out = ctx.stdout();
    match args.format {
        DiagnosisFormat::Table => write!(out, "{}", logging::table(&diagnosis))?,
        DiagnosisFormat::Json => format::write_json(&mut out, &logging::document(&diagnosis))?,
    }
    let is_complete = !diagnosis.has_required_findings();
    Ok(if is_complete { CommandOutcome::Done } else { CommandOutcome::CheckFailed })
}

fn diagnose_logs(
    logs: &[PathBuf],
    options: ImportOptions,
    ctx: &CommandContext,
) -> anyhow::Result<LoggingDiagnosis> {
    let interrupted = ctx.interrupted();
    let diagnosed = diagnosis::diagnose_logs(logs, options, |_| {
        if interrupted.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    diagnosed.map_err(|error| match error {
        ReadFilesError::Options(error) => errors::wrong_usage(error),
        error => anyhow::Error::from(error).context("cannot read the log"),
    })
}

/// Diagnoses the logging settings of a server, which any role may read.
fn diagnose_server(target: &ConnectTarget) -> anyhow::Result<LoggingDiagnosis> {
    let mut client = connection::connect(target)?;
    let version = client.parameter("server_version").unwrap_or_default().to_owned();
    let subject = format!("{}: PostgreSQL {version}", client.endpoint());
    let names: Vec<_> = ServerLogSettings::names().collect();
    let values = settings::installed(&mut client, &names, ServerLogSettings::PREFIXES)
        .context("cannot read pg_settings")?;
    let overrides =
        settings::role_settings(&mut client, &names).context("cannot read pg_db_role_setting")?;
    client.close();
    let overrides = overrides.into_iter().map(|found| SettingOverride {
        database: found.database,
        role: found.role,
        name: found.name,
        value: found.value,
    });
    let settings = ServerLogSettings { values, overrides: overrides.collect() };
    Ok(diagnosis::diagnose_server(subject, &settings))
}

/// Whether an argument is a connection string. An existing file of that name is a log.
fn is_conninfo(word: &str) -> bool {
    let uri = word.starts_with("postgresql://") || word.starts_with("postgres://");
    uri || word.contains('=') && !Path::new(word).exists()
}
