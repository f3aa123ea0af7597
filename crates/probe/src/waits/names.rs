//! What a backend's four bytes of wait information mean, by major version.
//!
//! ```text
//! byte  3       2    1 0
//!       class   0    event: an id within the class, or the number of a lightweight lock
//! ```
//!
//! Source: `PG_WAIT_*` in `wait_event.h` (`wait_classes.h` from 17 on), `pgstat_get_wait_event()`. All zero
//! is no wait. An id that a table lacks is not guessed at: a server of a later minor release may have
//! appended one.

mod events;
mod lwlocks;

use std::fmt;

use howdah_inspect::{MAJORS, Server};

use super::tranches;

/// The names of one major's wait events.
#[derive(Clone, Debug)]
pub struct Names {
    /// By the class's place in [`TABLES`], then by id.
    names: [Vec<Option<&'static str>>; TABLES.len()],
    first_of_extensions: u16,
    has_custom_events: bool,
}

/// What a backend waits for, or that it reports no wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitEvent {
    raw: u32,
    name: Name,
}

/// A class of wait events, as `pg_stat_activity.wait_event_type` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// No wait is reported: on a processor, or in a wait that the server does not report.
    NoWait,
    /// A lightweight lock.
    LwLock,
    /// A heavyweight lock.
    Lock,
    /// The only pin of a buffer.
    BufferPin,
    /// The main loop of one of the server's own processes.
    Activity,
    /// The other end of a connection.
    Client,
    /// An extension.
    Extension,
    /// Another process of the server.
    Ipc,
    /// Time to pass.
    Timeout,
    /// A file.
    Io,
    /// A point that a test stops the server at (17 and later).
    InjectionPoint,
    /// None that is known.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Name {
    Known(&'static str),
    /// A lightweight lock of an extension whose name is not known.
    Tranche(u16),
    /// An event that an extension registered while the server ran.
    Custom(u16),
    Missing,
}

impl Names {
    /// Those of a major version, if it is one of [`howdah_inspect::MAJORS`].
    #[must_use]
    pub fn of(major: u32) -> Option<Self> {
        if !MAJORS.contains(&major) {
            return None;
        }
        let column = (major - MAJORS.start()) as usize;
        Some(Self {
            names: TABLES.map(|(_, rows)| by_id(rows, column)),
            first_of_extensions: lwlocks::FIRST_OF_EXTENSIONS[column],
            has_custom_events: major >= 17,
        })
    }

    /// Those of a running server: also the locks that extensions asked for by name when it started.
    ///
    /// `None` for a major that is not known.
    #[must_use]
    pub fn of_server(server: &Server) -> Option<Self> {
        let mut names = Self::of(server.major())?;
        let registered = tranches::of(server, names.first_of_extensions);
        let locks = &mut names.names[LWLOCKS];
        locks.resize(usize::from(names.first_of_extensions), None);
        locks.extend(registered.into_iter().map(Some));
        Some(names)
    }

    /// What `raw` says. Every value has an answer; one that is not known says so.
    #[must_use]
    pub fn decode(&self, raw: u32) -> WaitEvent {
        let [class, unused, high, low] = raw.to_be_bytes();
        let id = u16::from_be_bytes([high, low]);
        let name = match Class::of(class) {
            _ if unused != 0 => Name::Missing,
            Class::LwLock if id >= self.first_of_extensions => {
                self.known(Class::LwLock, id).map_or(Name::Tranche(id), Name::Known)
            }
            Class::Extension if id > 0 && self.has_custom_events => Name::Custom(id),
            Class::InjectionPoint if self.has_custom_events => Name::Custom(id),
            class => self.known(class, id).map_or(Name::Missing, Name::Known),
        };
        WaitEvent { raw, name }
    }

    /// The event of these names, as `pg_stat_activity` has them in `wait_event_type` and `wait_event`. One that
    /// the tables lack keeps its name: the server itself gave it.
    #[must_use]
    pub fn named(&self, class: &str, event: &str) -> WaitEvent {
        let unknown = WaitEvent { raw: u32::MAX, name: Name::Missing };
        let Some(class) = Class::WITH_EVENTS.into_iter().find(|found| found.name() == class) else {
            return unknown;
        };
        let table = TABLES.iter().position(|&(found, _)| found == class);
        let ids = table.map_or(&[][..], |table| &self.names[table]);
        let id = ids.iter().position(|name| *name == Some(event));
        let known = id.and_then(|id| Some((u16::try_from(id).ok()?, ids[id]?)));
        match known.or_else(|| Some((u16::MAX, tranches::kept(event)?))) {
            Some((id, name)) => WaitEvent {
                raw: u32::from(class.byte()) << 24 | u32::from(id),
                name: Name::Known(name),
            },
            None => unknown,
        }
    }

    /// All events with a name of their own.
    pub fn iter(&self) -> impl Iterator<Item = (Class, &'static str)> {
        let classes = TABLES.iter().zip(&self.names);
        classes.flat_map(|((class, _), names)| names.iter().flatten().map(|&name| (*class, name)))
    }

    fn known(&self, class: Class, id: u16) -> Option<&'static str> {
        let table = TABLES.iter().position(|&(found, _)| found == class)?;
        self.names[table].get(usize::from(id)).copied().flatten()
    }
}

