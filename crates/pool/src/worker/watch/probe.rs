//! [`Probe`]: asks a server what it is, over a connection that is kept.

use std::{io, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Received, Stream, Token, Waker};
use howdah_wire::{Frame, backend::Message, frontend::encode};

use crate::{
    ServerId,
    cluster::{Seen, end_of_wal},
    worker::{
        directory::PoolEntry,
        entrance::{Entrance, Progress, ServerEntrance},
        front::Front,
    },
};

/// What is asked. The timeline is that of the file which is written now: the control file's is the last
/// checkpoint's, which comes some time after a promotion. Who may not see statistics of others sees of a
/// WAL receiver that it is there, which is enough.
macro_rules! question {
    () => {
        "SELECT pg_catalog.pg_is_in_recovery(), \
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN '0' ELSE pg_catalog.substr(\
         pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
         pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() \
         THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, '0/0'), \
         pg_catalog.pg_postmaster_start_time(), \
         (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_wal_receiver WHERE pid IS NOT NULL)"
    };
}

const QUESTION: &str = question!();

/// The same where clients read what they wrote. Behind it: where the next record would be, and how long pages
/// of WAL are; of a standby the timeline of what it receives, which only members of `pg_read_all_stats` see, or
/// else that of the last it has made sure of, which is a while behind after a promotion.
const QUESTION_OF_MARKS: &str = concat!(
    question!(),
    ", CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
     pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0') END, \
     pg_catalog.current_setting('wal_block_size'), \
     CASE WHEN pg_catalog.pg_is_in_recovery() THEN COALESCE(\
     (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), \
     (SELECT GREATEST(timeline_id, min_recovery_end_timeline) \
     FROM pg_catalog.pg_control_checkpoint(), pg_catalog.pg_control_recovery())) END"
);

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
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    read: Vec<u8>,
    /// By whose login it was made, so that other settings make another.
    entry: Arc<PoolEntry>,
}

impl Probe {
    /// # Errors
    ///
    /// The process is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { poller: Poller::new()?, line: None })
    }

    /// Has the next question go over another connection.
    pub(super) fn forget(&mut self) {
        self.line = None;
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
                    if line.take(&mut Vec::new()).is_err() {
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
        let question = if for_marks { QUESTION_OF_MARKS } else { QUESTION };
        let kept = self.line.take().filter(|line| Arc::ptr_eq(&line.entry, entry));
        if let Some(mut line) = kept {
            // A connection that is gone says only that the one it led to is.
            if let Ok(seen) = line.ask(&mut self.poller, question, deadline) {
                self.line = Some(line);
                return Ok(seen);
            }
        }
        let mut line = log_in(&mut self.poller, entry, front, deadline)?;
        let seen = line.ask(&mut self.poller, question, deadline)?;
        self.line = Some(line);
        Ok(seen)
    }
}

fn log_in(
    poller: &mut Poller,
    entry: &Arc<PoolEntry>,
    front: &Front,
    deadline: Instant,
) -> Result<Line, ProbeError> {
    let name = ServerId::new(0, 0); // Of no core.
    let mut entrance = Entrance::server(ServerEntrance::new(name, Arc::clone(entry)));
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
                return Ok(Line { stream, read, entry });
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
    ) -> Result<Seen, ProbeError> {
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
        let mut row = Vec::new();
        loop {
            if self.take(&mut row)? {
                return seen(&row);
            }
            let mut buffer = [0; 4096];
            match self.stream.receive(&mut buffer)? {
                Received::Closed => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Received::Drained(0) => wait(poller, deadline)?,
                Received::Bytes(some) | Received::Drained(some) => {
                    self.read.extend_from_slice(&buffer[..some]);
                }
            }
        }
    }

    /// Takes the messages that are there. Gives whether the answer is whole.
    fn take(&mut self, row: &mut Vec<String>) -> Result<bool, ProbeError> {
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
                    *row = cells.map(text).collect();
                }
                Message::ErrorResponse(error) => {
                    let text = String::from_utf8_lossy(error.message()).into_owned();
                    return Err(match error.sqlstate().starts_with(b"57P") {
                        true => ProbeError::Unreachable(text),
                        false => ProbeError::Refused(text),
                    });
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

fn seen(row: &[String]) -> Result<Seen, ProbeError> {
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
