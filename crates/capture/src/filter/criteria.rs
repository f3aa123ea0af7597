//! [`Filter`]: the criteria for events to keep.

use howdah_traffic::{Event, Timestamp};

/// Criteria for events to keep. The default keeps all events.
///
/// Names are compared byte for byte. An empty list of names matches any name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Events before this time are excluded.
    pub from: Option<Timestamp>,
    /// Events at or after this time are excluded.
    pub until: Option<Timestamp>,
    /// Names of the roles whose sessions are kept.
    pub users: Vec<String>,
    /// Names of the databases whose sessions are kept.
    pub databases: Vec<String>,
    /// Names of the sessions that are kept.
    pub sessions: Vec<String>,
    /// Values of `application_name` with which events are kept.
    pub applications: Vec<String>,
    /// Whether to keep only statements that PostgreSQL's grammar shows to be read-only. Builds
    /// without the feature `grammar` keep no event then.
    pub read_only: bool,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $text:literal;)*) => {
        /// The reason why an event was excluded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ExclusionReason { $($(#[$doc])* $variant,)* }

        impl ExclusionReason {
            /// All reasons, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns a phrase for people that follows a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// The event is before [`Filter::from`].
    Before, "before the requested time";
    /// The event is at or after [`Filter::until`].
    After, "after the requested time";
    /// The session is not one of the requested sessions.
    Session, "of other sessions";
    /// The session's role is not one of the requested roles, or is unknown.
    User, "of other users";
    /// The session's database is not one of the requested databases, or is unknown.
    Database, "of other databases";
    /// The session's application is not one of the requested applications, or is unknown.
    Application, "of other applications";
    /// The session is not in the sample.
    Sample, "of sessions not in the sample";
    /// The statement changes, or may change, data, the schema or the server's state, or notifies
    /// other sessions.
    Writes, "not read-only: change data, schema or server";
    /// The statement takes locks that can block other sessions.
    Locks, "not read-only: take locks";
    /// The statement may turn read-only transactions into read-write ones.
    AllowsWrites, "not read-only: let transactions write, such as BEGIN READ WRITE";
    /// The statement calls a function that is not known to be free of side effects.
    UnknownFunction, "not known to be read-only: call functions that may have side effects";
    /// The statement uses a prepared statement or a cursor that is not known to be read-only, for
    /// example because its creation is missing from the capture.
    UnknownName, "not known to be read-only: use a statement or cursor whose creation was excluded";
    /// The grammar does not accept the statement, the statement is nested too deeply, or the build
    /// has no grammar.
    Unreadable, "not known to be read-only: PostgreSQL's grammar does not accept them";
}

impl Filter {
    /// Whether all events match.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the reason to exclude an event because of its time or names, if there is one.
    pub(crate) fn exclusion_reason(&self, event: &Event) -> Option<ExclusionReason> {
        let is_excluded = |names: &[String], name: &str| {
            !names.is_empty() && !names.iter().any(|wanted| wanted == name)
        };
        if self.from.is_some_and(|from| event.time < from) {
            Some(ExclusionReason::Before)
        } else if self.until.is_some_and(|until| event.time >= until) {
            Some(ExclusionReason::After)
        } else if is_excluded(&self.sessions, &event.session) {
            Some(ExclusionReason::Session)
        } else if is_excluded(&self.users, &event.user) {
            Some(ExclusionReason::User)
        } else if is_excluded(&self.databases, &event.database) {
            Some(ExclusionReason::Database)
        } else if is_excluded(&self.applications, &event.application) {
            Some(ExclusionReason::Application)
        } else {
            None
        }
    }
}
