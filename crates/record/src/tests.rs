//! Dialogues of a client with a server that is a list of messages, from the tape to events.

use std::sync::mpsc;

use howdah_traffic::{Event, Kind, Timestamp};
use howdah_wire::{
    Backend,
    backend::{Severity, encode as say},
};
use proptest::prelude::*;

use crate::{
    decoder::Decoder,
    session::Rows,
    tape::{CaptureBuffer, Entry, Lane, Mark, Piece},
};

/// One client of one worker, and who reads the tape.
struct Scene {
    tape: Option<CaptureBuffer>,
    pieces: mpsc::Receiver<Piece>,
    mark: Mark,
    decoder: Decoder,
    events: Vec<Event>,
    now: u64,
}

impl Scene {
    fn new() -> Self {
        Self::with_room(1 << 20)
    }

    fn with_room(bytes: usize) -> Self {
        let (to, pieces) = mpsc::channel();
        let rows = Rows { counts: true, bytes_max: 100 };
        let who_is = |pool: u32| (pool == 7).then(|| ("u".into(), "d".into()));
        let mut scene = Self {
            tape: Some(CaptureBuffer::new(1, Lane::new(0, bytes), to, true)),
            pieces,
            mark: Mark::default(),
            decoder: Decoder::new(Box::new(who_is), rows, Timestamp::from_micros(0)),
            events: Vec::new(),
            now: 0,
        };
        scene.enter(true);
        scene
    }

    fn tape(&mut self) -> &mut CaptureBuffer {
        self.tape.as_mut().unwrap()
    }

    fn enter(&mut self, is_new: bool) {
        let entry = Entry {
            is_new,
            pool: 7,
            settings: [(&b"TimeZone"[..], &b"UTC"[..])].into_iter(),
            statements: [(&b"held"[..], 3, &b"select 'held'\0\0\0"[..])].into_iter(),
            unnamed: b"",
        };
        self.tape.as_mut().unwrap().enter(&mut self.mark, entry, self.now);
    }

    fn says(&mut self, bytes: &[u8]) {
        self.now += 1000;
        let (tape, now) = (self.tape.as_mut().unwrap(), self.now);
        tape.said(&mut self.mark, bytes, now);
    }

    fn hears(&mut self, words: &[Word]) {
        self.now += 1000;
        for word in words {
            let mut bytes = Vec::new();
            let kind = match word {
                Is(kind) => *kind,
                Done(tag) => {
                    say::command_complete(&mut bytes, tag.as_bytes()).unwrap();
                    Backend::CommandComplete
                }
                Fails(code) => {
                    let fields = say::essentials(Severity::Error, code.as_bytes(), b"no");
                    say::error_response(&mut bytes, fields).unwrap();
                    Backend::ErrorResponse
                }
                Ready(status) => {
                    bytes = vec![0, 0, 0, 0, 0, *status];
                    Backend::ReadyForQuery
                }
            };
            let now = self.now;
            let body = bytes.get(5..).unwrap_or_default();
            self.tape.as_mut().unwrap().heard(&mut self.mark, kind, body, now);
        }
    }

    /// What stands in the capture, a few words for each event.
    fn read(&mut self) -> Vec<String> {
        let words = |event: Event| {
            let sql = event.action.sql().map(|sql| format!(" {}", sql.to_str_lossy()));
            let code = event.outcome.sqlstate.map(|code| format!(" ! {code}"));
            let rows = event.wire.as_ref().and_then(|wire| wire.rows);
            let rows = rows.map(|rows| format!(" = {rows}"));
            let kind = event.action.kind();
            format!(
                "{kind}{}{}{}",
                sql.unwrap_or_default(),
                rows.unwrap_or_default(),
                code.unwrap_or_default()
            )
        };
        self.take_events().into_iter().map(words).collect()
    }

    /// The messages of all events so far, with their kinds and pipelines.
    fn read_messages(&mut self) -> Vec<(Kind, Option<u32>, Option<String>)> {
        let messages = |event: &Event| event.messages().map(ToString::to_string);
        let told = |event: Event| (event.action.kind(), event.pipeline, messages(&event));
        self.take_events().into_iter().map(told).collect()
    }

    fn take_events(&mut self) -> Vec<Event> {
        if let Some(tape) = &mut self.tape {
            tape.hand_over();
        }
        let Self { decoder, events, pieces, .. } = self;
        for piece in pieces.try_iter() {
            decoder.take(0, &piece.bytes, &mut |event| events.push(event.clone()));
            piece.lane.give_back(piece.bytes);
        }
        std::mem::take(events)
    }
}

