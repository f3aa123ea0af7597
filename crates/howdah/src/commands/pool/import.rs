//! `howdah pool import`: a pgbouncer.ini or a pgcat.toml as a howdah.toml.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use howdah_pool::config::{Config, Form};

use crate::{context::Context, errors::Advise as _, outcome::Outcome};

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
    Ok(Outcome::Done)
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    // Passwords of databases are in it.
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file
        .with_context(|| format!("cannot write {}", path.display()))
        .hint("a file that is there is not written over: move it away, or name another")?;
    Ok(file.write_all(text.as_bytes())?)
}
