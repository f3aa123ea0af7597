//! [`Importer`]: bytes in, events out.

use std::collections::VecDeque;

use howdah_traffic::{Event, EventRef, Timestamp};

use crate::{
    buffer::Buffer,
    clock::{Assumption, Clock},
    detect::{SAMPLE_BYTES, Wanted},
    error::ImportError,
    frame::Frames,
    input::Issue,
    intern::Interner,
    language::Language,
    options::{Format, Options, OptionsError},
    reader::{Closing, Framer, Reader, Step},
    record::Record,
    summary::{Origin, Place, Prefix, Reason, Summary, shorten},
    tracker::{EventSink, Memo, Taken, Tracker},
};

/// Turns a PostgreSQL server log into events.
///
/// Feed it the bytes of one file after another, in the order the server wrote them, in pieces of any
/// size; take out events after each piece. It does no I/O and knows no clock: whoever reads a pipe
/// says with [`idle`](Self::idle) that nothing came for a while.
///
/// ```text
/// begin_file ─► feed* ─► (idle) ─► feed* ─► end_file ─► begin_file ─► … ─► finish
///                 └──────── poll_event until None, after each call ──────────┘
/// ```
///
/// # Order
///
/// Events of one session come in the order of their actions. Events of different sessions come in the
/// order in which they became known: near to that of time with [`Emit::Start`](crate::Emit::Start),
/// that of their ends with [`Emit::End`](crate::Emit::End).
///
/// # Memory
///
/// Bounded by the longest record ([`Options::max_record_bytes`]), by the piece that is fed, whose events
/// wait in a queue, and by about 65 thousand sessions at a time; the one that was silent longest
/// is taken to have ended when there are more.
#[derive(Debug)]
pub struct Importer {
    wanted: Wanted,
    clock: Clock,
    buffer: Buffer,
    reader: Option<Reader>,
    /// Frames pieces as the reader does.
    framer: Option<Framer>,
    framer_number: u64,
    /// The version of the reader that it was made for.
    framed_for: u32,
    /// Of the piece that was fed last: kept for its memory.
    frames: Frames,
    /// What is known of the owners of its records.
    memos: Vec<Memo>,
    /// Texts that the reader had to unescape.
    scratch: Vec<u8>,
    /// The reader of the file before, for a file that is too short to tell by itself.
    before: Option<Reader>,
    tracker: Tracker,
    summary: Summary,
    kept: Kept,
    file: String,
    /// What ended the file before, when nobody could be told yet.
    failed: Option<ImportError>,
    /// The record that told of another language, until a known message proves it to be English.
    translated: Option<(u64, String)>,
}

/// Events that wait for whoever takes them out.
#[derive(Debug, Default)]
struct Kept {
    queue: VecDeque<Event>,
    interner: Interner,
}

impl EventSink for Kept {
    fn event(&mut self, event: &EventRef<'_>) {
        self.queue.push_back(event.to_event(&mut |text| self.interner.text(text)));
    }
}

