//! Decodes a backend's four bytes of wait information, by major version.
//!
//! ```text
//! byte  3       2    1 0
//!       class   0    event: an id within the class, or a lightweight lock's tranche id
//! ```
//!
//! Source: `PG_WAIT_*` in `wait_event.h` (`wait_classes.h` from 17 on), `pgstat_get_wait_event()`.
//! Zero means no wait. An id missing from a table is reported as unknown: a later minor release may
//! have appended it.

mod events;
mod lwlocks;

use std::fmt;

use howdah_inspect::{MAJORS, RunningServer};

use super::tranches;

/// The names of the wait events of a major version.
#[derive(Clone, Debug)]
pub struct WaitEventNames {
    /// Names by the class's index in [`TABLES`], then by id.
    names: [Vec<Option<&'static str>>; TABLES.len()],
    first_user_defined: u16,
    has_custom_events: bool,
}

/// The wait event of a backend, or no wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitEvent {
    raw: u32,
    name: EventName,
}

/// A class of wait events: `pg_stat_activity.wait_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// No wait is reported: on CPU, or in a wait that the server does not report.
    NoWait,
    /// A lightweight lock.
    LwLock,
    /// A heavyweight lock.
    Lock,
    /// Exclusive access to a buffer, for which all other pins must be released.
    BufferPin,
    /// The main loop of one of the server's own processes.
    Activity,
    /// The client, or another peer of a connection.
    Client,
    /// A wait of an extension.
    Extension,
    /// Another process of the server.
    Ipc,
    /// A wait for a time to elapse, such as `pg_sleep`.
    Timeout,
    /// File I/O.
    Io,
    /// An injection point, used by tests (17 and later).
    InjectionPoint,
    /// Not a known class or event.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum EventName {
    Known(&'static str),
    /// A lightweight lock of an extension, whose name is not known.
    Tranche(u16),
    /// An event of an extension or an injection point, registered at run time.
    Custom(u16),
    Missing,
}

impl WaitEventNames {
    /// Returns the names of a major version, if it is one of [`howdah_inspect::MAJORS`].
    pub fn for_major(major: u32) -> Option<Self> {
        if !MAJORS.contains(&major) {
            return None;
        }
        let column = (major - MAJORS.start()) as usize;
        Some(Self {
            names: TABLES.map(|(_, rows)| by_id(rows, column)),
            first_user_defined: lwlocks::FIRST_USER_DEFINED[column],
            has_custom_events: major >= 17,
        })
    }

    /// Returns the names of a running server, including the lock tranches that extensions requested
    /// by name at server start.
    ///
    /// `None` if the major version is not supported.
    pub fn for_server(server: &RunningServer) -> Option<Self> {
        let mut names = Self::for_major(server.major())?;
        let registered = tranches::extension_tranches(server, names.first_user_defined);
        let locks = &mut names.names[LWLOCKS];
        locks.resize(usize::from(names.first_user_defined), None);
        locks.extend(registered.into_iter().map(Some));
        Some(names)
    }

    /// Decodes `raw`. Every value yields an event; unknown ones are marked as such.
    pub fn decode(&self, raw: u32) -> WaitEvent {
        let [class, unused, high, low] = raw.to_be_bytes();
        let id = u16::from_be_bytes([high, low]);
        let name = match Class::from_byte(class) {
            _ if unused != 0 => EventName::Missing,
            Class::LwLock if id >= self.first_user_defined => {
                self.lookup_id(Class::LwLock, id).map_or(EventName::Tranche(id), EventName::Known)
            }
            Class::Extension if id > 0 && self.has_custom_events => EventName::Custom(id),
            Class::InjectionPoint if self.has_custom_events => EventName::Custom(id),
            class => self.lookup_id(class, id).map_or(EventName::Missing, EventName::Known),
        };
        WaitEvent { raw, name }
    }

    /// Returns the event with these names, as in `wait_event_type` and `wait_event` of
    /// `pg_stat_activity`. An event of a known class that is missing from the tables keeps the name
    /// given by the server.
    pub fn lookup(&self, class: &str, event: &str) -> WaitEvent {
        let unknown = WaitEvent { raw: u32::MAX, name: EventName::Missing };
        let Some(class) = Class::WITH_EVENTS.into_iter().find(|found| found.name() == class) else {
            return unknown;
        };
        let table = TABLES.iter().position(|&(found, _)| found == class);
        let ids = table.map_or(&[][..], |table| &self.names[table]);
        let id = ids.iter().position(|name| *name == Some(event));
        let known = id.and_then(|id| Some((u16::try_from(id).ok()?, ids[id]?)));
        match known.or_else(|| Some((u16::MAX, tranches::intern(event)?))) {
            Some((id, name)) => WaitEvent {
                raw: u32::from(class.byte()) << 24 | u32::from(id),
                name: EventName::Known(name),
            },
            None => unknown,
        }
    }

