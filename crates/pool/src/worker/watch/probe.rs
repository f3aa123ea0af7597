//! [`Probe`]: asks a server what it is, over a connection that is kept.

use std::{io, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Received, Stream, Token, Waker};
use howdah_wire::{Frame, backend::Message, frontend::encode};

use crate::{
    ServerId,
    cluster::{Seen, end_of_wal},
    worker::{
        directory::PoolEntry,
        entrance::{PendingLogin, Progress, ServerEntrance},
        front::Front,
    },
};

/// What is asked. The timeline is that of the file which is written now: the control file's is the last
/// checkpoint's, which comes some time after a promotion. Who may not see statistics of others sees of a
/// WAL receiver that it is there, which is enough; the same of those who stream from a primary.
macro_rules! question {
    () => {
        "SELECT pg_catalog.pg_is_in_recovery(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN '0' ELSE pg_catalog.substr(\
         pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
         pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, '0/0'), \
         pg_catalog.pg_postmaster_start_time(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_wal_receiver WHERE pid IS NOT NULL) \
         ELSE (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication) END"
    };
}

/// The same where clients read what they wrote. Behind it: where the next record would be, and how long pages
/// of WAL are; of a standby the timeline of what it receives, which only members of `pg_read_all_stats` see.
macro_rules! question_of_marks {
    ($otherwise:literal) => {
        concat!(
            question!(),
            ", CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
             pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0') END, \
             pg_catalog.current_setting('wal_block_size'), \
             CASE WHEN pg_catalog.pg_is_in_recovery() THEN COALESCE(\
             (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver)",
            $otherwise,
            ") END"
        )
    };
}

/// From what says most to what says least: where one is refused, the next is asked. The first knows the timeline of
/// a standby also by the control file, which says the last that it has made sure of, a while behind after a
/// promotion. The right to read that can be taken away, which is seen before any of the statement is run: a CASE
/// would not help. A standby whose timeline is not known has replayed nothing, as far as anybody knows.
const QUESTIONS: [&str; 3] = [
    question_of_marks!(
        ", (SELECT GREATEST(timeline_id, min_recovery_end_timeline) \
         FROM pg_catalog.pg_control_checkpoint(), pg_catalog.pg_control_recovery())"
    ),
    question_of_marks!(""),
    question!(),
];

/// Asked once on each connection, for it stays what it is while the postmaster lives.
const QUESTION_OF_SYSTEM: &str = "SELECT system_identifier FROM pg_catalog.pg_control_system()";

/// Longest message of an answer.
const MESSAGE_BYTES_MAX: u32 = 64 << 10;

/// Why a server did not say what it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// It is not there, or takes nobody: its fault.
    #[error("{0}")]
    Unreachable(String),
    /// It does not let us in, or refuses the question: it is there all the same.
    #[error("{0}")]
    Refused(String),
    #[error("nobody is known by whose name it could be asked")]
    NoUser,
}

impl From<io::Error> for ProbeError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// A connection for questions, if there is one.
#[derive(Debug)]
pub(super) struct Probe {
    poller: Poller,
    line: Option<Line>,
    /// What was refused, if it was not told yet, and whether anything was.
    lack: Option<String>,
    lacks: bool,
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    read: Vec<u8>,
    /// By whose login it was made, so that other settings make another.
    entry: Arc<PoolEntry>,
    /// `None` until it was asked for, `Some(None)` if it is not told.
    system: Option<Option<i64>>,
    /// Which of the questions are not asked any more: as many, from the front.
    forbidden: usize,
}

/// What came in answer to a question.
#[derive(Debug, Default)]
struct Answer {
    row: Vec<String>,
    refused: Option<Refused>,
}

/// Why a question was not answered: by a server that goes on.
#[derive(Debug)]
struct Refused {
    /// It would be, whenever it is asked.
    for_good: bool,
    text: String,
}