impl WaitEvent {
    /// The four bytes as they were read.
    #[must_use]
    pub fn raw(self) -> u32 {
        self.raw
    }

    /// Its class. [`Class::Unknown`] also where the class is known, but not the event.
    #[must_use]
    pub fn class(self) -> Class {
        match (self.raw, self.name) {
            (0, _) => Class::NoWait,
            (_, Name::Missing) => Class::Unknown,
            (raw, _) => Class::of(raw.to_be_bytes()[0]),
        }
    }

    /// The event's own name, as `pg_stat_activity.wait_event` has it; for what extensions named while the
    /// server ran, the number; for what is unknown, the four bytes.
    #[must_use]
    pub fn name(self) -> String {
        match (self.raw, self.name) {
            (0, _) => String::new(),
            (_, Name::Known(name)) => name.to_owned(),
            (_, Name::Tranche(number)) => format!("tranche {number}"),
            (_, Name::Custom(number)) => format!("custom {number}"),
            (raw, Name::Missing) => format!("{raw:#010x}"),
        }
    }
}

/// `Class:event`; `CPU*` for no wait.
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
    /// As `pg_stat_activity` spells it. No wait is `CPU*`: the star stands for waits that the server does
    /// not report, such as a page fault.
    #[must_use]
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

    /// Whether who waits so has nothing to do: it waits for its client, or in its main loop for work.
    ///
    /// `Client` counts whole, also a client slow to take its rows: the server does nothing meanwhile.
    #[must_use]
    pub fn is_idle(self) -> bool {
        matches!(self, Self::Activity | Self::Client)
    }

    /// Those that a process can be in a wait of.
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

    fn of(byte: u8) -> Self {
        Self::WITH_EVENTS.into_iter().find(|class| class.byte() == byte).unwrap_or(Self::Unknown)
    }
}

/// An event's name and its ids in the majors, from [`MAJORS`]' first on; [`NO`] where it has none.
type Row = (&'static str, [u8; 5]);

const NO: u8 = u8::MAX;

/// The place of lightweight locks in [`TABLES`].
const LWLOCKS: usize = 0;

const TABLES: [(Class, &[Row]); 9] = [
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

fn by_id(rows: &[Row], column: usize) -> Vec<Option<&'static str>> {
    let mut names = Vec::new();
    for (name, ids) in rows {
        let id = ids[column];
        if id == NO {
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

    fn names(major: u32) -> Names {
        Names::of(major).expect("a major that is known")
    }

    #[test]
    fn ids_are_of_their_major() {
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
    fn names_lead_to_the_same_events_as_numbers() {
        for major in MAJORS {
            let names = names(major);
            for (class, event) in names.iter() {
                let named = names.named(class.name(), event);
                assert_eq!((named.class(), &*named.name()), (class, event), "{major}");
                assert_eq!(names.decode(named.raw()), named, "{major}");
            }
            let own = names.named("LWLock", "pg_stat_statements");
            assert_eq!(own.to_string(), "LWLock:pg_stat_statements");
            assert_eq!(names.named("Dreaming", "of").class(), Class::Unknown);
        }
    }

    #[test]
    fn what_extensions_named_is_shown_by_its_number() {
        assert_eq!(names(15).decode(0x0100_004b).to_string(), "LWLock:tranche 75");
        assert_eq!(names(17).decode(0x0700_0003).to_string(), "Extension:custom 3");
        assert_eq!(names(17).decode(0x0b00_0000).to_string(), "InjectionPoint:custom 0");
    }

    #[test]
    fn what_is_not_known_is_not_guessed_at() {
        for raw in [0x0300_000b, 0x0100_000a, 0x0700_0003, 0x0b00_0000, 0x0501_0000, 0xff00_0000] {
            let event = names(15).decode(raw);
            assert_eq!(event.class(), Class::Unknown);
            assert_eq!(event.to_string(), format!("unknown {raw:#010x}"));
        }
        assert!(Names::of(13).is_none() && Names::of(19).is_none());
    }

    #[test]
    fn a_name_and_an_id_are_one_in_every_major() {
        for (class, rows) in TABLES {
            let different: HashSet<_> = rows.iter().map(|(name, _)| name).collect();
            assert_eq!(different.len(), rows.len(), "{class:?}");
            for column in 0..5 {
                let ids: Vec<_> =
                    rows.iter().map(|row| row.1[column]).filter(|&id| id != NO).collect();
                assert_eq!(
                    ids.iter().collect::<HashSet<_>>().len(),
                    ids.len(),
                    "{class:?} {column}"
                );
                // Only locks that were given up leave a hole.
                let end = ids.iter().max().map_or(0, |&id| usize::from(id) + 1);
                assert!(class == Class::LwLock || end == ids.len(), "{class:?} {column}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_value_has_an_answer(major in MAJORS, raw: u32, class in 0_u32..16, id in 0_u32..300) {
            let names = names(major);
            for raw in [raw, class << 24 | id] {
                let event = names.decode(raw);
                prop_assert_eq!(event.raw(), raw);
                prop_assert!(!event.to_string().is_empty());
                match event.class() {
                    Class::Unknown => prop_assert_eq!(event.to_string(), format!("unknown {raw:#010x}")),
                    Class::NoWait => prop_assert_eq!(raw, 0),
                    class => prop_assert_eq!(Class::of((raw >> 24) as u8), class),
                }
            }
        }
    }
}
