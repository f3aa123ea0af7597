//! The schedule that the bare sender and the captures share: statements at random times.

use std::time::Duration;

/// Statements of a number of sessions, by turns, at a mean rate.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatementSchedule {
    /// Number of sessions
    #[arg(long, default_value_t = 40)]
    pub(crate) sessions: usize,
    /// Statements per second, of all sessions together
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Time for which statements are sent, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// Largest value of the statement's parameter.
const ACCOUNTS: u64 = 100_000;

/// An execution of the statement, and the time at which it must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledStatement {
    /// Due time, since the start.
    pub(crate) due: Duration,
    pub(crate) session: usize,
    /// Value of the statement's parameter.
    pub(crate) account: u64,
}

impl StatementSchedule {
    /// Returns the statements, in the order of their times, which have exponential gaps as those of
    /// many independent clients do. The same arguments give the same statements.
    pub(crate) fn statements(&self) -> impl Iterator<Item = ScheduledStatement> {
        let (rate, seconds, sessions) = (self.rate, self.seconds, self.sessions);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut at = 0.0;
        (0_usize..).map_while(move |number| {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            at -= (1.0 - uniform).ln() / rate;
            let micros = (at * 1e6) as u64;
            (at < seconds).then_some(ScheduledStatement {
                due: Duration::from_micros(micros),
                session: number % sessions,
                account: random % ACCOUNTS + 1,
            })
        })
    }
}
