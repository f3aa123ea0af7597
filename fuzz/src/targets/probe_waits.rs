//! Process titles, and the four bytes of `wait_event_info`.

use std::sync::LazyLock;

use howdah_probe::waits::{BackendInfo, Class, ProcessKind, WaitEventNames};

use super::Shape;

/// Fragments of process titles.
pub const WORDS: &[&[u8]] = &[
    b"postgres: ",
    b"main: ",
    b": ",
    b" ",
    b"app shop ",
    b"[local]",
    b"10.0.0.7(51234)",
    b"(",
    b")",
    b"idle",
    b"walsender ",
    b"checkpointer",
    b"autovacuum worker",
    b"parallel worker for PID 4711",
    b"logical replication launcher",
    b"\x01\0\0\x4b",
    b"\x0a\0\0\x15",
];

static NAMES: LazyLock<Vec<WaitEventNames>> =
    LazyLock::new(|| (14..=18).filter_map(WaitEventNames::for_major).collect());

/// Process titles, each after four bytes of wait information.
pub fn seeds() -> Vec<Vec<u8>> {
    let titles: [&[u8]; 5] = [
        b"\x06\0\0\0postgres: app shop [local] idle",
        b"\x03\0\0\x05postgres: app shop 10.0.0.7(51234) UPDATE waiting",
        b"\x05\0\0\x04postgres: main: checkpointer",
        b"\0\0\0\0postgres: main: parallel worker for PID 4711",
        b"\x01\0\0\x5fpostgres: walsender standby ::1(9) streaming 0/3000148",
    ];
    titles.map(<[u8]>::to_vec).to_vec()
}

/// Decodes the first four bytes as wait information and the rest as a title, with and without
/// `cluster_name`.
pub fn run(input: &[u8]) -> Shape {
    let Some((raw, title)) = input.split_first_chunk::<4>() else { return Shape::of(0) };
    let raw = u32::from_be_bytes(*raw);
    let title = String::from_utf8_lossy(title);
    let events = NAMES.iter().map(|names| {
        let event = names.decode(raw);
        assert_eq!(event.raw(), raw);
        assert_eq!(event.class() == Class::NoWait, raw == 0);
        let is_unknown = event.to_string() == format!("unknown {raw:#010x}");
        assert_eq!(event.class() == Class::Unknown, is_unknown);
        (event.class(), is_unknown)
    });
    let backends = ["", "main"].map(|cluster_name| {
        let backend = BackendInfo::from_title(7, &title, cluster_name)?;
        for name in [&backend.user, &backend.database].into_iter().flatten() {
            assert!(
                backend.kind == ProcessKind::Client
                    && title.contains(&**name)
                    && !name.contains(' ')
            );
        }
        assert_eq!(backend.user.is_some(), backend.database.is_some());
        Some((backend.kind, backend.user.is_some()))
    });
    Shape::of((events.collect::<Vec<_>>(), backends))
}