impl Importer {
    /// An importer that has seen nothing.
    ///
    /// # Errors
    ///
    /// The prefix has no time or is not one, or the time zone is not known.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        let Options { format, prefix, timezone, emit, max_record_bytes } = options;
        let mut buffer = Buffer::default();
        buffer.begin();
        Ok(Self {
            wanted: Wanted::new(format, prefix.as_deref(), max_record_bytes)?,
            clock: Clock::new(timezone.as_deref())?,
            buffer,
            reader: None,
            framer: None,
            framer_number: 0,
            framed_for: 0,
            frames: Frames::default(),
            memos: Vec::new(),
            scratch: Vec::new(),
            before: None,
            tracker: Tracker::new(emit),
            summary: Summary::default(),
            kept: Kept::default(),
            file: "input".to_owned(),
            failed: None,
            translated: None,
        })
    }

    /// Starts a file; `name` is what problems in it are reported under. Sessions go on over files, as
    /// they do when the server rotates its log. Format and prefix are found anew. A file before that was
    /// not ended is ended now; had that failed, the next call that can fail says so.
    pub fn begin_file(&mut self, name: &str) {
        let ended = self.end_file();
        self.failed = ended.err();
        name.clone_into(&mut self.file);
        self.summary.files += 1;
    }

    /// Expects another prefix of stderr logs from now on.
    ///
    /// # Errors
    ///
    /// It has no time or is not one.
    pub(crate) fn expect_prefix(&mut self, prefix: &str) -> Result<(), OptionsError> {
        self.wanted.expect_prefix(prefix)
    }

    /// Counts what was met around the log.
    pub(crate) fn note(&mut self, met: &Issue) {
        let Issue { reason, count, line, excerpt } = met;
        let place = Place { file: &self.file, line: *line };
        self.summary.note(*reason, place, excerpt.as_bytes());
        self.summary.note_more(*reason, count - 1);
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    ///
    /// The input is hopeless: not a log, or in a shape that needs other options.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.keeping(|importer, kept| importer.feed_to(bytes, kept))
    }

    /// Does something that gives events, which are kept until somebody takes them out.
    fn keeping<T>(&mut self, act: impl FnOnce(&mut Self, &mut Kept) -> T) -> T {
        let mut kept = std::mem::take(&mut self.kept);
        let result = act(self, &mut kept);
        self.kept = kept;
        result
    }

    /// The same as [`feed`](Self::feed), with somebody who looks at the events at once.
    pub(crate) fn feed_to(
        &mut self,
        bytes: &[u8],
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut frames = std::mem::take(&mut self.frames);
            match &mut self.framer {
                Some(framer) => framer.frames(piece, &mut frames),
                None => frames.clear(),
            }
            let result = self.take_piece(piece, &frames, visit);
            self.frames = frames;
            result?;
        }
        Ok(())
    }

    /// Takes the next bytes of the file, some of whose records were framed. What lies between them goes
    /// to the reader, and so do frames that turn out not to fit what was before them.
    pub(crate) fn take_piece(
        &mut self,
        piece: &[u8],
        frames: &Frames,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        self.summary.bytes += piece.len() as u64;
        let mut memos = std::mem::take(&mut self.memos);
        memos.clear();
        memos.resize(frames.owners.len(), Memo::default());
        let result = self.take_frames(piece, frames, &mut memos, visit);
        self.memos = memos;
        result
    }

    /// The same, with what there is to know of the frames' owners.
    fn take_frames(
        &mut self,
        piece: &[u8],
        frames: &Frames,
        memos: &mut [Memo],
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        let mut at = 0;
        // The buffer's line number is that of the byte `lined`, before which are `newlines`.
        let (mut lined, mut newlines) = (0, 0);
        // Nothing is held, and the frames are those of the reader, until bytes go to it.
        let mut is_settled = false;
        for frame in &frames.frames {
            let (start, end) = (frame.start as usize, frame.end as usize);
            let owner = frame.owner as usize;
            let (Some(of), Some(memo)) = (frames.owners.get(owner), memos.get_mut(owner)) else {
                continue;
            };
            if start > at || !is_settled {
                if start > at || !self.buffer.bytes().is_empty() {
                    self.pass_lines(&piece[lined..at]);
                    self.buffer.push(&piece[at..start]);
                    self.advance(Closing::Idle, visit)?;
                    (at, lined, newlines) = (start, start, frame.newlines);
                }
                is_settled = self.is_fit(frames);
                if !is_settled {
                    break;
                }
            }
            self.buffer.pass(u64::from(frame.newlines - newlines));
            (lined, newlines) = (start, frame.newlines);
            let record = Record::of((frame, of), piece, &frames.scratch, frames.is_ascii);
            let place = Place { file: &self.file, line: self.buffer.line() };
            let doubtful = frames.with_names;
            let taken = self.tracker.take(&record, doubtful, memo, &mut self.summary, place, visit);
            if taken == Taken::Doubted {
                continue;
            }
            at = end;
            if let Some(assumption) = frame.assumption {
                note_assumption(Some(assumption), place, &piece[start..end], &mut self.summary);
            }
            if self.tracker.seems_translated() {
                if self.translated.is_none() {
                    self.translated = Some((place.line, shorten(&piece[start..end])));
                }
                self.check_language(LANGUAGE_RECORDS)?;
            }
        }
        self.pass_lines(&piece[lined..at]);
        self.feed_reader(&piece[at..], visit)
    }

    /// Whether frames can be taken as they are.
    fn is_fit(&self, frames: &Frames) -> bool {
        self.buffer.bytes().is_empty()
            && self.failed.is_none()
            && self.reader.as_ref().is_some_and(|reader| reader.version() == frames.version)
    }

    /// Counts the lines of what was framed. There is nothing of it when something is held.
    fn pass_lines(&mut self, passed: &[u8]) {
        if !passed.is_empty() {
            self.buffer.pass(memchr::memchr_iter(b'\n', passed).count() as u64);
        }
    }

    /// What frames the pieces that come next, if that can be told yet. It may be sent elsewhere.
    pub(crate) fn framer(&self) -> Option<&Framer> {
        self.framer.as_ref()
    }

    /// Changes whenever [`framer`](Self::framer) does.
    pub(crate) fn framer_number(&self) -> u64 {
        self.framer_number
    }

    /// Takes bytes that were not framed.
    fn feed_reader(&mut self, bytes: &[u8], visit: &mut dyn EventSink) -> Result<(), ImportError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.buffer.push(bytes);
        // Without a new line there is nothing more to tell the format from.
        let is_worth_it = self.reader.is_some()
            || memchr::memchr(b'\n', bytes).is_some()
            || self.buffer.bytes().len() >= SAMPLE_BYTES;
        if is_worth_it { self.advance(Closing::Open, visit) } else { Ok(()) }
    }

    /// Says that no input came for a while, so that a record which looks complete is taken to be. A stderr
    /// log shows the end of a record only by the beginning of the next.
    pub fn idle(&mut self) {
        self.keeping(|importer, kept| importer.idle_to(kept));
    }

    /// The same, with somebody who looks at the events at once.
    pub(crate) fn idle_to(&mut self, visit: &mut dyn EventSink) {
        // What is hopeless will still be so with the next bytes, and reported then.
        let _ = self.advance(Closing::Idle, visit);
    }

    /// Ends the file. What is left of an incomplete record is counted as cut short.
    ///
    /// # Errors
    ///
    /// As for [`feed`](Self::feed).
    pub fn end_file(&mut self) -> Result<(), ImportError> {
        self.keeping(|importer, kept| importer.end_file_to(kept))
    }

    /// The same, with somebody who looks at the events at once.
    pub(crate) fn end_file_to(&mut self, visit: &mut dyn EventSink) -> Result<(), ImportError> {
        let result = self.advance(Closing::End, visit);
        self.framer = None;
        self.buffer.begin();
        self.before = self.reader.take().or(self.before.take());
        result
    }

    /// Ends the input. Actions whose outcome never came are handed out without.
    ///
    /// # Errors
    ///
    /// As for [`feed`](Self::feed), or the log is translated and therefore tells nothing.
    pub fn finish(&mut self) -> Result<(), ImportError> {
        self.keeping(|importer, kept| importer.finish_to(kept))
    }

    /// The same, with somebody who looks at the events at once.
    pub(crate) fn finish_to(&mut self, visit: &mut dyn EventSink) -> Result<(), ImportError> {
        self.end_file_to(visit)?;
        let place = Place { file: &self.file, line: self.buffer.line() };
        self.tracker.finish(&mut self.summary, place, visit);
        self.check_language(0)
    }

    /// The next event, or `None` until there is more input.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.kept.queue.pop_front()
    }

    /// The newest time seen in the log.
    pub fn watermark(&self) -> Option<Timestamp> {
        self.tracker.watermark()
    }

    /// What was read so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Reads as many records as there are.
    fn advance(&mut self, closing: Closing, visit: &mut dyn EventSink) -> Result<(), ImportError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.reader.is_none() && !self.detect(closing)? {
            return Ok(());
        }
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let result = self.read(&mut reader, closing, visit);
        describe(&reader, &mut self.summary);
        if self.framer.is_none() || self.framed_for != reader.version() {
            self.framer = reader.framer(&self.clock);
            self.framer_number += 1;
            self.framed_for = reader.version();
        }
        self.reader = Some(reader);
        result
    }

    fn read(
        &mut self,
        reader: &mut Reader,
        closing: Closing,
        visit: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        loop {
            let input = self.buffer.bytes();
            let place = Place { file: &self.file, line: self.buffer.line_at(0) };
            self.scratch.clear();
            let len = match reader.step(input, closing, &self.tracker, &mut self.scratch) {
                Step::More => return Ok(()),
                Step::Skip { len } => len,
                Step::Junk { len, reason } => {
                    self.summary.note(reason, place, &input[..len]);
                    len
                }
                Step::Record { len } => {
                    self.take_record(reader, len, visit);
                    len
                }
            };
            self.buffer.consume(len);
            reader.consumed(len);
            self.check_language(LANGUAGE_RECORDS)?;
        }
    }

    /// Hands the record in the first `len` bytes to its session.
    fn take_record(&mut self, reader: &mut Reader, len: usize, visit: &mut dyn EventSink) {
        let input = &self.buffer.bytes()[..len];
        let place = Place { file: &self.file, line: self.buffer.line_at(0) };
        let intruders = reader.intruders();
        if intruders.count > 0 {
            let line = self.buffer.line_at(intruders.first);
            self.summary.note(
                Reason::NotARecord,
                Place { line, ..place },
                &input[intruders.first..],
            );
            self.summary.note_more(Reason::NotARecord, intruders.count - 1);
        }
        match reader.frame(input, &mut self.clock, &mut self.scratch) {
            Ok((frame, owner)) => {
                let record = Record::of((&frame, &owner), input, &self.scratch, false);
                let memo = &mut Memo::default();
                self.tracker.take(&record, false, memo, &mut self.summary, place, visit);
                if self.translated.is_none() && self.tracker.seems_translated() {
                    self.translated = Some((place.line, shorten(input)));
                }
                note_assumption(frame.assumption, place, input, &mut self.summary);
            }
            Err(reason) => {
                self.summary.note(reason, place, input);
                note_assumption(self.clock.take_assumption(), place, input, &mut self.summary);
                if reason == Reason::BadSeverity && self.translated.is_none() {
                    self.translated = Some((place.line, shorten(input)));
                }
            }
        }
    }

    /// Fails when a log of enough records has messages or severities in another language, and nothing in
    /// English.
    fn check_language(&self, records_min: u64) -> Result<(), ImportError> {
        let Some((line, excerpt)) = &self.translated else { return Ok(()) };
        let records = self.summary.records;
        let rejected = self.summary.count_of(Reason::BadSeverity);
        let is_foreign = self.tracker.seems_translated() || records == 0 && rejected > 0;
        if !is_foreign || records + rejected < records_min {
            return Ok(());
        }
        let (file, line, excerpt) = (self.file.clone(), *line, excerpt.clone());
        let language = Language::of_line(excerpt.as_bytes());
        Err(ImportError::Translated { file, line, excerpt, language })
    }

    /// Finds the reader for the file; false while there is too little of it.
    fn detect(&mut self, closing: Closing) -> Result<bool, ImportError> {
        let place = Place { file: &self.file, line: self.buffer.line_at(0) };
        if closing != Closing::End && b"\xef\xbb\xbf".starts_with(self.buffer.bytes()) {
            return Ok(false);
        }
        if self.buffer.bytes().starts_with(b"\xef\xbb\xbf") {
            self.buffer.consume(3);
        }
        let found = self.wanted.reader(self.buffer.bytes(), closing, place);
        self.reader = match (found, &self.before) {
            (Ok(Some(reader)), _) => Some(reader),
            (Ok(None), _) => None,
            (Err(error @ ImportError::UncertainPrefix { .. }), _) => return Err(error),
            (Err(_), Some(before)) => Some(before.restarted()),
            (Err(error), None) => return Err(error),
        };
        Ok(self.reader.is_some())
    }
}

