//! Captures the traffic of two clients: events are complete, and each has an outcome or is counted.

use howdah_capture::live::{CaptureHarness, ClientMark, SessionStart};
use howdah_traffic::{ClientMessage, Event, Kind};
use howdah_wire::Backend;

use super::Shape;

/// Messages of both sides, as an input contains them.
pub const WORDS: &[&[u8]] = &[
    b"\x01Qa\0\0",
    b"\x01Ps\0select $1\0\0\0",
    b"\x01B\0s\0\0\0\0\x01\0\0\0\x01x\0\0",
    b"\x01Bp\0s\0\0\0\0\0\0\0",
    b"\x01DSs\0",
    b"\x01DP\0",
    b"\x01E\0\0\0\0\0",
    b"\x01Ep\0\0\0\0\x02",
    b"\x01CSs\0",
    b"\x01H",
    b"\x01S",
    b"\x01F\0\0\0\xb1\0\0\0\x01\0\0\0\x01x\0\0",
    b"\x01dx",
    b"\x01c",
    b"\x01X",
    b"\x02CSELECT 1\0",
    b"\x02ESERROR\0C22012\0Mno\0\0",
    b"\x02ZI",
    b"\x02ZT",
    b"\x02ZE",
    b"\x021",
    b"\x022",
    b"\x023",
    b"\x02T",
    b"\x02n",
    b"\x02s",
    b"\x02G",
    b"\x02V",
];

/// Maximum length of one step.
const ORDER_BYTES_MAX: usize = 120;

/// Exchanges of typical drivers.
pub fn seeds() -> Vec<Vec<u8>> {
    let dialogues: [&[&[u8]]; 6] = [
        &[b"\x01Qa\0", b"\x02CSELECT 1\0", b"\x02ZI"],
        &[
            b"\x01P\0a\0\0\0",
            b"\x01B\0\0\0\0\0\0\0\0",
            b"\x01DP\0",
            b"\x01E\0\0\0\0\0",
            b"\x01S",
            b"\x021",
            b"\x022",
            b"\x02T",
            b"\x02CSELECT 1\0",
            b"\x02ZI",
        ],
        &[b"\x01Ps\0a\0\0\0", b"\x01H", b"\x021", b"\x01DSs\0", b"\x01S", b"\x02n", b"\x02ZI"],
        &[
            b"\x01B\0held\0\0\0\0\0\0\0",
            b"\x01E\0\0\0\0\0",
            b"\x01S",
            b"\x022",
            b"\x02G",
            b"\x01dx",
            b"\x01c",
            b"\x01S",
            b"\x02CCOPY 1\0",
            b"\x02ZI",
        ],
        &[b"\x01CSs\0", b"\x01S", b"\x023", b"\x02ZI", b"\x05", b"\x01Qa\0", b"\x04"],
        &[
            b"\x01F\0\0\0\xb1\0\0\0\x01\0\0\0\x01x\0\0",
            b"\x02V",
            b"\x02ZI",
            b"\x01Qa\0",
            b"\x02ES\0C22012\0\0",
            b"\x02ZI",
            b"\x06",
        ],
    ];
    let order = |order: &&[u8]| [&[order.len() as u8], *order].concat();
    dialogues.iter().map(|orders| orders.iter().flat_map(order).collect()).collect()
}

/// Interprets the input as steps: a length, then an action and its bytes.
pub fn run(input: &[u8]) -> Shape {
    let mut scene = Scene::new();
    let mut rest = input;
    while let Some((len, behind)) = rest.split_first() {
        let len = usize::from(*len).min(ORDER_BYTES_MAX).min(behind.len());
        let (order, behind) = behind.split_at(len);
        rest = behind;
        if let Some((what, bytes)) = order.split_first() {
            scene.obey(*what, bytes);
        }
    }
    scene.end()
}