    /// Returns all events that have names, with their classes.
    pub fn iter(&self) -> impl Iterator<Item = (Class, &'static str)> {
        let classes = TABLES.iter().zip(&self.names);
        classes.flat_map(|((class, _), names)| names.iter().flatten().map(|&name| (*class, name)))
    }

    fn lookup_id(&self, class: Class, id: u16) -> Option<&'static str> {
        let table = TABLES.iter().position(|&(found, _)| found == class)?;
        self.names[table].get(usize::from(id)).copied().flatten()
    }
}

impl WaitEvent {
    /// Returns the four bytes of wait information, as read from the backend. Events from
    /// [`WaitEventNames::lookup`] that are not in the tables have a placeholder.
    pub fn raw(self) -> u32 {
        self.raw
    }

    /// Returns the class of the event; [`Class::Unknown`] also if the class is known but not the
    /// event.
    pub fn class(self) -> Class {
        match (self.raw, self.name) {
            (0, _) => Class::NoWait,
            (_, EventName::Missing) => Class::Unknown,
            (raw, _) => Class::from_byte(raw.to_be_bytes()[0]),
        }
    }

    /// Returns the event's name, as in `pg_stat_activity.wait_event`; `tranche` or `custom` and a
    /// number for events named at run time; the four bytes for unknown events; empty for no wait.
    pub fn name(self) -> String {
        match (self.raw, self.name) {
            (0, _) => String::new(),
            (_, EventName::Known(name)) => name.to_owned(),
            (_, EventName::Tranche(number)) => format!("tranche {number}"),
            (_, EventName::Custom(number)) => format!("custom {number}"),
            (raw, EventName::Missing) => format!("{raw:#010x}"),
        }
    }
}

/// Formats as `Class:event`, as `CPU*` for no wait, or as `unknown` and the four bytes.
impl fmt::Display for WaitEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class() {
            Class::NoWait => f.write_str(Class::NoWait.name()),
            Class::Unknown => write!(f, "unknown {:#010x}", self.raw),
            class => write!(f, "{}:{}", class.name(), self.name()),
        }
    }
}

impl Class {
    /// Returns the name in `pg_stat_activity`. No wait is `CPU*`: the star stands for waits that
    /// the server does not report, such as a page fault.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoWait => "CPU*",
            Self::LwLock => "LWLock",
            Self::Lock => "Lock",
            Self::BufferPin => "BufferPin",
            Self::Activity => "Activity",
            Self::Client => "Client",
            Self::Extension => "Extension",
            Self::Ipc => "IPC",
            Self::Timeout => "Timeout",
            Self::Io => "IO",
            Self::InjectionPoint => "InjectionPoint",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a process in such a wait is idle: waiting for its client, or in its main loop for
    /// work.
    ///
    /// All of `Client` counts as idle, even a client that is slow to read its rows, because the
    /// server does nothing meanwhile.
    pub fn is_idle(self) -> bool {
        matches!(self, Self::Activity | Self::Client)
    }

    /// The classes that have events.
    const WITH_EVENTS: [Self; 10] = [
        Self::LwLock,
        Self::Lock,
        Self::BufferPin,
        Self::Activity,
        Self::Client,
        Self::Extension,
        Self::Ipc,
        Self::Timeout,
        Self::Io,
        Self::InjectionPoint,
    ];

    fn byte(self) -> u8 {
        match self {
            Self::NoWait => 0x00,
            Self::LwLock => 0x01,
            Self::Lock => 0x03,
            Self::BufferPin => 0x04,
            Self::Activity => 0x05,
            Self::Client => 0x06,
            Self::Extension => 0x07,
            Self::Ipc => 0x08,
            Self::Timeout => 0x09,
            Self::Io => 0x0a,
            Self::InjectionPoint => 0x0b,
            Self::Unknown => 0xff,
        }
    }

    fn from_byte(byte: u8) -> Self {
        Self::WITH_EVENTS.into_iter().find(|class| class.byte() == byte).unwrap_or(Self::Unknown)
    }
}

