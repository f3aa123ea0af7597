//! Tests capturing with a client and a scripted server, from the capture buffer to events.

use std::sync::mpsc;

use howdah_traffic::{CapturedResult, Event, Kind, ResultDigest, Timestamp};
use howdah_wire::{
    Backend,
    backend::{Severity, encode as say},
};
use proptest::prelude::*;

use crate::live::{
    buffer::{BufferChunk, BufferQueue, CaptureBuffer, CapturedParts, ClientMark, SessionStart},
    decoder::TrafficDecoder,
    session::CopyRows,
};

/// A recorded client of one worker, with the decoder of its records.
struct SessionFixture {
    buffer: Option<CaptureBuffer>,
    chunks: mpsc::Receiver<BufferChunk>,
    client: ClientMark,
    decoder: TrafficDecoder,
    events: Vec<Event>,
    now: u64,
}

impl SessionFixture {
    fn new() -> Self {
        Self::with_room(1 << 20)
    }

    fn with_room(bytes: usize) -> Self {
        let (to, pieces) = mpsc::channel();
        let rows = CopyRows::Full { bytes_max: 100 };
        let who_is = |pool: u32| (pool == 7).then(|| ("u".into(), "d".into()));
        let mut fixture = Self {
            buffer: Some(CaptureBuffer::new(
                1,
                BufferQueue::new(0, bytes),
                to,
                CapturedParts { copy_rows: true, results: true },
            )),
            chunks: pieces,
            client: ClientMark::default(),
            decoder: TrafficDecoder::new(Box::new(who_is), rows, Timestamp::from_micros(0)),
            events: Vec::new(),
            now: 0,
        };
        fixture.start_session(true);
        fixture
    }

    fn buffer(&mut self) -> &mut CaptureBuffer {
        self.buffer.as_mut().unwrap()
    }

    fn start_session(&mut self, is_new: bool) {
        let entry = SessionStart {
            is_new,
            pool: 7,
            settings: [(&b"TimeZone"[..], &b"UTC"[..])].into_iter(),
            statements: [(&b"held"[..], 3, &b"select 'held'\0\0\0"[..])].into_iter(),
            unnamed: b"",
        };
        self.buffer.as_mut().unwrap().start_session(&mut self.client, entry, self.now);
    }

    fn client_sends(&mut self, bytes: &[u8]) {
        self.now += 1000;
        let (buffer, now) = (self.buffer.as_mut().unwrap(), self.now);
        buffer.record_frontend(&mut self.client, bytes, now);
    }

    fn server_sends(&mut self, replies: &[BackendReply]) {
        self.now += 1000;
        for reply in replies {
            let mut bytes = Vec::new();
            let kind = match reply {
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
                Row(body) => {
                    bytes = vec![0; 5];
                    bytes.extend_from_slice(body);
                    Backend::DataRow
                }
                Ready(status) => {
                    bytes = vec![0, 0, 0, 0, 0, *status];
                    Backend::ReadyForQuery
                }
            };
            let now = self.now;
            let body = bytes.get(5..).unwrap_or_default();
            self.buffer.as_mut().unwrap().record_backend(&mut self.client, kind, body, now);
        }
    }

