//! [`Verdict`]: what `--check` says about a server's settings, and `howdah config check` about all.

use std::{io::Write as _, path::Path};

use crate::{context::Context, outcome::Outcome};

/// All there is to say about a server's settings.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// What is understood and passed over.
    pub(super) warnings: Vec<String>,
    /// What is wrong; nothing if they can be used.
    pub(super) wrong: Vec<String>,
}

impl Verdict {
    /// Settings that were read, or why they were not: `wrong` finds in an error what is wrong with
    /// the settings; any other failed, and says nothing about them.
    ///
    /// # Errors
    ///
    /// Whether they can be used is not known.
    pub(super) fn of<R>(
        read: anyhow::Result<R>,
        warnings: impl FnOnce(&R) -> Vec<String>,
        wrong: impl FnOnce(&anyhow::Error) -> Option<Vec<String>>,
    ) -> anyhow::Result<Self> {
        match read {
            Ok(read) => Ok(Self { warnings: warnings(&read), wrong: Vec::new() }),
            Err(error) => match wrong(&error) {
                Some(wrong) => Ok(Self { warnings: Vec::new(), wrong }),
                None => Err(error),
            },
        }
    }

    /// With the file before each of them.
    pub(super) fn in_file(mut self, path: Option<&Path>) -> Self {
        let Some(path) = path else { return self };
        let place = |text: &mut String| text.insert_str(0, &format!("{}: ", path.display()));
        self.warnings.iter_mut().chain(&mut self.wrong).for_each(place);
        self
    }

    /// Prints one thing per line.
    pub(super) fn print(&self, ctx: &Context) -> anyhow::Result<()> {
        let mut out = ctx.stdout();
        for warning in &self.warnings {
            writeln!(out, "warning: {warning}")?;
        }
        for wrong in &self.wrong {
            writeln!(out, "{wrong}")?;
        }
        Ok(())
    }

    /// Whether they can be used.
    pub(super) fn outcome(&self) -> Outcome {
        if self.wrong.is_empty() { Outcome::Done } else { Outcome::No }
    }

    /// What `--check` does.
    pub(super) fn conclude(&self, ctx: &Context) -> anyhow::Result<Outcome> {
        self.print(ctx)?;
        if self.outcome() == Outcome::Done {
            writeln!(ctx.stdout(), "ok")?;
        }
        Ok(self.outcome())
    }
}
