//! `howdah capture doctor`: which settings a server has to log with so that its log makes a good capture.

mod advice;
mod log;
mod render;
mod server;

use std::path::{Path, PathBuf};

use self::advice::{Finding, Need};
use super::LogArgs;
use crate::{connection::ConnectionArgs, context::Context, errors, outcome::Outcome};

/// Say which logging settings a capture needs, and what each missing one costs.
///
/// Looks at a log, or asks a server (a URI, a keyword string, or -h, -p, -U and -d; no superuser is
/// needed). Ends with exit code 3 when a setting is missing without which a replay would not be what
/// clients did.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    /// Server logs, or a server to ask
    #[arg(value_name = "LOG|CONNINFO")]
    inputs: Vec<String>,
    /// How to print it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table, and lines to copy into postgresql.conf or psql
    #[default]
    Table,
    /// One JSON document
    Json,
}

/// What the doctor found.
#[derive(Debug)]
struct Diagnosis {
    /// What was looked at, for a person.
    subject: String,
    findings: Vec<Finding>,
    /// Things to know that are no setting.
    notes: Vec<String>,
    remedy: Remedy,
}

/// Where settings are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    /// A file that the person edits: the server was not asked.
    File,
    /// `ALTER SYSTEM`.
    Sql,
    /// The parameter group of Amazon RDS or Aurora.
    Rds,
    /// The flags of a Cloud SQL instance.
    CloudSql,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let diagnosis = match &args.inputs[..] {
        [] if !args.connection.names_a_server() => {
            let error = errors::wrong_usage("nothing to look at was named");
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
        Format::Table => render::table(&mut out, &diagnosis)?,
        Format::Json => render::json(&mut out, &diagnosis)?,
    }
    let missing = diagnosis.findings.iter().any(|finding| finding.need() == Need::Needed);
    Ok(if missing { Outcome::No } else { Outcome::Done })
}

/// Whether a word names a server: a file of that name is a log.
fn is_conninfo(word: &str) -> bool {
    let uri = word.starts_with("postgresql://") || word.starts_with("postgres://");
    uri || word.contains('=') && !Path::new(word).exists()
}