    /// Returns the events so far, each as a short text.
    fn read(&mut self) -> Vec<String> {
        let replies = |event: Event| {
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
        self.take_events().into_iter().map(replies).collect()
    }

    /// Returns the messages of all events so far, with the kind and pipeline of each event.
    fn read_messages(&mut self) -> Vec<(Kind, Option<u32>, Option<String>)> {
        let messages = |event: &Event| event.messages().map(ToString::to_string);
        let messages_by_kind =
            |event: Event| (event.action.kind(), event.pipeline, messages(&event));
        self.take_events().into_iter().map(messages_by_kind).collect()
    }

    fn take_events(&mut self) -> Vec<Event> {
        if let Some(buffer) = &mut self.buffer {
            buffer.flush();
        }
        let Self { decoder, events, chunks: pieces, .. } = self;
        for chunk in pieces.try_iter() {
            decoder.decode(&chunk, &mut |event| events.push(event.clone()));
            chunk.recycle();
        }
        std::mem::take(events)
    }
}

enum BackendReply {
    Is(Backend),
    Done(&'static str),
    Fails(&'static str),
    Row(&'static [u8]),
    Ready(u8),
}

use BackendReply::{Done, Fails, Is, Ready, Row};

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

const PARSED: BackendReply = Is(Backend::ParseComplete);
const BOUND: BackendReply = Is(Backend::BindComplete);

#[test]
fn results_have_checksums_and_generated_values() {
    let mut fixture = SessionFixture::new();
    let returned = "insert into t values (1) returning id";
    fixture.client_sends(&[query("select a; select b"), query(returned), query("c")].concat());
    let (row, other) = (&b"\0\x01\0\0\0\x0217"[..], &b"\0\x01\xff\xff\xff\xff"[..]);
    fixture.server_sends(&[
        Row(row),
        Row(other),
        Done("SELECT 2"),
        Row(other),
        Done("SELECT 1"),
        Ready(b'I'),
        Row(row),
        Row(other),
        Done("INSERT 0 2"),
        Ready(b'I'),
        // A row that was too large to be read, and a statement without rows.
        Row(b""),
        Done("SELECT 1"),
        Done("UPDATE 1"),
        Ready(b'I'),
    ]);
    let digest = |results: &[&[&[u8]]]| {
        let mut digest = ResultDigest::default();
        for rows in results {
            rows.iter().for_each(|row| digest.add_row(row));
            digest.end_result();
        }
        digest.checksum()
    };
    let events = fixture.take_events();
    let results: Vec<_> =
        events.iter().map(|event| event.wire.as_ref().unwrap().result.clone()).collect();
    let first_row = Some(vec![Some("17".into())]);
    assert_eq!(
        results[1..],
        [
            Some(CapturedResult { checksum: digest(&[&[row, other], &[other]]), first_row: None }),
            Some(CapturedResult { checksum: digest(&[&[other, row]]), first_row }),
            None,
        ]
    );
}

#[test]
fn replies_are_matched_to_requests() {
    let mut fixture = SessionFixture::new();
    fixture.client_sends(&[query("a; b"), query("c")].concat());
    fixture.server_sends(&[
        Done("SELECT 2"),
        Done("INSERT 0 3"),
        Ready(b'I'),
        Fails("42601"),
        Ready(b'I'),
    ]);
    // A Bind without Execute has its own event; a Close and a Describe do not.
    fixture.client_sends(
        &[parse("s", "d"), bind("s"), message(b'D', b"Ss\0"), message(b'C', b"Sx\0"), sync()]
            .concat(),
    );
    fixture.server_sends(&[
        PARSED,
        BOUND,
        Is(Backend::RowDescription),
        Is(Backend::CloseComplete),
        Ready(b'I'),
    ]);
    fixture.client_sends(
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
    fixture.server_sends(&[
        BOUND,
        Done("SELECT 1"),
        Fails("26000"),
        Ready(b'I'),
        Is(Backend::EmptyQueryResponse),
        Ready(b'I'),
    ]);
    assert_eq!(
        fixture.read(),
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
    let tally = fixture.decoder.counts();
    assert_eq!((tally.unknown_statements, tally.skipped_by_server), (1, 3));
}

#[test]
fn failed_parse_keeps_previous_statement() {
    let mut fixture = SessionFixture::new();
    fixture.client_sends(&[parse("held", "other"), bind("held"), execute(), sync()].concat());
    fixture.server_sends(&[Fails("42P05"), Ready(b'I')]);
    fixture.client_sends(&[bind("held"), execute(), sync()].concat());
    fixture.server_sends(&[BOUND, Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(fixture.read(), ["connect", "parse other ! 42P05", "execute select 'held' = 1"]);
}

#[test]
fn requests_after_error_are_skipped_until_sync() {
    let mut fixture = SessionFixture::new();
    fixture.client_sends(&[bind("held"), execute()].concat());
    fixture.server_sends(&[BOUND, Fails("22012")]);
    fixture.client_sends(&[bind("held"), execute()].concat());
    fixture.client_sends(&sync());
    fixture.server_sends(&[Ready(b'I')]);
    fixture.client_sends(&query("a"));
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(fixture.read(), ["connect", "execute select 'held' ! 22012", "simple a = 1"]);
}

/// asyncpg prepares with a Flush to learn the columns, then starts a COPY by a Query.
#[test]
fn query_ends_pipeline_without_sync() {
    let mut fixture = SessionFixture::new();
    let flush = message(b'H', b"");
    let describe = message(b'D', b"Sa\0");
    fixture.client_sends(&[&parse("a", "select 1")[..], &describe, &flush].concat());
    // Sent before the reply to the Parse.
    fixture.client_sends(&query("select 2"));
    fixture.server_sends(&[Is(Backend::ParseComplete), Is(Backend::RowDescription)]);
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'I')]);
    fixture.client_sends(&[&describe[..], &bind("a"), &execute(), &sync()].concat());
    fixture.server_sends(&[Is(Backend::RowDescription), Is(Backend::BindComplete)]);
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'I')]);
    let text = |messages: &str| Some(messages.to_owned());
    assert_eq!(
        fixture.read_messages(),
        [
            (Kind::Connect, None, None),
            (Kind::Parse, Some(1), text("P")),
            (Kind::Simple, None, text("DSa\0HQ")),
            (Kind::Execute, Some(2), text("DSa\0B\0ES")),
        ]
    );
}

/// A Bind that is not recorded leaves no portal to describe or execute, not even the previous
/// portal of that name.
#[test]
fn requests_for_omitted_bind_have_no_events() {
    let mut fixture = SessionFixture::new();
    let describe = message(b'D', b"P\0");
    let huge = vec![b'x'; 66 << 20];
    let long_bind = |name: &str| {
        let len = u32::try_from(huge.len()).unwrap().to_be_bytes();
        let front = [b"\0", name.as_bytes(), b"\0\0\0\0\x01", &len].concat();
        message(b'B', &[&front, &huge[..], b"\0\0"].concat())
    };
    fixture.client_sends(&[query("begin"), parse("a", "select 1"), sync()].concat());
    fixture.server_sends(&[Done("BEGIN"), Ready(b'T'), Is(Backend::ParseComplete), Ready(b'T')]);
    let well = [Is(Backend::BindComplete), Is(Backend::RowDescription)];
    fixture.client_sends(&[&bind("a")[..], &describe, &execute(), &sync()].concat());
    fixture.server_sends(&well);
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'T')]);
    let bytes = [&long_bind("a")[..], &describe, &execute(), &sync()].concat();
    let mut before = Vec::new();
    for chunk in bytes.chunks(1 << 18) {
        fixture.client_sends(chunk);
        // Otherwise the queue would be full.
        before.extend(fixture.read());
    }
    assert_eq!(before.len(), 4, "{before:?}");
    fixture.server_sends(&well);
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'T')]);
    // A statement that is not known.
    fixture.client_sends(&[&bind("b")[..], &describe, &execute(), &sync()].concat());
    fixture.server_sends(&well);
    fixture.server_sends(&[Done("SELECT 1"), Ready(b'T')]);
    fixture.client_sends(&[&bind("a")[..], &execute(), &sync()].concat());
    fixture.server_sends(&[Is(Backend::BindComplete), Done("SELECT 1"), Ready(b'T')]);
    fixture.client_sends(&query("commit"));
    fixture.server_sends(&[Done("COMMIT"), Ready(b'I')]);
    let messages_by_kind: Vec<_> =
        fixture.read_messages().into_iter().map(|(kind, _, messages)| (kind, messages)).collect();
    assert_eq!(messages_by_kind, [(Kind::Execute, Some("B\0ES".to_owned())), (Kind::Simple, None)]);
    let tally = fixture.decoder.counts();
    assert_eq!((tally.too_long, tally.unknown_statements), (1, 1));
}