impl Probe {
    /// # Errors
    ///
    /// The process is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { poller: Poller::new()?, line: None, lack: None, lacks: false })
    }

    /// Has the next question go over another connection.
    pub(super) fn forget(&mut self) {
        self.line = None;
    }

    /// What a server does not let us know that clients need who read what they wrote; told once.
    pub(super) fn take_lack(&mut self) -> Option<String> {
        self.lack.take()
    }

    /// Ends [`Probe::rest`] early.
    pub(super) fn waker(&self) -> io::Result<Waker> {
        self.poller.waker()
    }

    /// Waits until then, or until something happens. Gives whether the connection has ended: that the
    /// server was started anew would else be seen at the next question only.
    pub(super) fn rest(&mut self, until: Instant) -> bool {
        if self.poller.wait(Some(until), &mut Vec::new()).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(1)); // Then there is no hurry.
        }
        let Some(line) = &mut self.line else { return false };
        let mut buffer = [0; 4096];
        loop {
            match line.stream.receive(&mut buffer) {
                Ok(Received::Drained(0)) => return false,
                Ok(Received::Bytes(some) | Received::Drained(some)) => {
                    line.read.extend_from_slice(&buffer[..some]);
                    let mut answer = Answer::default();
                    if line.take(&mut answer).is_err() || answer.refused.is_some() {
                        break; // It says goodbye.
                    }
                }
                Ok(Received::Closed) | Err(_) => break,
            }
        }
        self.line = None;
        true
    }

    /// Asks a server; logs in before where that is due.
    ///
    /// # Errors
    ///
    /// It did not answer.
    pub(super) fn ask(
        &mut self,
        entry: &Arc<PoolEntry>,
        front: &Front,
        deadline: Instant,
        for_marks: bool,
    ) -> Result<Seen, ProbeError> {
        let kept = self.line.take().filter(|line| Arc::ptr_eq(&line.entry, entry));
        if let Some(mut line) = kept {
            // A connection that is gone says only that the one it led to is.
            if let Ok(seen) = self.ask_over(&mut line, for_marks, deadline) {
                self.line = Some(line);
                return Ok(seen);
            }
        }
        let mut line = log_in(&mut self.poller, entry, front, deadline)?;
        let seen = self.ask_over(&mut line, for_marks, deadline)?;
        self.line = Some(line);
        Ok(seen)
    }

    fn ask_over(
        &mut self,
        line: &mut Line,
        for_marks: bool,
        deadline: Instant,
    ) -> Result<Seen, ProbeError> {
        let system = match line.system {
            Some(system) => system,
            None => {
                let answer = line.ask(&mut self.poller, QUESTION_OF_SYSTEM, deadline)?;
                let told = answer.row.first().and_then(|cell| cell.parse().ok());
                *line.system.insert(told)
            }
        };
        let plain = QUESTIONS.len() - 1;
        let mut at = if for_marks { line.forbidden } else { plain };
        loop {
            let answer = line.ask(&mut self.poller, QUESTIONS[at], deadline)?;
            match answer.refused {
                None => return seen(&answer.row, system),
                Some(refused) if at == plain => return Err(ProbeError::Refused(refused.text)),
                Some(refused) => {
                    at += 1;
                    if refused.for_good {
                        line.forbidden = at;
                    }
                    if !std::mem::replace(&mut self.lacks, true) {
                        self.lack = Some(refused.text);
                    }
                }
            }
        }
    }
}

fn log_in(
    poller: &mut Poller,
    entry: &Arc<PoolEntry>,
    front: &Front,
    deadline: Instant,
) -> Result<Line, ProbeError> {
    let name = ServerId::new(0, 0); // Of no core.
    let mut entrance = PendingLogin::server(ServerEntrance::new(name, Arc::clone(entry)));
    loop {
        match entrance.advance(front, true) {
            Progress::Server(_, ready, _) => {
                let stream = entrance
                    .stream
                    .take()
                    .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
                if entrance.watched.is_none() {
                    poller.add_for(&stream, Token(0), Interest::Both)?;
                }
                let (read, entry) = (ready.received, Arc::clone(entry));
                return Ok(Line { stream, read, entry, system: None, forbidden: 0 });
            }
            Progress::NoServer(_, failure) => {
                let is_refusal =
                    !matches!(&failure.sqlstate, b"08006" | b"57P01" | b"57P02" | b"57P03");
                let text = failure.message;
                return Err(match is_refusal {
                    true => ProbeError::Refused(text),
                    false => ProbeError::Unreachable(text),
                });
            }
            Progress::Waiting => {}
            _ => return Err(ProbeError::Unreachable("it says what it should not".to_owned())),
        }
        if let Some(stream) = entrance.stream.as_ref().filter(|_| entrance.watched.is_none()) {
            poller.add_for(stream, Token(0), Interest::Both)?;
            entrance.watched = Some(Interest::Both);
        }
        wait(poller, deadline)?;
    }
}

/// Waits until the stream may be ready.
fn wait(poller: &mut Poller, deadline: Instant) -> Result<(), ProbeError> {
    if Instant::now() >= deadline {
        return Err(ProbeError::Unreachable("it does not answer in time".to_owned()));
    }
    poller.wait(Some(deadline), &mut Vec::new())?;
    Ok(())
}