/// Input is taken in pieces of this size, so that a huge slice does not become a huge copy.
const PIECE_BYTES: usize = 256 << 10;

/// Records after which a log must have shown that it is in English.
const LANGUAGE_RECORDS: u64 = 1000;

fn note_assumption(
    assumption: Option<Assumption>,
    place: Place<'_>,
    excerpt: &[u8],
    summary: &mut Summary,
) {
    let reason = match assumption {
        None => return,
        Some(Assumption::Unknown) => Reason::UnknownZone,
        Some(Assumption::Ambiguous) => Reason::AmbiguousZone,
    };
    summary.note(reason, place, excerpt);
}

/// Writes format and prefix into the summary.
fn describe(reader: &Reader, summary: &mut Summary) {
    summary.format = Some(match reader {
        Reader::Stderr(_) => Format::Stderr,
        Reader::Csv(_) => Format::Csv,
        Reader::Json(_) => Format::Json,
    });
    if let Reader::Stderr(reader) = reader {
        let prefix = reader.prefix();
        if summary.prefix.as_ref().is_some_and(|known| known.text == prefix.source()) {
            return;
        }
        let origin = if reader.is_guessed() { Origin::Guessed } else { Origin::Given };
        let confidence = prefix.confidence().cloned();
        summary.prefix = Some(Prefix { text: prefix.source().to_owned(), origin, confidence });
        summary.facts.sessions_merged |= !prefix.tells_sessions();
    }
}
