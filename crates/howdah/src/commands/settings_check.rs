//! [`SettingsCheck`]: result of `--check` for a server's settings, and of `howdah config check`.

use std::io::Write as _;

use crate::{context::CommandContext, outcome::CommandOutcome};

/// Problems with a server's settings.
#[derive(Debug, Default)]
pub(super) struct SettingsCheck {
    /// Remarks that do not prevent using the settings, for example about keys without effect.
    pub(super) warnings: Vec<String>,
    /// Settings of another program's file that have another effect here.
    pub(super) differences: Vec<String>,
    /// Errors; empty if the settings can be used.
    pub(super) errors: Vec<String>,
}

impl SettingsCheck {
    /// Creates the check from settings or the error in reading them. `errors` extracts problems
    /// with the settings from an error; `None` means that the error has another cause.
    ///
    /// # Errors
    ///
    /// The settings could not be checked.
    pub(super) fn from_result<R>(
        read: anyhow::Result<R>,
        warnings: impl FnOnce(&R) -> Vec<String>,
        errors: impl FnOnce(&anyhow::Error) -> Option<Vec<String>>,
    ) -> anyhow::Result<Self> {
        match read {
            Ok(read) => Ok(Self { warnings: warnings(&read), ..Self::default() }),
            Err(error) => match errors(&error) {
                Some(errors) => Ok(Self { errors, ..Self::default() }),
                None => Err(error),
            },
        }
    }

    /// Prints one problem per line.
    pub(super) fn print(&self, ctx: &CommandContext) -> anyhow::Result<()> {
        let mut out = ctx.stdout();
        for warning in &self.warnings {
            writeln!(out, "warning: {warning}")?;
        }
        for difference in &self.differences {
            writeln!(out, "differs: {difference}")?;
        }
        for errors in &self.errors {
            writeln!(out, "{errors}")?;
        }
        Ok(())
    }

    /// Returns `Done` if the settings can be used, otherwise `CheckFailed`.
    pub(super) fn outcome(&self) -> CommandOutcome {
        if self.errors.is_empty() { CommandOutcome::Done } else { CommandOutcome::CheckFailed }
    }

    /// Prints the problems, and `ok` if the settings can be used. Returns the outcome of `--check`.
    pub(super) fn finish(&self, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
        self.print(ctx)?;
        if self.outcome() == CommandOutcome::Done {
            writeln!(ctx.stdout(), "ok")?;
        }
        Ok(self.outcome())
    }
}
