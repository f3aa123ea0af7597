//! Sums of what sessions did or waited for, over the samples of a period: by statement, role,
//! database, application or client, or of one session.

use std::{collections::BTreeMap, sync::Arc};

use howdah_collect::{Activity, BackendActivity, BackendWait};

/// A property of sessions by which the waits screen distinguishes them, besides wait events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitDimension {
    /// Nothing else.
    #[default]
    Event,
    /// The statement without constants: by the server's identifier if it computes one, else by its
    /// text.
    Statement,
    /// The role.
    User,
    /// The connected database.
    Database,
    /// `application_name`.
    Application,
    /// The client's address.
    Client,
}

impl WaitDimension {
    /// Returns the dimension after this one; after the last, the first.
    #[must_use]
    pub fn next(self) -> Self {
        match self {
            Self::Event => Self::Statement,
            Self::Statement => Self::User,
            Self::User => Self::Database,
            Self::Database => Self::Application,
            Self::Application => Self::Client,
            Self::Client => Self::Event,
        }
    }

    /// Returns the name of the dimension, and of its column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Statement => "statement",
            Self::User => "user",
            Self::Database => "database",
            Self::Application => "application",
            Self::Client => "client",
        }
    }

    /// Returns the title of its column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Event => "Event",
            Self::Statement => "Statement",
            Self::User => "User",
            Self::Database => "Database",
            Self::Application => "Application",
            Self::Client => "Client",
        }
    }
}

/// Dimensions with sums of their own.
const DIMENSIONS: [WaitDimension; 5] = [
    WaitDimension::Statement,
    WaitDimension::User,
    WaitDimension::Database,
    WaitDimension::Application,
    WaitDimension::Client,
];

/// Maximum number of values of a dimension. Further values are summed up as one.
const VALUES_MAX: usize = 2000;

/// Value that stands for those beyond [`VALUES_MAX`].
const OTHERS: &str = "(others)";

/// Maximum length of a statement in characters.
const STATEMENT_CHARS_MAX: usize = 300;

/// Sums of the working sessions' waits over the samples of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitProfile {
    /// Number of samples.
    pub samples: u32,
    /// Sums by wait event, `None` meaning running, of each value of each of [`DIMENSIONS`].
    sums: [BTreeMap<Arc<str>, EventSums>; DIMENSIONS.len()],
    /// The text of each statement that has an identifier: that of its first sample.
    texts: BTreeMap<i64, Arc<str>>,
}

type EventSums = BTreeMap<Option<BackendWait>, u32>;

impl WaitProfile {
    /// Adds a sample.
    pub fn add(&mut self, activity: &Activity) {
        self.samples = self.samples.saturating_add(1);
        for backend in activity.backends.iter().filter(|backend| backend.is_working()) {
            for (at, dimension) in DIMENSIONS.into_iter().enumerate() {
                let value = self.value(backend, dimension);
                let sums = &mut self.sums[at];
                let is_full = sums.len() >= VALUES_MAX && !sums.contains_key(&value);
                let value = if is_full { OTHERS.into() } else { value };
                let sum = sums.entry(value).or_default().entry(backend.wait.clone()).or_default();
                *sum = sum.saturating_add(1);
            }
        }
    }

    fn value(&mut self, backend: &BackendActivity, dimension: WaitDimension) -> Arc<str> {
        let name = match dimension {
            WaitDimension::Event => None,
            WaitDimension::Statement => return self.statement(backend),
            WaitDimension::User => backend.user.clone(),
            WaitDimension::Database => backend.database.clone(),
            WaitDimension::Application => backend.application.clone(),
            WaitDimension::Client => match (&backend.client, backend.client_port) {
                (None, Some(-1)) => Some("local".into()),
                (client, _) => client.clone(),
            },
        };
        name.unwrap_or_else(|| "-".into())
    }

    fn statement(&mut self, backend: &BackendActivity) -> Arc<str> {
        let text = || -> Arc<str> {
            let Some(query) = &backend.query else { return "-".into() };
            let text = howdah_sql::normalize(query.as_str().as_bytes());
            let end =
                text.char_indices().nth(STATEMENT_CHARS_MAX).map_or(text.len(), |(end, _)| end);
            howdah_collect::sanitized_line(&text[..end]).into()
        };
        match backend.query_id {
            Some(id) if self.texts.len() < VALUES_MAX || self.texts.contains_key(&id) => {
                Arc::clone(self.texts.entry(id).or_insert_with(text))
            }
            Some(_) => OTHERS.into(),
            None => text(),
        }
    }

    /// Returns the sums of a dimension: each value, wait event and number of sessions.
    pub fn counts(
        &self,
        dimension: WaitDimension,
    ) -> impl Iterator<Item = (&str, Option<&BackendWait>, u32)> {
        let at = DIMENSIONS.iter().position(|known| *known == dimension);
        let values = at.into_iter().flat_map(|at| &self.sums[at]);
        values.flat_map(|(value, sums)| {
            sums.iter().map(move |(wait, sum)| (&**value, wait.as_ref(), *sum))
        })
    }
}