enum Word {
    Is(Backend),
    Done(&'static str),
    Fails(&'static str),
    Ready(u8),
}

use Word::{Done, Fails, Is, Ready};

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &len, body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

fn bind(name: &str) -> Vec<u8> {
    message(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes())
}

fn execute() -> Vec<u8> {
    message(b'E', b"\0\0\0\0\0")
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

const PARSED: Word = Is(Backend::ParseComplete);
const BOUND: Word = Is(Backend::BindComplete);

#[test]
fn requests_and_replies_find_each_other() {
    let mut scene = Scene::new();
    scene.says(&[query("a; b"), query("c")].concat());
    scene.hears(&[Done("SELECT 2"), Done("INSERT 0 3"), Ready(b'I'), Fails("42601"), Ready(b'I')]);
    // A Bind that nothing executes stands for itself; a Close and a Describe do not.
    scene.says(
        &[parse("s", "d"), bind("s"), message(b'D', b"Ss\0"), message(b'C', b"Sx\0"), sync()]
            .concat(),
    );
    scene.hears(&[
        PARSED,
        BOUND,
        Is(Backend::RowDescription),
        Is(Backend::CloseComplete),
        Ready(b'I'),
    ]);
    scene.says(
        &[
            bind("held"),
            execute(),
            bind("unheard"),
            execute(),
            bind("s"),
            execute(),
            sync(),
            query("e"),
        ]
        .concat(),
    );
    scene.hears(&[
        BOUND,
        Done("SELECT 1"),
        Fails("26000"),
        Ready(b'I'),
        Is(Backend::EmptyQueryResponse),
        Ready(b'I'),
    ]);
    assert_eq!(
        scene.read(),
        [
            "connect",
            "simple a; b = 5",
            "simple c ! 42601",
            "parse d",
            "bind d",
            "execute select 'held' = 1",
            "simple e",
        ]
    );
    let tally = scene.decoder.tally;
    assert_eq!((tally.unknown_statements, tally.skipped_by_server), (1, 3));
}

#[test]
fn a_parse_that_fails_leaves_the_name_to_the_statement_before() {
    let mut scene = Scene::new();
    scene.says(&[parse("held", "other"), bind("held"), execute(), sync()].concat());
    scene.hears(&[Fails("42P05"), Ready(b'I')]);
    scene.says(&[bind("held"), execute(), sync()].concat());
    scene.hears(&[BOUND, Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(scene.read(), ["connect", "parse other ! 42P05", "execute select 'held' = 1"]);
}

#[test]
fn after_an_error_what_comes_before_sync_is_not_looked_at() {
    let mut scene = Scene::new();
    scene.says(&[bind("held"), execute()].concat());
    scene.hears(&[BOUND, Fails("22012")]);
    scene.says(&[bind("held"), execute()].concat());
    scene.says(&sync());
    scene.hears(&[Ready(b'I')]);
    scene.says(&query("a"));
    scene.hears(&[Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(scene.read(), ["connect", "execute select 'held' ! 22012", "simple a = 1"]);
}

/// asyncpg prepares with a Flush to learn of columns, then begins a COPY by a Query.
#[test]
fn a_query_ends_a_pipeline_that_has_no_sync() {
    let mut scene = Scene::new();
    let flush = message(b'H', b"");
    let describe = message(b'D', b"Sa\0");
    scene.says(&[&parse("a", "select 1")[..], &describe, &flush].concat());
    // Sent before the Parse is answered.
    scene.says(&query("select 2"));
    scene.hears(&[Is(Backend::ParseComplete), Is(Backend::RowDescription)]);
    scene.hears(&[Done("SELECT 1"), Ready(b'I')]);
    scene.says(&[&describe[..], &bind("a"), &execute(), &sync()].concat());
    scene.hears(&[Is(Backend::RowDescription), Is(Backend::BindComplete)]);
    scene.hears(&[Done("SELECT 1"), Ready(b'I')]);
    let text = |messages: &str| Some(messages.to_owned());
    assert_eq!(
        scene.read_messages(),
        [
            (Kind::Connect, None, None),
            (Kind::Parse, Some(1), text("P")),
            (Kind::Simple, None, text("DSa\0HQ")),
            (Kind::Execute, Some(2), text("DSa\0B\0ES")),
        ]
    );
}

/// A Bind that is not kept leaves nothing to be described or executed, least of all what its portal was before.
#[test]
fn nothing_is_made_of_what_stands_on_a_message_that_was_not_kept() {
    let mut scene = Scene::new();
    let describe = message(b'D', b"P\0");
    let huge = vec![b'x'; 66 << 20];
    let long_bind = |name: &str| {
        let len = u32::try_from(huge.len()).unwrap().to_be_bytes();
        let front = [b"\0", name.as_bytes(), b"\0\0\0\0\x01", &len].concat();
        message(b'B', &[&front, &huge[..], b"\0\0"].concat())
    };
    scene.says(&[query("begin"), parse("a", "select 1"), sync()].concat());
    scene.hears(&[Done("BEGIN"), Ready(b'T'), Is(Backend::ParseComplete), Ready(b'T')]);
    let well = [Is(Backend::BindComplete), Is(Backend::RowDescription)];
    scene.says(&[&bind("a")[..], &describe, &execute(), &sync()].concat());
    scene.hears(&well);
    scene.hears(&[Done("SELECT 1"), Ready(b'T')]);
    let bytes = [&long_bind("a")[..], &describe, &execute(), &sync()].concat();
    let mut before = Vec::new();
    for piece in bytes.chunks(1 << 18) {
        scene.says(piece);
        // Else there is no room on the tape.
        before.extend(scene.read());
    }
    assert_eq!(before.len(), 4, "{before:?}");
    scene.hears(&well);
    scene.hears(&[Done("SELECT 1"), Ready(b'T')]);
    // A statement that nobody knows.
    scene.says(&[&bind("b")[..], &describe, &execute(), &sync()].concat());
    scene.hears(&well);
    scene.hears(&[Done("SELECT 1"), Ready(b'T')]);
    scene.says(&[&bind("a")[..], &execute(), &sync()].concat());
    scene.hears(&[Is(Backend::BindComplete), Done("SELECT 1"), Ready(b'T')]);
    scene.says(&query("commit"));
    scene.hears(&[Done("COMMIT"), Ready(b'I')]);
    let told: Vec<_> =
        scene.read_messages().into_iter().map(|(kind, _, said)| (kind, said)).collect();
    assert_eq!(told, [(Kind::Execute, Some("B\0ES".to_owned())), (Kind::Simple, None)]);
    let tally = &scene.decoder.tally;
    assert_eq!((tally.too_long, tally.unknown_statements), (1, 1));
}

/// What a server says of a statement with a password in it may quote that.
#[test]
fn errors_of_texts_with_secrets_are_left_out() {
    let mut scene = Scene::new();
    for sql in ["alter role a password 'x' 'hunter2'", "select 'hunter2'"] {
        scene.says(&query(sql));
        scene.hears(&[Fails("42601"), Ready(b'I')]);
    }
    scene.read();
    scene.says(&[&parse("", "alter role a password 'x' 'hunter2'")[..], &sync()].concat());
    scene.hears(&[Fails("42601"), Ready(b'I')]);
    scene.tape().hand_over();
    let Scene { decoder, pieces, .. } = &mut scene;
    for piece in pieces.try_iter() {
        decoder.take(0, &piece.bytes, &mut |event| {
            let error = event.outcome.error.clone().unwrap_or_default();
            assert_eq!(error.as_bytes(), b"redacted", "{:?}", event.action);
        });
    }
}

#[test]
fn a_gap_costs_what_was_under_way_and_the_session_comes_again() {
    let mut scene = Scene::with_room(1);
    assert_eq!(scene.read(), ["connect"]);
    scene.says(&query("before"));
    scene.tape().hand_over();
    // What is handed over now finds no room, for nobody has read what was before.
    scene.hears(&[Done("SELECT 1")]);
    scene.says(&query("lost"));
    scene.tape().hand_over();
    let mark = scene.mark.clone();
    assert!(!scene.tape().has(&mark));
    assert!(!scene.tape().has_room(10), "nobody has read");
    assert_eq!(scene.read(), Vec::<String>::new());
    assert!(scene.tape().has_room(10));
    scene.now += 1;
    scene.enter(false);
    scene.says(&[bind("held"), execute(), sync()].concat());
    scene.hears(&[BOUND, Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(scene.read(), ["simple before", "execute select 'held' = 1"]);
    assert_eq!(scene.decoder.tally.cut_short, 1);
}

#[test]
fn rows_that_come_before_they_are_asked_for_are_kept_too() {
    let mut scene = Scene::new();
    let copy = |rows: &[u8]| [message(b'd', rows), message(b'c', b"")].concat();
    scene.says(&[query("copy a from stdin"), copy(b"1\n")].concat());
    scene.hears(&[Is(Backend::CopyInResponse), Done("COPY 1"), Ready(b'I')]);
    // Of one that has failed the rest is for nobody.
    scene.says(&query("copy b from stdin"));
    scene.hears(&[Is(Backend::CopyInResponse), Fails("22P02"), Ready(b'I')]);
    scene.says(&copy(b"stray"));
    // And one that is too long is counted.
    scene.says(&[query("copy c from stdin"), copy(&[b'x'; 101])].concat());
    scene.hears(&[Is(Backend::CopyInResponse), Done("COPY 1"), Ready(b'I')]);
    scene.tape().hand_over();
    let mut copies = Vec::new();
    for piece in scene.pieces.try_iter() {
        scene
            .decoder
            .take(0, &piece.bytes, &mut |event| copies.extend(event.wire.clone().unwrap().copy_in));
    }
    let found: Vec<_> =
        copies.iter().map(|copy| (copy.bytes, copy.data.first().cloned().flatten())).collect();
    assert_eq!(found, [(2, Some("1\n".into())), (0, None), (101, None)]);
    assert_eq!(scene.decoder.tally.copies_without_rows, 1);
}

#[test]
fn what_cannot_be_understood_ends_the_session_only() {
    let mut scene = Scene::new();
    scene.says(b"B\0\0\0\x06\0\0");
    scene.says(&query("unheard"));
    let mark = scene.mark.clone();
    scene.tape().left(&mark, 9);
    assert_eq!(scene.read(), ["connect", "disconnect"]);
    assert_eq!(scene.decoder.tally.malformed, 1);
}

proptest! {
    /// However a client's bytes are cut, the events are the same.
    #[test]
    fn cuts_change_nothing(cuts in prop::collection::vec(0_usize..200, 0..6)) {
        let bytes = [
            query("a"), parse("s", "b"), bind("s"), execute(), sync(), message(b'd', b"x"), query("c"),
        ].concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).collect();
        cuts.sort_unstable();
        let mut scene = Scene::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            scene.says(&bytes[from..cut]);
            from = cut;
        }
        scene.hears(&[Done("SELECT 1"), Ready(b'I'), PARSED, BOUND, Done("SELECT 1"), Ready(b'I')]);
        scene.hears(&[Done("SELECT 1"), Ready(b'I')]);
        prop_assert_eq!(
            scene.read(),
            ["connect", "simple a = 1", "parse b", "execute b = 1", "simple c = 1"]
        );
    }

    /// Whatever a client sends and hears, nothing panics, and a session ends as it began.
    #[test]
    fn any_bytes_are_taken(
        said in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        heard in prop::collection::vec((prop::sample::select(Backend::ALL), prop::collection::vec(any::<u8>(), 0..20)), 0..12),
        sane: bool,
    ) {
        let mut scene = Scene::new();
        for bytes in &said {
            if sane {
                let tags = b"QPBEDCSHdcfFpX";
                let tag = tags[usize::from(bytes.first().copied().unwrap_or(0)) % tags.len()];
                scene.says(&message(tag, bytes));
            } else {
                scene.says(bytes);
            }
        }
        for (kind, body) in &heard {
            let now = scene.now;
            scene.tape.as_mut().unwrap().heard(&mut scene.mark, *kind, body, now);
        }
        let mark = scene.mark.clone();
        scene.tape().left(&mark, 1 << 40);
        let events = scene.read();
        prop_assert_eq!(events.first().map(String::as_str), Some("connect"));
        prop_assert_eq!(events.last().map(String::as_str), Some("disconnect"));
    }
}

#[test]
fn kinds_of_sessions_are_those_of_their_clients() {
    let mut scene = Scene::new();
    scene.tape.take().unwrap().end();
    let mut kinds = Vec::new();
    for piece in scene.pieces.try_iter() {
        assert!(piece.is_last);
        scene.decoder.take(0, &piece.bytes, &mut |event| {
            assert_eq!((&*event.user, &*event.database), ("u", "d"));
            kinds.push(event.action.kind());
        });
    }
    assert_eq!(kinds, [Kind::Connect]);
}
