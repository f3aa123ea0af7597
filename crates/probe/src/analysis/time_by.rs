//! Database time by statement, user, database, application and client, from the sessions sampled
//! over SQL once a second: each working session stands for the time since the previous sample.

use std::collections::{BTreeMap, HashMap};

use super::{culprits::seconds_of, window::RecordingWindow};

/// A property by which database time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeDimension {
    /// The statement, without literals.
    Statement,
    /// The role.
    User,
    /// The name of the session's database.
    Database,
    /// The application's name.
    Application,
    /// The client's address.
    Client,
}

/// The time of the sessions that have one value of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeShare {
    /// The value; `None` if it is unknown, for instance because the role may not see it.
    pub name: Option<String>,
    /// Session seconds.
    pub seconds: f64,
    /// Share of the time of all sessions, 0 to 1.
    pub share: f64,
    /// The wait event with the most of this time, `CPU*` for no wait.
    pub main_event: String,
}

/// Maximum number of values per dimension; the rest is omitted.
pub const TIME_SHARES_MAX: usize = 10;

impl TimeDimension {
    /// All dimensions.
    pub const ALL: [Self; 5] =
        [Self::Statement, Self::User, Self::Database, Self::Application, Self::Client];

    /// Returns the dimension's name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Statement => "statement",
            Self::User => "user",
            Self::Database => "database",
            Self::Application => "application",
            Self::Client => "client",
        }
    }
}

/// Returns, for each dimension, the values with the most time; all empty if no session was sampled.
pub fn database_time_by(window: &RecordingWindow) -> BTreeMap<TimeDimension, Vec<TimeShare>> {
    let mut sums: BTreeMap<TimeDimension, HashMap<&str, HashMap<&str, f64>>> = BTreeMap::new();
    let mut total_s = 0.0;
    for sessions in &window.sessions {
        for row in sessions.rows.iter().filter(|row| row.is_working(sessions)) {
            let time_s = seconds_of(sessions);
            total_s += time_s;
            let event = match sessions.name(row.wait) {
                "" => "CPU*",
                wait => wait,
            };
            for dimension in TimeDimension::ALL {
                let value = match dimension {
                    TimeDimension::Statement => window.statement(row.statement).unwrap_or_default(),
                    TimeDimension::User => sessions.name(row.user),
                    TimeDimension::Database => sessions.name(row.database),
                    TimeDimension::Application => sessions.name(row.application),
                    TimeDimension::Client => sessions.name(row.client),
                };
                let values = sums.entry(dimension).or_default();
                *values.entry(value).or_default().entry(event).or_default() += time_s;
            }
        }
    }
    let share = |(name, events): (&str, HashMap<&str, f64>)| {
        let seconds: f64 = events.values().sum();
        let main = events
            .iter()
            .max_by(|one, other| one.1.total_cmp(other.1).then_with(|| other.0.cmp(one.0)));
        TimeShare {
            name: Some(name.to_owned()).filter(|name| !name.is_empty()),
            seconds,
            share: seconds / f64::max(total_s, 1e-9),
            main_event: main.map_or("", |(event, _)| *event).to_owned(),
        }
    };
    TimeDimension::ALL
        .into_iter()
        .map(|dimension| {
            let values = sums.remove(&dimension).unwrap_or_default();
            let mut shares: Vec<_> = values.into_iter().map(share).collect();
            shares.sort_by(|one, other| {
                other.seconds.total_cmp(&one.seconds).then_with(|| one.name.cmp(&other.name))
            });
            shares.truncate(TIME_SHARES_MAX);
            (dimension, shares)
        })
        .collect()
}