impl Line {
    fn ask(
        &mut self,
        poller: &mut Poller,
        text: &str,
        deadline: Instant,
    ) -> Result<Answer, ProbeError> {
        let mut question = Vec::new();
        let no_question = |_| ProbeError::Refused("the question cannot be asked".to_owned());
        encode::query(&mut question, text.as_bytes()).map_err(no_question)?;
        let mut sent = 0;
        while sent < question.len() {
            let taken = self.stream.send(&question[sent..])?;
            sent += taken;
            if taken == 0 {
                wait(poller, deadline)?;
            }
        }
        let mut answer = Answer::default();
        loop {
            if self.take(&mut answer)? {
                return Ok(answer);
            }
            let mut buffer = [0; 4096];
            match self.stream.receive(&mut buffer)? {
                Received::Closed => {
                    return Err(match answer.refused {
                        Some(refused) => ProbeError::Refused(refused.text),
                        None => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
                    });
                }
                Received::Drained(0) => wait(poller, deadline)?,
                Received::Bytes(some) | Received::Drained(some) => {
                    self.read.extend_from_slice(&buffer[..some]);
                }
            }
        }
    }

    /// Takes the messages that are there. Gives whether the answer is whole.
    fn take(&mut self, answer: &mut Answer) -> Result<bool, ProbeError> {
        let malformed = || ProbeError::Unreachable("what it says is no message".to_owned());
        let read = std::mem::take(&mut self.read);
        let mut rest = &read[..];
        while let Some((frame, behind)) =
            Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| malformed())?
        {
            rest = behind;
            match Message::parse(frame).map_err(|_| malformed())? {
                Message::DataRow(cells) => {
                    let text = |cell: Option<&[u8]>| {
                        String::from_utf8_lossy(cell.unwrap_or_default()).into_owned()
                    };
                    answer.row = cells.map(text).collect();
                }
                Message::ErrorResponse(error) => {
                    let text = String::from_utf8_lossy(error.message()).into_owned();
                    if error.sqlstate().starts_with(b"57P") {
                        return Err(ProbeError::Unreachable(text));
                    }
                    // It may not be asked, or there is no such thing there.
                    let for_good = error.sqlstate().starts_with(b"42");
                    answer.refused = Some(Refused { for_good, text });
                }
                Message::ReadyForQuery(_) => {
                    self.read = rest.to_vec();
                    return Ok(true);
                }
                _ => {}
            }
        }
        self.read = rest.to_vec();
        Ok(false)
    }
}

fn seen(row: &[String], system: Option<i64>) -> Result<Seen, ProbeError> {
    let read = || {
        let ([recovery, timeline, lsn, started, receivers], marks) = row.split_first_chunk()?;
        let is_in_recovery = recovery == "t";
        let mut seen = Seen {
            is_in_recovery,
            timeline: u32::from_str_radix(timeline, 16).ok()?,
            // A standby that has replayed nothing yet does not know.
            lsn: lsn.parse().unwrap_or(0),
            inserted: None,
            started: started.clone(),
            streams: receivers != "0",
            system,
        };
        match marks {
            [] => {}
            [_, _, timeline] if is_in_recovery => seen.timeline = timeline.parse().unwrap_or(0),
            [next, page_bytes, _] => {
                seen.inserted = Some(end_of_wal(next.parse().ok()?, page_bytes.parse().ok()?));
            }
            _ => return None,
        }
        Some(seen)
    };
    read().ok_or_else(|| ProbeError::Refused(format!("the answer is not understood: {row:?}")))
}

#[test]
fn an_answer_is_read() {
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let seen = |row: &[String]| seen(row, Some(7));
    let primary = ["f", "0000000A", "50331968", "2026-01-01 00:00:00+00", "0"];
    let read = seen(&row(&primary)).unwrap();
    assert_eq!((read.timeline, read.lsn, read.inserted), (10, 50_331_968, None));
    assert!(!read.is_in_recovery && !read.streams);
    let standby = ["t", "0", "", "x", "1"];
    let read = seen(&row(&standby)).unwrap();
    assert!(read.is_in_recovery && read.streams && read.timeline == 0);
    // With what has to be known by who reads what it wrote.
    let read = seen(&row(&[&primary[..], &["50331688", "8192", ""]].concat())).unwrap();
    assert_eq!((read.timeline, read.inserted), (10, Some(50_331_648)), "a page without a record");
    let read = seen(&row(&[&standby[..], &["", "8192", "3"]].concat())).unwrap();
    assert_eq!((read.timeline, read.inserted), (3, None));
    assert!(seen(&row(&["f", "x", "1", "", "0"])).is_err() && seen(&[]).is_err());
    assert!(seen(&row(&[&primary[..], &["x", "8192", ""]].concat())).is_err());
}
