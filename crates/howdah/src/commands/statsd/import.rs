//! `howdah statsd import`: converts the settings file of another statsd server to a howdah.toml.

use std::{fs, io::Write as _, path::PathBuf};

use anyhow::Context as _;

use super::{DialectArg, read_file, read_text};
use crate::{commands::settings_output, context::CommandContext, outcome::CommandOutcome};

/// Convert the settings file of another statsd server to the statsd section of a howdah.toml.
///
/// The format is detected. The output has the keys that differ from the defaults, and the same
/// effect as `howdah statsd -c FILE`. Comments at its top name keys without effect, with file and
/// line. URLs and connection strings have the passwords that the file has.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to convert
    #[arg(value_name = "FILE", required_unless_present = "exporter_args")]
    file: Option<PathBuf>,
    /// Convert the command line of statsd_exporter instead of a file
    #[arg(long, value_name = "FLAGS", conflicts_with = "file", allow_hyphen_values = true)]
    exporter_args: Option<String>,
    /// Server to imitate where implementations differ; overrides the file
    #[arg(long, value_enum, value_name = "SERVER")]
    dialect: Option<DialectArg>,
    /// Output file, created readable only by its owner. An existing file is replaced only if it has
    /// no settings, only comments; it keeps its owner and mode
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let Args { file, exporter_args, dialect, output } = args;
    let (path, read) = match (file, exporter_args) {
        (Some(file), _) => {
            let cannot_read = || format!("cannot read {}", file.display());
            // The output may be used in another directory.
            let path = fs::canonicalize(file).with_context(cannot_read)?;
            let read = read_file(&path)?;
            (path, read)
        }
        (None, flags) => {
            let path = PathBuf::from("--exporter-args");
            let read = read_text(flags.as_deref().unwrap_or_default(), &path, None);
            (path, read)
        }
    };
    let mut read = read.context("cannot convert the settings")?;
    if let Some(dialect) = dialect {
        read.settings.dialect = dialect.dialect();
    }
    let section = read.settings.to_toml().context("cannot write the settings as TOML")?;
    let mut toml = format!("# From {}.\n", one_line(&path.display().to_string()));
    for warning in &read.warnings {
        toml += &format!("# {}\n", one_line(&warning.to_string()));
    }
    toml = format!("{toml}\n{section}");
    match output {
        Some(output) => {
            settings_output::write(output, &toml)?;
            ctx.report(format_args!("written: {}", output.display()));
        }
        None => ctx.stdout().write_all(toml.as_bytes())?,
    }
    if !read.warnings.is_empty() {
        ctx.report(format_args!(
            "keys without equal effect: {} (comments at the top)",
            read.warnings.len()
        ));
    }
    Ok(CommandOutcome::Done)
}

/// Returns text as one line, so that it cannot leave its comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
