//! `howdah pool import`: a pgbouncer.ini or a pgcat.toml as a howdah.toml.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use howdah_pool::config::{Config, Form};

use crate::{context::Context, errors::WithHint as _, outcome::Outcome};

/// Write what a pgbouncer.ini or a pgcat.toml says as the section pool of a howdah.toml
///
/// Which of the two it is, is told by its text. What is written means the same, files that are included and
/// passwords among it; the user list and other files that are named stay where they are. Comments say where a
/// key does not do quite what it does there, and which do nothing, by file and line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write it to this file, which must not be there, and which only its owner may read
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let Args { file, output } = args;
    let cannot_read = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).with_context(cannot_read)?;
    // What it names is to be found from wherever the result is put.
    let path = fs::canonicalize(file).with_context(cannot_read)?;
    let toml = match Form::of(&text) {
        Form::PgBouncer => Config::import_pgbouncer(&text, &path)?,
        Form::Howdah => Config::import_pgcat(&text, &path)?,
    };
    match output {
        Some(output) => {
            write_new(output, &toml)?;
            ctx.say(format_args!("written: {}", output.display()));
        }
        None => ctx.stdout().write_all(toml.as_bytes())?,
    }
    for line in summary(&toml) {
        ctx.say(format_args!("{line}"));
    }
    Ok(Outcome::Done)
}

/// What of a written file is left to decide: how many remarks of each kind it has, and on which lines.
fn summary(toml: &str) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut differences = Vec::new();
    for (line, text) in (1..).zip(toml.lines()) {
        let Some(comment) = text.strip_prefix("# ") else { continue };
        match (comment.strip_prefix("  "), comment.strip_suffix(':')) {
            (Some(_), _) => groups.last_mut().into_iter().for_each(|(_, lines)| lines.push(line)),
            (None, Some(heading)) => groups.push((heading, Vec::new())),
            // The first line says where it is from.
            (None, None) if line > 1 => differences.push(line),
            (None, None) => {}
        }
    }
    groups.push(("Keys that differ a little, below the remark", differences));
    let one = |(heading, lines): (&str, Vec<usize>)| {
        let list: Vec<_> = lines.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        (!lines.is_empty()).then(|| format!("{heading}: {} (line {list})", lines.len()))
    };
    groups.into_iter().filter_map(one).collect()
}

#[test]
fn remarks_are_counted_with_their_lines() {
    let toml = "# From x:\n#\n# These do nothing here:\n#   x:7: logfile: no\n#   x:8: user: no\n#\n\
                # Empty:\n\n[pool]\n# server_login_retry: the longest\nserver-login-retry = 3\n";
    assert_eq!(
        summary(toml),
        [
            "These do nothing here: 2 (line 4, 5)",
            "Keys that differ a little, below the remark: 1 (line 10)",
        ]
    );
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    // Passwords of databases are in it.
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file
        .with_context(|| format!("cannot write {}", path.display()))
        .hint("a file that is there is not written over: move it away, or name another")?;
    Ok(file.write_all(text.as_bytes())?)
}
