//! [`Filter`]: what a person wants of a capture.

use howdah_traffic::{Event, Timestamp};

/// Which events to keep. The default keeps all.
///
/// Names are compared as they are, byte for byte. An empty list of names means any name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Nothing before this.
    pub from: Option<Timestamp>,
    /// Nothing at this time or after it.
    pub until: Option<Timestamp>,
    /// Roles that sessions logged in as.
    pub users: Vec<String>,
    /// Databases that sessions are connected to.
    pub databases: Vec<String>,
    /// Sessions, by their names in the capture.
    pub sessions: Vec<String>,
    /// `application_name`s.
    pub applications: Vec<String>,
    /// Only what PostgreSQL's grammar can tell to change nothing.
    #[cfg(feature = "grammar")]
    pub read_only: bool,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $text:literal;)*) => {
        /// Why an event was left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// Every reason, in the order in which they are looked at.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// A phrase for people, to stand before a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Before [`Filter::from`].
    Before, "before the time asked for";
    /// At or after [`Filter::until`].
    After, "after the time asked for";
    /// Of another session.
    Session, "of other sessions";
    /// Of another role, or of one that is not known.
    User, "of other users";
    /// Of another database, or of one that is not known.
    Database, "of other databases";
    /// Of another application, or of one that is not known.
    Application, "of other applications";
    /// Of a session that is not in the sample.
    Sample, "of sessions not in the sample";
    /// It changes something.
    Writes, "not read-only: change data, schema or server";
    /// It takes locks that others notice.
    Locks, "not read-only: take locks";
    /// It may make read-only transactions read-write.
    AllowsWrites, "not read-only: let transactions write, such as BEGIN READ WRITE";
    /// It calls a function that may do anything.
    UnknownFunction, "not known to be read-only: call functions that are not PostgreSQL's own";
    /// It uses a name whose making is not in the log, or was left out.
    UnknownName, "not known to be read-only: use a statement or cursor whose making was left out";
    /// The grammar does not accept it.
    Unreadable, "not known to be read-only: PostgreSQL's grammar does not accept them";
}

impl Filter {
    /// Whether it keeps everything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Why the event is not wanted, by its time and names.
    pub(crate) fn refuses(&self, event: &Event) -> Option<Reason> {
        let unwanted = |names: &[String], name: &str| {
            !names.is_empty() && !names.iter().any(|wanted| wanted == name)
        };
        if self.from.is_some_and(|from| event.time < from) {
            Some(Reason::Before)
        } else if self.until.is_some_and(|until| event.time >= until) {
            Some(Reason::After)
        } else if unwanted(&self.sessions, &event.session) {
            Some(Reason::Session)
        } else if unwanted(&self.users, &event.user) {
            Some(Reason::User)
        } else if unwanted(&self.databases, &event.database) {
            Some(Reason::Database)
        } else if unwanted(&self.applications, &event.application) {
            Some(Reason::Application)
        } else {
            None
        }
    }
}