struct Scene {
    reel: CaptureHarness,
    marks: [ClientMark; 2],
    /// Index of the client that the steps apply to.
    who: usize,
    now: u64,
    /// Kind of the last event of each session.
    sessions: Vec<(String, Kind)>,
    shapes: Vec<(Kind, bool, bool, usize)>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            reel: CaptureHarness::new(1 << 20, 64),
            marks: [ClientMark::default(), ClientMark::default()],
            who: 0,
            now: 0,
            sessions: Vec::new(),
            shapes: Vec::new(),
        };
        scene.enter(true);
        scene
    }

    fn enter(&mut self, is_new: bool) {
        let entry = SessionStart {
            is_new,
            pool: 7,
            settings: [(&b"TimeZone"[..], &b"UTC"[..])].into_iter(),
            statements: [(&b"held"[..], 3, &b"select 'held'\0\0\0"[..])].into_iter(),
            unnamed: b"",
        };
        self.reel.buffer().start_session(&mut self.marks[self.who], entry, self.now);
    }

    fn obey(&mut self, what: u8, bytes: &[u8]) {
        self.now += 1000;
        let Self { reel, marks, who, now, .. } = self;
        let (mark, now) = (&mut marks[*who], *now);
        let is_in = reel.buffer().is_recording(mark);
        match what {
            0 if is_in => reel.buffer().record_frontend(mark, bytes, now),
            1 if is_in => {
                let Some((tag, body)) = bytes.split_first() else { return };
                let len = (body.len() as u32 + 4).to_be_bytes();
                reel.buffer().record_frontend(mark, &[&[*tag][..], &len, body].concat(), now);
            }
            2 if is_in => {
                let Some((tag, body)) = bytes.split_first() else { return };
                let kind = Backend::ALL.iter().find(|kind| kind.tag().0 == *tag);
                if let Some(kind) = kind {
                    reel.buffer().record_backend(mark, *kind, body, now);
                }
            }
            3 if is_in => reel.buffer().record_server_assigned(mark, now),
            4 => {
                reel.buffer().record_disconnect(mark, now);
                *mark = ClientMark::default();
            }
            5 if !is_in => self.enter(false),
            6 => self.who = 1 - *who,
            7 => {
                // As when the buffer overflowed.
                reel.drop_unread();
                return self.read(true);
            }
            8 if is_in => reel.buffer().record_cancel(mark, now),
            _ => return,
        }
        self.read(what == 4 || what == 5);
    }

    /// Reads the buffered events. Executions may lack an outcome only if `may_be_open`.
    fn read(&mut self, may_be_open: bool) {
        let before = self.reel.tally();
        let mut events = Vec::new();
        self.reel.read(&mut |event| events.push(event.clone()));
        let open = events.iter().filter(|event| is_open(event)).count() as u64;
        let counted = self.reel.tally().cut_short - before.cut_short;
        assert!(may_be_open || open == 0, "{events:?}");
        let has_left = events.iter().any(|event| event.action.kind() == Kind::Disconnect);
        assert!(open <= counted || has_left, "{open} open, {counted} counted: {events:?}");
        for event in &events {
            self.see(event);
        }
    }

    fn see(&mut self, event: &Event) {
        let kind = event.action.kind();
        let known = self.sessions.iter_mut().find(|(session, _)| **session == *event.session);
        match known {
            None => {
                assert_eq!(kind, Kind::Connect, "{event:?}");
                self.sessions.push((event.session.to_string(), kind));
            }
            Some((_, last)) => {
                assert_ne!(*last, Kind::Disconnect, "{event:?}");
                assert_ne!(kind, Kind::Connect, "{event:?}");
                *last = kind;
            }
        }
        let wire = event.wire.as_deref();
        assert!(wire.is_some(), "{event:?}");
        let mut messages =
            wire.and_then(|wire| wire.messages.as_ref()).map_or(&[][..], |it| it.as_bytes());
        let mut count = 0;
        while let Some((_, rest)) = ClientMessage::split_first(messages) {
            (messages, count) = (rest, count + 1);
        }
        assert!(messages.is_empty(), "{event:?}");
        let has_rows = wire.is_some_and(|wire| wire.copy_in.is_some());
        self.shapes.push((kind, event.outcome.failed(), has_rows, count.min(9)));
    }

    fn end(mut self) -> Shape {
        let mut events = Vec::new();
        let tally = self.reel.tally();
        self.reel.finish(&mut |event| events.push(event.clone()));
        events.iter().for_each(|event| self.see(event));
        let counts = [tally.gaps, tally.cut_short, tally.skipped_by_server, tally.malformed];
        Shape::each(&self.shapes).and(counts.map(|count| count.min(3)))
    }
}

/// Whether the event is an execution whose outcome is unknown.
fn is_open(event: &Event) -> bool {
    event.action.kind().is_execution()
        && event.outcome.duration_us.is_none()
        && !event.outcome.failed()
        && event.source == howdah_traffic::Source::Wire
}
