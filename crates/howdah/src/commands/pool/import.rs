//! `howdah pool import`: converts a pgbouncer.ini or pgcat.toml to a howdah.toml.

use std::{fs, io::Write as _, path::PathBuf};

use anyhow::Context as _;
use howdah_pool_config::{Config, FileFormat};

use crate::{commands::settings_output, context::CommandContext, outcome::CommandOutcome};

/// Convert a pgbouncer.ini or pgcat.toml to the pool section of a howdah.toml.
///
/// The format is detected. The output has the same meaning, including included files and passwords;
/// the user list and other files that the input names stay where they are. Comments mark keys that
/// behave differently and keys without effect, with file and line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to convert
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output file, created readable only by its owner. An existing file is replaced only if it has
    /// no settings, only comments; it keeps its owner and mode
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let Args { file, output } = args;
    let cannot_read = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).with_context(cannot_read)?;
    // Relative paths in the file must still resolve wherever the output is written.
    let path = fs::canonicalize(file).with_context(cannot_read)?;
    let toml = match FileFormat::detect(&text) {
        FileFormat::PgBouncer => Config::import_pgbouncer(&text, &path)?,
        FileFormat::Howdah => Config::import_pgcat(&text, &path)?,
    };
    match output {
        Some(output) => {
            settings_output::write(output, &toml)?;
            ctx.report(format_args!("written: {}", output.display()));
        }
        None => ctx.stdout().write_all(toml.as_bytes())?,
    }
    for line in summary(&toml) {
        ctx.report(format_args!("{line}"));
    }
    Ok(CommandOutcome::Done)
}

/// Summarises what to review in the output: the number of remarks of each kind, and their lines.
fn summary(toml: &str) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut differences = Vec::new();
    for (line, text) in (1..).zip(toml.lines()) {
        let Some(comment) = text.strip_prefix("# ") else { continue };
        match (comment.strip_prefix("  "), comment.strip_suffix(':')) {
            (Some(_), _) => groups.last_mut().into_iter().for_each(|(_, lines)| lines.push(line)),
            (None, Some(heading)) => groups.push((heading, Vec::new())),
            // The first line names the source.
            (None, None) if line > 1 => differences.push(line),
            (None, None) => {}
        }
    }
    groups.push(("Keys that behave differently, below the remark", differences));
    let one = |(heading, lines): (&str, Vec<usize>)| {
        let list: Vec<_> = lines.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        (!lines.is_empty()).then(|| format!("{heading}: {} (line {list})", lines.len()))
    };
    groups.into_iter().filter_map(one).collect()
}

#[test]
fn summary_counts_remarks_with_their_lines() {
    let toml = "# From x:\n#\n# Keys without effect:\n#   x:7: logfile: no\n#   x:8: user: no\n#\n\
                # Empty:\n\n[pool]\n# server_login_retry: the longest\nserver-login-retry = 3\n";
    assert_eq!(
        summary(toml),
        [
            "Keys without effect: 2 (line 4, 5)",
            "Keys that behave differently, below the remark: 1 (line 10)",
        ]
    );
}
