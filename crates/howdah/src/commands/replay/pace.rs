//! Options for the pace and the order of statements.

use std::time::Duration;

use howdah_replay::{LagPolicy, Rate, StatementOrder};

use crate::errors;

/// The pace and the order of statements.
#[derive(Debug, clap::Args)]
pub(super) struct PaceArgs {
    /// Speed relative to the capture, such as 0.5 or 2, or max to replay without waiting
    #[arg(long, short, value_name = "FACTOR", default_value_t, allow_negative_numbers = true)]
    pub(super) rate: Rate,
    /// Shorten times in which no captured statement runs to this
    #[arg(long, value_name = "TIME", value_parser = crate::values::time_or_zero)]
    pub(super) skip_idle: Option<Duration>,
    /// Order of statements
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    order: OrderArg,
    /// Treatment of late sessions: keep, skip-think, drop-late, drop-late>TIME or abort>TIME
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub(super) lag: LagPolicy,
    /// Let statements follow the previous one of their session after the captured time between
    /// them, times this factor, instead of at captured times
    #[arg(long, value_name = "FACTOR", value_parser = think_time)]
    pub(super) think_time: Option<f64>,
}

impl PaceArgs {
    pub(super) fn order(&self) -> StatementOrder {
        self.order.into()
    }

    fn ends_or_drops(&self) -> bool {
        matches!(self.lag, LagPolicy::DropLate(_) | LagPolicy::Abort(_))
    }

    /// Refuses options that contradict each other, or the number of targets.
    pub(super) fn check(&self, targets: usize) -> anyhow::Result<()> {
        let conflicts = [
            (
                self.order == OrderArg::Commit && targets > 1,
                "--order commit needs one target: the order of commits is that of one server",
            ),
            (
                self.think_time.is_some() && self.rate == Rate::Max,
                "--think-time cannot be used with --rate max, which does not wait",
            ),
            (
                self.lag != LagPolicy::default() && self.rate == Rate::Max,
                "--lag cannot be used with --rate max, at which nothing is late",
            ),
            (
                self.order == OrderArg::None && self.rate == Rate::Max,
                "--order none cannot be used with --rate max, at which everything is due at once",
            ),
            (
                self.lag == LagPolicy::Keep && self.think_time.is_some(),
                "--think-time already lets late sessions stay late: leave out --lag keep",
            ),
            (
                self.order == OrderArg::Commit && self.ends_or_drops(),
                "--order commit holds statements back, so that they are late: leave out --lag",
            ),
            (
                self.think_time.is_some() && self.ends_or_drops(),
                "--think-time has no schedule by which a statement is late: leave out --lag",
            ),
            (
                self.order == OrderArg::None && self.think_time.is_some(),
                "--order none cannot be used with --think-time, which waits for the previous statement",
            ),
        ];
        if let Some((_, problem)) = conflicts.iter().find(|(is_given, _)| *is_given) {
            return Err(errors::wrong_usage(*problem));
        }
        Ok(())
    }
}

/// Parses a factor on the times between statements.
fn think_time(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.0..=1_000.0).contains(&factor) => Ok(factor),
        _ => Err("write a number from 0 to 1000, such as 1 or 0.5".to_owned()),
    }
}

/// Order of statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum OrderArg {
    /// Even transactions of one session do not wait for each other
    None,
    /// Sessions do not wait for each other
    #[default]
    Session,
    /// A statement waits for the transactions that had committed before it
    Commit,
}

impl From<OrderArg> for StatementOrder {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::None => Self::None,
            OrderArg::Session => Self::Session,
            OrderArg::Commit => Self::Commit,
        }
    }
}