/// An event's name, and its id in each major version, starting with the first of [`MAJORS`];
/// [`ABSENT`] if it does not exist there.
type EventRow = (&'static str, [u8; 5]);

const ABSENT: u8 = u8::MAX;

/// Index of lightweight locks in [`TABLES`].
const LWLOCKS: usize = 0;

const TABLES: [(Class, &[EventRow]); 9] = [
    (Class::LwLock, lwlocks::LWLOCK),
    (Class::Lock, events::LOCK),
    (Class::BufferPin, events::BUFFER_PIN),
    (Class::Activity, events::ACTIVITY),
    (Class::Client, events::CLIENT),
    (Class::Extension, events::EXTENSION),
    (Class::Ipc, events::IPC),
    (Class::Timeout, events::TIMEOUT),
    (Class::Io, events::IO),
];

fn by_id(rows: &[EventRow], column: usize) -> Vec<Option<&'static str>> {
    let mut names = Vec::new();
    for (name, ids) in rows {
        let id = ids[column];
        if id == ABSENT {
            continue;
        }
        let id = usize::from(id);
        names.resize(names.len().max(id + 1), None);
        names[id] = Some(*name);
    }
    names
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn names(major: u32) -> WaitEventNames {
        WaitEventNames::for_major(major).expect("supported major version")
    }

    #[test]
    fn ids_are_decoded_per_major() {
        let spelled = |major, raw| names(major).decode(raw).to_string();
        assert_eq!(spelled(15, 0x0600_0000), "Client:ClientRead");
        assert_eq!(spelled(14, 0x0900_0001), "Timeout:PgSleep");
        assert_eq!(spelled(15, 0x0900_0002), "Timeout:PgSleep");
        assert_eq!(spelled(18, 0x0a00_0015), "IO:DataFileRead");
        assert_eq!(spelled(16, 0x0300_000b), "Lock:applytransaction");
        assert_eq!(spelled(15, 0x0100_0007), "LWLock:WALBufMapping");
        assert_eq!(spelled(17, 0), "CPU*");
    }

    #[test]
    fn names_and_numbers_identify_the_same_events() {
        for major in MAJORS {
            let names = names(major);
            for (class, event) in names.iter() {
                let named = names.lookup(class.name(), event);
                assert_eq!((named.class(), &*named.name()), (class, event), "{major}");
                assert_eq!(names.decode(named.raw()), named, "{major}");
            }
            let own = names.lookup("LWLock", "pg_stat_statements");
            assert_eq!(own.to_string(), "LWLock:pg_stat_statements");
            assert_eq!(names.lookup("Dreaming", "of").class(), Class::Unknown);
        }
    }

    #[test]
    fn events_named_at_run_time_are_displayed_by_number() {
        assert_eq!(names(15).decode(0x0100_004b).to_string(), "LWLock:tranche 75");
        assert_eq!(names(17).decode(0x0700_0003).to_string(), "Extension:custom 3");
        assert_eq!(names(17).decode(0x0b00_0000).to_string(), "InjectionPoint:custom 0");
    }

    #[test]
    fn unknown_values_decode_as_unknown() {
        for raw in [0x0300_000b, 0x0100_000a, 0x0700_0003, 0x0b00_0000, 0x0501_0000, 0xff00_0000] {
            let event = names(15).decode(raw);
            assert_eq!(event.class(), Class::Unknown);
            assert_eq!(event.to_string(), format!("unknown {raw:#010x}"));
        }
        assert!(WaitEventNames::for_major(13).is_none() && WaitEventNames::for_major(19).is_none());
    }

    #[test]
    fn names_and_ids_are_unique_in_every_major() {
        for (class, rows) in TABLES {
            let different: HashSet<_> = rows.iter().map(|(name, _)| name).collect();
            assert_eq!(different.len(), rows.len(), "{class:?}");
            for column in 0..5 {
                let ids: Vec<_> =
                    rows.iter().map(|row| row.1[column]).filter(|&id| id != ABSENT).collect();
                assert_eq!(
                    ids.iter().collect::<HashSet<_>>().len(),
                    ids.len(),
                    "{class:?} {column}"
                );
                // Only removed locks leave a gap.
                let end = ids.iter().max().map_or(0, |&id| usize::from(id) + 1);
                assert!(class == Class::LwLock || end == ids.len(), "{class:?} {column}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_raw_value_decodes(major in MAJORS, raw: u32, class in 0_u32..16, id in 0_u32..300) {
            let names = names(major);
            for raw in [raw, class << 24 | id] {
                let event = names.decode(raw);
                prop_assert_eq!(event.raw(), raw);
                prop_assert!(!event.to_string().is_empty());
                match event.class() {
                    Class::Unknown => prop_assert_eq!(event.to_string(), format!("unknown {raw:#010x}")),
                    Class::NoWait => prop_assert_eq!(raw, 0),
                    class => prop_assert_eq!(Class::from_byte((raw >> 24) as u8), class),
                }
            }
        }
    }
}
