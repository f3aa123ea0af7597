//! `howdah capture doctor`: checks whether a server's log settings allow a complete capture.

mod advice;
mod log;
mod render;
mod server;

use std::path::{Path, PathBuf};

use self::advice::{Finding, Importance};
use super::LogArgs;
use crate::{connection::ConnectionArgs, context::CommandContext, errors, outcome::CommandOutcome};

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

/// Result of the check.
#[derive(Debug)]
struct LoggingDiagnosis {
    /// The examined server or logs, as text.
    subject: String,
    findings: Vec<Finding>,
    /// Remarks that are not about a single setting.
    notes: Vec<String>,
    remedy: Remedy,
}

/// Where the settings are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// postgresql.conf, edited by hand: only a log was examined.
    File,
    /// `ALTER SYSTEM`.
    Sql,
    /// The parameter group of Amazon RDS or Aurora.
    Rds,
    /// The flags of a Cloud SQL instance.
    CloudSql,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let diagnosis = match &args.inputs[..] {
        [] if !args.connection.names_a_server() => {
            let error = errors::wrong_usage("no log and no server given");
            return Err(errors::with_hint(error, "name log files, or a server: postgresql://…"));
        }
        [] => server::examine(&args.connection.target(None)?)?,
        [conninfo] if is_conninfo(conninfo) => {
            server::examine(&args.connection.target(Some(conninfo))?)?
        }
        logs => {
            let logs: Vec<PathBuf> = logs.iter().map(PathBuf::from).collect();
            log::examine(&logs, args.log.options()?, ctx)?
        }
    };
    let mut out = ctx.stdout();
    match args.format {
        DiagnosisFormat::Table => render::table(&mut out, &diagnosis)?,
        DiagnosisFormat::Json => render::json(&mut out, &diagnosis)?,
    }
    let missing =
        diagnosis.findings.iter().any(|finding| finding.importance() == Importance::Required);
    Ok(if missing { CommandOutcome::CheckFailed } else { CommandOutcome::Done })
}

/// Whether an argument is a connection string. An existing file of that name is a log.
fn is_conninfo(word: &str) -> bool {
    let uri = word.starts_with("postgresql://") || word.starts_with("postgres://");
    uri || word.contains('=') && !Path::new(word).exists()
}