/// Sums of the states and waits of one session over the samples of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionProfile {
    /// Number of samples that have the session.
    pub samples: u32,
    /// Numbers of samples by what the session did: `running`, a wait event, or an idle state.
    sums: BTreeMap<Arc<str>, u32>,
}

impl SessionProfile {
    /// Adds a sample, if it has the session with this process id and start time.
    pub fn add(&mut self, activity: &Activity, key: (i32, i64)) {
        let found = activity.backends.iter().find(|backend| backend.key() == key);
        let Some(backend) = found else { return };
        let label: Arc<str> = match (&backend.wait, backend.state) {
            (_, Some(state)) if !backend.is_working() => state.as_str().into(),
            (Some(wait), _) => wait.to_string().into(),
            (None, _) if backend.is_working() => "running".into(),
            (None, _) => "unknown".into(),
        };
        self.samples = self.samples.saturating_add(1);
        let sum = self.sums.entry(label).or_default();
        *sum = sum.saturating_add(1);
    }

    /// Returns what the session did, the most frequent first, with its share in percent.
    pub fn shares(&self) -> Vec<(&str, f64)> {
        let share = |sum: u32| f64::from(sum) * 100.0 / f64::from(self.samples.max(1));
        let mut shares: Vec<_> =
            self.sums.iter().map(|(label, sum)| (&**label, share(*sum))).collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }
}

#[cfg(test)]
mod tests {
    use howdah_collect::{BackendState, SqlText};

    use super::*;

    fn backend(pid: i32, query_id: Option<i64>, query: &str, event: &str) -> BackendActivity {
        BackendActivity {
            pid,
            state: Some(BackendState::Active),
            user: Some("app".into()),
            client_port: Some(-1),
            query_id,
            query: Some(SqlText::new(query.as_bytes(), None, None)),
            wait: (!event.is_empty())
                .then(|| BackendWait { class: "IO".into(), event: event.into() }),
            ..BackendActivity::default()
        }
    }

    fn activity(backends: Vec<BackendActivity>) -> Activity {
        Activity { taken_us: 0, backends }
    }

    #[test]
    fn waits_are_summed_by_each_dimension() {
        let mut profile = WaitProfile::default();
        profile.add(&activity(vec![
            backend(1, Some(7), "select 1", ""),
            backend(2, Some(7), "select 2", "DataFileRead"),
            backend(3, None, "commit", ""),
            BackendActivity {
                state: Some(BackendState::Idle),
                ..backend(4, Some(7), "select 1", "x")
            },
        ]));
        profile.add(&activity(vec![backend(1, Some(7), "select 3", "")]));
        assert_eq!(profile.samples, 2);
        let of = |dimension| -> Vec<_> {
            let counts = profile.counts(dimension);
            counts
                .map(|(value, wait, sum)| {
                    (value.to_owned(), wait.map(|wait| wait.event.to_string()), sum)
                })
                .collect()
        };
        let read = Some("DataFileRead".to_owned());
        assert_eq!(
            of(WaitDimension::Statement),
            [
                ("commit".to_owned(), None, 1),
                // One statement, although its constants differ.
                ("select ?".to_owned(), None, 2),
                ("select ?".to_owned(), read.clone(), 1)
            ]
        );
        assert_eq!(
            of(WaitDimension::User),
            [("app".to_owned(), None, 3), ("app".to_owned(), read.clone(), 1)]
        );
        assert_eq!(
            of(WaitDimension::Client),
            [("local".to_owned(), None, 3), ("local".to_owned(), read, 1)]
        );
        assert_eq!(of(WaitDimension::Application)[0].0, "-");
        assert_eq!(of(WaitDimension::Event), []);
    }

    #[test]
    fn values_are_limited() {
        let mut profile = WaitProfile::default();
        for pid in 0..3000 {
            profile.add(&activity(vec![backend(pid, None, &format!("select c{pid}"), "")]));
        }
        let values: Vec<_> =
            profile.counts(WaitDimension::Statement).map(|(value, ..)| value).collect();
        assert_eq!(values.len(), VALUES_MAX + 1);
        assert!(values.contains(&OTHERS));
    }

    #[test]
    fn session_profile_counts_states_and_waits() {
        let mut profile = SessionProfile::default();
        let idle = BackendActivity {
            state: Some(BackendState::IdleInTransaction),
            ..backend(1, None, "", "ClientRead")
        };
        for backend in
            [backend(1, None, "", ""), backend(1, None, "", "WALSync"), idle.clone(), idle]
        {
            profile.add(&activity(vec![backend]), (1, 0));
        }
        profile.add(&activity(vec![backend(1, None, "", "")]), (1, 5));
        assert_eq!(profile.samples, 4);
        assert_eq!(
            profile.shares(),
            [("idle in transaction", 50.0), ("IO:WALSync", 25.0), ("running", 25.0)]
        );
    }
}
