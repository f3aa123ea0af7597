//! A hash over everything an event says.
//!
//! It tells whether two ways of reading the same traffic agree in every field. It is no identity: equal
//! events are not told apart, and it may differ between versions of this crate.

use xxhash_rust::xxh3::xxh3_64;

use crate::{Action, Bound, CopyDirection, Event, Parameter, Text};

impl Event {
    /// A hash over all fields, without allocating.
    ///
    /// The wrapping sum over many events does not depend on their order, so parts of a capture can be
    /// hashed apart and added up.
    ///
    /// ```
    /// # use howdah_traffic::{Action, Event, Outcome, Source, Timestamp};
    /// # let event = |micros| Event {
    /// #     time: Timestamp::from_micros(micros), session: "a.1".into(), user: "al".into(),
    /// #     database: "shop".into(), application: "".into(), action: Action::Connect,
    /// #     outcome: Outcome::default(), source: Source::Session, vxid: None, query_id: None,
    /// # };
    /// let sum = |events: &[Event]| events.iter().fold(0, |sum: u64, event| sum.wrapping_add(event.digest()));
    /// let (first, second) = (event(1), event(2));
    /// assert_ne!(first.digest(), second.digest());
    /// assert_eq!(sum(&[first.clone(), second.clone()]), sum(&[second, first]));
    /// ```
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0);
        digest.number(self.time.as_micros().cast_unsigned());
        for name in [&self.session, &self.user, &self.database, &self.application] {
            digest.bytes(name.as_bytes());
        }
        digest.number(u64::from(self.action.kind() as u8) << 8 | u64::from(self.source as u8));
        digest.action(&self.action);
        digest.optional(self.outcome.duration_us);
        digest.optional_bytes(self.outcome.sqlstate.as_ref().map(|code| code.as_str().as_bytes()));
        digest.optional_bytes(self.outcome.error.as_ref().map(Text::as_bytes));
        digest.optional_bytes(self.vxid.as_ref().map(|vxid| vxid.as_bytes()));
        digest.optional(self.query_id.map(i64::cast_unsigned));
        digest.finish()
    }
}

/// Folds fields, in a fixed order, into 64 bits. Every field adds at least one step, so that a value
/// cannot move from one field to the next unseen.
struct Digest(u64);

impl Digest {
    fn action(&mut self, action: &Action) {
        match action {
            Action::Connect | Action::Disconnect | Action::Cancel => {}
            Action::Simple { sql } => self.bytes(sql.as_bytes()),
            Action::Copy { sql, direction } => {
                self.bytes(sql.as_bytes());
                self.number(match direction {
                    CopyDirection::In => 0,
                    CopyDirection::Out => 1,
                });
            }
            Action::Parse { statement, sql } => {
                self.bytes(statement.as_bytes());
                self.bytes(sql.as_bytes());
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.bound(bound);
            }
            Action::Call { function } => self.bytes(function.as_bytes()),
        }
    }

    fn bound(&mut self, bound: &Bound) {
        for text in [&bound.statement, &bound.portal, &bound.sql] {
            self.bytes(text.as_bytes());
        }
        let Some(parameters) = &bound.parameters else { return self.number(u64::MAX) };
        self.number(parameters.len() as u64);
        for parameter in parameters {
            match parameter {
                Parameter::Null => self.number(0),
                Parameter::Value(text) => {
                    self.number(1);
                    self.bytes(text.as_bytes());
                }
                Parameter::Truncated(text) => {
                    self.number(2);
                    self.bytes(text.as_bytes());
                }
            }
        }
    }

    fn optional(&mut self, number: Option<u64>) {
        match number {
            None => self.number(0),
            Some(number) => {
                self.number(1);
                self.number(number);
            }
        }
    }

    fn optional_bytes(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            None => self.number(0),
            Some(bytes) => {
                self.number(1);
                self.bytes(bytes);
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(xxh3_64(bytes));
    }

    /// One step: the high half of a product reaches all bits of the state with all bits of the number.
    fn number(&mut self, number: u64) {
        let product =
            u128::from(self.0 ^ number ^ FIRST) * u128::from(self.0.rotate_left(32) ^ SECOND);
        self.0 = fold(product).wrapping_add(number);
    }

    fn finish(self) -> u64 {
        fold(u128::from(self.0 ^ SECOND) * u128::from(FIRST))
    }
}

fn fold(product: u128) -> u64 {
    let low = product as u64;
    low ^ (product >> 64) as u64
}

/// Odd numbers without a pattern: of splitmix64.
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xbf58_476d_1ce4_e5b9;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Outcome, Source, SqlState, Timestamp};

    fn event() -> Event {
        let bound = Bound {
            statement: "S_1".into(),
            portal: "".into(),
            sql: "select $1, $2".into(),
            parameters: Some(vec![Parameter::Value("1".into()), Parameter::Null]),
        };
        Event {
            time: Timestamp::from_micros(1),
            session: "a.1".into(),
            user: "al".into(),
            database: "shop".into(),
            application: "web".into(),
            action: Action::Execute(bound),
            outcome: Outcome::default(),
            source: Source::Statement,
            vxid: None,
            query_id: None,
        }
    }

    fn bound(change: impl FnOnce(&mut Bound)) -> Event {
        let mut event = event();
        if let Action::Execute(bound) = &mut event.action {
            change(bound);
        }
        event
    }

    #[test]
    fn every_field_counts() {
        let changed = |change: &dyn Fn(&mut Event)| {
            let mut event = event();
            change(&mut event);
            event
        };
        let events = [
            event(),
            changed(&|e| e.time = Timestamp::from_micros(2)),
            changed(&|e| e.session = "a.2".into()),
            changed(&|e| e.user = "".into()),
            changed(&|e| (e.user, e.database) = (e.database.clone(), e.user.clone())),
            changed(&|e| e.database = "".into()),
            changed(&|e| e.application = "".into()),
            changed(&|e| e.action = Action::Connect),
            changed(&|e| e.action = Action::Disconnect),
            changed(&|e| e.action = Action::Copy { sql: "x".into(), direction: CopyDirection::In }),
            changed(&|e| {
                e.action = Action::Copy { sql: "x".into(), direction: CopyDirection::Out }
            }),
            changed(&|e| e.action = Action::Simple { sql: "x".into() }),
            changed(&|e| e.action = Action::Call { function: "x".into() }),
            changed(&|e| e.outcome.duration_us = Some(0)),
            changed(&|e| e.outcome.duration_us = Some(1)),
            changed(&|e| e.outcome.sqlstate = Some(SqlState::SUCCESS)),
            changed(&|e| e.outcome.error = Some("".into())),
            changed(&|e| e.outcome.error = Some("x".into())),
            changed(&|e| e.source = Source::Error),
            changed(&|e| e.vxid = Some("3/4".into())),
            changed(&|e| e.query_id = Some(0)),
            changed(&|e| e.query_id = Some(-1)),
            bound(|b| b.statement = "".into()),
            bound(|b| b.portal = "S_1".into()),
            bound(|b| b.sql = "".into()),
            bound(|b| b.parameters = None),
            bound(|b| b.parameters = Some(vec![])),
            bound(|b| b.parameters = Some(vec![Parameter::Null, Parameter::Value("1".into())])),
            bound(|b| b.parameters = Some(vec![Parameter::Truncated("1".into()), Parameter::Null])),
        ];
        let digests: HashSet<_> = events.iter().map(Event::digest).collect();
        assert_eq!(digests.len(), events.len());
    }
}