/// Errors about a statement with a password may quote it.
#[test]
fn errors_about_secrets_are_omitted() {
    let mut fixture = SessionFixture::new();
    for sql in ["alter role a password 'x' 'hunter2'", "select 'hunter2'"] {
        fixture.client_sends(&query(sql));
        fixture.server_sends(&[Fails("42601"), Ready(b'I')]);
    }
    fixture.read();
    fixture
        .client_sends(&[&parse("", "alter role a password 'x' 'hunter2'")[..], &sync()].concat());
    fixture.server_sends(&[Fails("42601"), Ready(b'I')]);
    fixture.buffer().flush();
    let SessionFixture { decoder, chunks: pieces, .. } = &mut fixture;
    for chunk in pieces.try_iter() {
        decoder.decode(&chunk, &mut |event| {
            let error = event.outcome.error.clone().unwrap_or_default();
            assert_eq!(error.as_bytes(), b"redacted", "{:?}", event.action);
        });
    }
}

#[test]
fn gap_cuts_pending_requests_and_session_resumes() {
    let mut fixture = SessionFixture::with_room(1);
    assert_eq!(fixture.read(), ["connect"]);
    fixture.client_sends(&query("before"));
    fixture.buffer().flush();
    // The queue is full now, because the earlier chunk has not been read.
    fixture.server_sends(&[Done("SELECT 1")]);
    fixture.client_sends(&query("lost"));
    fixture.buffer().flush();
    let client = fixture.client.clone();
    assert!(!fixture.buffer().is_recording(&client));
    assert!(!fixture.buffer().has_room(10), "the queue has not been read");
    assert_eq!(fixture.read(), Vec::<String>::new());
    assert!(fixture.buffer().has_room(10));
    fixture.now += 1;
    fixture.start_session(false);
    fixture.client_sends(&[bind("held"), execute(), sync()].concat());
    fixture.server_sends(&[BOUND, Done("SELECT 1"), Ready(b'I')]);
    assert_eq!(fixture.read(), ["simple before", "execute select 'held' = 1"]);
    assert_eq!(fixture.decoder.counts().cut_short, 1);
}

#[test]
fn copy_rows_sent_early_are_kept() {
    let mut fixture = SessionFixture::new();
    let copy = |rows: &[u8]| [message(b'd', rows), message(b'c', b"")].concat();
    fixture.client_sends(&[query("copy a from stdin"), copy(b"1\n")].concat());
    fixture.server_sends(&[Is(Backend::CopyInResponse), Done("COPY 1"), Ready(b'I')]);
    // The rest of a failed COPY is ignored.
    fixture.client_sends(&query("copy b from stdin"));
    fixture.server_sends(&[Is(Backend::CopyInResponse), Fails("22P02"), Ready(b'I')]);
    fixture.client_sends(&copy(b"stray"));
    // A COPY that is too long is only counted.
    fixture.client_sends(&[query("copy c from stdin"), copy(&[b'x'; 101])].concat());
    fixture.server_sends(&[Is(Backend::CopyInResponse), Done("COPY 1"), Ready(b'I')]);
    fixture.buffer().flush();
    let mut copies = Vec::new();
    for chunk in fixture.chunks.try_iter() {
        fixture.decoder.decode(&chunk, &mut |event| {
            copies.extend(event.wire.clone().unwrap().copy_in);
        });
    }
    let found: Vec<_> =
        copies.iter().map(|copy| (copy.bytes, copy.data.first().cloned().flatten())).collect();
    assert_eq!(found, [(2, Some("1\n".into())), (0, None), (101, None)]);
    assert_eq!(fixture.decoder.counts().copies_without_rows, 1);
}

#[test]
fn malformed_stream_ends_its_session_only() {
    let mut fixture = SessionFixture::new();
    fixture.client_sends(b"B\0\0\0\x06\0\0");
    fixture.client_sends(&query("unheard"));
    let client = fixture.client.clone();
    fixture.buffer().record_disconnect(&client, 9);
    assert_eq!(fixture.read(), ["connect", "disconnect"]);
    assert_eq!(fixture.decoder.counts().malformed, 1);
}

proptest! {
    /// However a client's bytes are split, the events are the same.
    #[test]
    fn events_are_independent_of_splits(cuts in prop::collection::vec(0_usize..200, 0..6)) {
        let bytes = [
            query("a"), parse("s", "b"), bind("s"), execute(), sync(), message(b'd', b"x"), query("c"),
        ].concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).collect();
        cuts.sort_unstable();
        let mut fixture = SessionFixture::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            fixture.client_sends(&bytes[from..cut]);
            from = cut;
        }
        fixture.server_sends(&[Done("SELECT 1"), Ready(b'I'), PARSED, BOUND, Done("SELECT 1"), Ready(b'I')]);
        fixture.server_sends(&[Done("SELECT 1"), Ready(b'I')]);
        prop_assert_eq!(
            fixture.read(),
            ["connect", "simple a = 1", "parse b", "execute b = 1", "simple c = 1"]
        );
    }

    /// Arbitrary traffic never panics, and each session has a connect and a disconnect.
    #[test]
    fn arbitrary_bytes_are_accepted(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
        heard in prop::collection::vec((prop::sample::select(Backend::ALL), prop::collection::vec(any::<u8>(), 0..20)), 0..12),
        is_valid: bool,
    ) {
        let mut fixture = SessionFixture::new();
        for bytes in &messages {
            if is_valid {
                let tags = b"QPBEDCSHdcfFpX";
                let tag = tags[usize::from(bytes.first().copied().unwrap_or(0)) % tags.len()];
                fixture.client_sends(&message(tag, bytes));
            } else {
                fixture.client_sends(bytes);
            }
        }
        for (kind, body) in &heard {
            let now = fixture.now;
            fixture.buffer.as_mut().unwrap().record_backend(&mut fixture.client, *kind, body, now);
        }
        let client = fixture.client.clone();
        fixture.buffer().record_disconnect(&client, 1 << 40);
        let events = fixture.read();
        prop_assert_eq!(events.first().map(String::as_str), Some("connect"));
        prop_assert_eq!(events.last().map(String::as_str), Some("disconnect"));
    }
}

#[test]
fn session_has_identity_of_its_pool() {
    let mut fixture = SessionFixture::new();
    fixture.buffer.take().unwrap().finish();
    let mut kinds = Vec::new();
    for chunk in fixture.chunks.try_iter() {
        assert!(chunk.is_last());
        fixture.decoder.decode(&chunk, &mut |event| {
            assert_eq!((&*event.user, &*event.database), ("u", "d"));
            kinds.push(event.action.kind());
        });
    }
    assert_eq!(kinds, [Kind::Connect]);
}
