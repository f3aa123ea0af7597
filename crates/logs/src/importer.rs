//! The [`Importer`], which converts the bytes of a log to events.

mod buffer;

use std::collections::VecDeque;

use howdah_log_input::{InputState, Issue, shorten};
use howdah_traffic::{Event, EventRef, Timestamp};

use self::buffer::InputBuffer;
use crate::{
    clock::{Assumption, LogClock},
    collections::intern::Interner,
    error::{ImportError, OptionsError},
    formats::{
        detector::{FormatDetector, SAMPLE_BYTES},
        input_item::InputItem,
        reader::{Framer, LogReader},
    },
    language::Language,
    options::ImportOptions,
    prefix::{LogLinePrefix, PrefixOrigin},
    record::{LogRecord, frame::ChunkFrames},
    server_log_format::ServerLogFormat,
    summary::{ImportSummary, LogPosition, ProblemReason},
    tracker::{EventSink, RecordHandling, SessionMemo, Tracker},
};

/// A converter from a PostgreSQL server log to events.
///
/// Feed it the bytes of one file after another, in the order the server wrote them, in chunks of
/// any size; poll the events after each chunk. The importer does no I/O and has no clock: a caller
/// that reads a pipe calls [`idle`](Self::idle) when no data has arrived for a while.
///
/// ```text
/// start_file ─► feed* ─► (idle) ─► feed* ─► finish_file ─► start_file ─► … ─► finish
///                 └──────── poll_event until None, after each call ──────────┘
/// ```
///
/// # Order
///
/// Events of one session are emitted in the order of their actions. Events of different sessions
/// are emitted in the order in which they became known: with [`Emit::Start`](crate::Emit::Start)
/// nearly in the order in which they started, if the log shows actions at their start, and with
/// [`Emit::End`](crate::Emit::End) nearly in the order in which they ended.
///
/// # Memory
///
/// Memory is bounded by the longest record ([`ImportOptions::max_record_bytes`]), by the last
/// chunk, whose events wait in a queue, and by 65,536 open sessions. If there are more, the quarter
/// of them that has been silent longest is assumed to have ended.
#[derive(Debug)]
pub struct Importer {
    detector: FormatDetector,
    clock: LogClock,
    buffer: InputBuffer,
    reader: Option<LogReader>,
    /// Frames chunks with the reader's settings.
    framer: Option<Framer>,
    framer_number: u64,
    /// Version of the reader for which the framer was built.
    framed_version: u32,
    /// Frames of the last chunk, reused to keep their memory.
    frames: ChunkFrames,
    /// Cached lookups of the sessions in a chunk.
    memos: Vec<SessionMemo>,
    /// Texts that the reader unescaped.
    scratch: Vec<u8>,
    /// The reader of the last file that had one, for files whose format cannot be detected.
    previous_reader: Option<LogReader>,
    tracker: Tracker,
    summary: ImportSummary,
    queue: EventQueue,
    file: String,
    /// An error that a later call returns, because [`start_file`](Self::start_file) and
    /// [`idle`](Self::idle) cannot return one.
    pending_error: Option<ImportError>,
    /// Line number and excerpt of the first record that seems to be in another language.
    translated: Option<(u64, String)>,
}

/// Events that wait to be polled.
#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<Event>,
    interner: Interner,
}

impl EventSink for EventQueue {
    fn event(&mut self, event: &EventRef<'_>) {
        self.events.push_back(event.to_event(&mut |text| self.interner.text(text)));
    }
}

impl Importer {
    /// Creates an importer.
    ///
    /// # Errors
    ///
    /// The prefix is not valid or has no time, or the time zone is not known.
    pub fn new(options: ImportOptions) -> Result<Self, OptionsError> {
        let ImportOptions { format, prefix, timezone, emit, max_record_bytes } = options;
        let mut buffer = InputBuffer::default();
        buffer.start_file();
        Ok(Self {
            detector: FormatDetector::new(format, prefix.as_deref(), max_record_bytes)?,
            clock: LogClock::new(timezone.as_deref())?,
            buffer,
            reader: None,
            framer: None,
            framer_number: 0,
            framed_version: 0,
            frames: ChunkFrames::default(),
            memos: Vec::new(),
            scratch: Vec::new(),
            previous_reader: None,
            tracker: Tracker::new(emit),
            summary: ImportSummary::default(),
            queue: EventQueue::default(),
            file: "input".to_owned(),
            pending_error: None,
            translated: None,
        })
    }

    /// Starts a file; problems in it are reported under `name`. Sessions continue across files, as
    /// they do when the server rotates its log. Format and prefix are detected again unless the
    /// options give them. If the previous file was not finished, it is finished now; if that fails,
    /// a later call returns the error.
    pub fn start_file(&mut self, name: &str) {
        let result = self.finish_file();
        self.pending_error = result.err();
        name.clone_into(&mut self.file);
        self.summary.files += 1;
    }

    /// Sets the prefix of the stderr logs that follow.
    ///
    /// # Errors
    ///
    /// The prefix is not valid or has no time.
    pub(crate) fn expect_prefix(&mut self, prefix: &str) -> Result<(), OptionsError> {
        self.detector.expect_prefix(prefix)
    }

    /// Counts a problem with the envelopes around the log.
    pub(crate) fn count_issue(&mut self, issue: &Issue) {
        let Issue { reason, count, line, excerpt } = issue;
        let position = LogPosition { file: &self.file, line: *line };
        let reason = ProblemReason::from(*reason);
        self.summary.add_problem(reason, position, excerpt.as_bytes());
        self.summary.add_repeats(reason, count - 1);
    }

    /// Reads the next bytes of the file.
    ///
    /// # Errors
    ///
    /// The input is unusable: not a log, in another language, or in a format that needs other
    /// options; or the previous file was unusable, and no call has returned its error yet.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.with_queue(|importer, queue| importer.feed_to(bytes, queue))
    }

    /// Runs `operation` with the event queue as its sink.
    fn with_queue<T>(&mut self, operation: impl FnOnce(&mut Self, &mut EventQueue) -> T) -> T {
        let mut queue = std::mem::take(&mut self.queue);
        let result = operation(self, &mut queue);
        self.queue = queue;
        result
    }

    /// Like [`feed`](Self::feed), with a sink.
    pub(crate) fn feed_to(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let mut frames = std::mem::take(&mut self.frames);
            match &mut self.framer {
                Some(framer) => framer.frames(chunk, &mut frames),
                None => frames.clear(),
            }
            let result = self.feed_chunk(chunk, &frames, sink);
            self.frames = frames;
            result?;
        }
        Ok(())
    }

    /// Reads the next bytes of the file, in which some records are already framed. Bytes between
    /// frames go to the reader, as do frames that cannot be used.
    pub(crate) fn feed_chunk(
        &mut self,
        chunk: &[u8],
        frames: &ChunkFrames,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        self.summary.bytes += chunk.len() as u64;
        let mut memos = std::mem::take(&mut self.memos);
        memos.clear();
        memos.resize(frames.sessions.len(), SessionMemo::default());
        let result = self.feed_frames(chunk, frames, &mut memos, sink);
        self.memos = memos;
        result
    }

    /// Feeds the frames of a chunk, with one [`SessionMemo`] for each session in it.
    fn feed_frames(
        &mut self,
        chunk: &[u8],
        frames: &ChunkFrames,
        memos: &mut [SessionMemo],
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        let mut at = 0;
        // The buffer's line number refers to byte `counted` of the chunk, which `newlines` newlines
        // precede.
        let (mut counted, mut newlines) = (0, 0);
        // Whether the frames fit the reader's current state; evaluated again after bytes went to
        // the reader.
        let mut frames_valid = false;
        for frame in &frames.frames {
            let (start, end) = (frame.start as usize, frame.end as usize);
            let session = frame.session as usize;
            let (Some(fields), Some(memo)) = (frames.sessions.get(session), memos.get_mut(session))
            else {
                continue;
            };
            if start > at || !frames_valid {
                // The reader must first process what lies before the frame. `Idle` makes it
                // complete a record there, which is right because a frame always starts a new
                // record.
                if start > at || !self.buffer.bytes().is_empty() {
                    self.skip_lines(&chunk[counted..at]);
                    self.buffer.push(&chunk[at..start]);
                    self.advance(InputState::Idle, sink)?;
                    (at, counted, newlines) = (start, start, frame.newlines);
                }
                frames_valid = self.accepts(frames);
                if !frames_valid {
                    break;
                }
            }
            self.buffer.skip_lines(u64::from(frame.newlines - newlines));
            (counted, newlines) = (start, frame.newlines);
            let record = LogRecord::new((frame, fields), chunk, &frames.scratch, frames.is_ascii);
            let position = LogPosition { file: &self.file, line: self.buffer.line() };
            let may_be_misread = frames.has_ambiguous_names;
            let handling = self.tracker.handle_record(
                &record,
                may_be_misread,
                memo,
                &mut self.summary,
                position,
                sink,
            );
            if handling == RecordHandling::Ambiguous {
                // Leave `at` unchanged, so that the reader gets the bytes of this record.
                continue;
            }
            at = end;
            if let Some(assumption) = frame.assumption {
                count_assumption(Some(assumption), position, &chunk[start..end], &mut self.summary);
            }
            if self.tracker.seems_translated() {
                if self.translated.is_none() {
                    self.translated = Some((position.line, shorten(&chunk[start..end])));
                }
                self.check_language(LANGUAGE_RECORDS)?;
            }
        }
        self.skip_lines(&chunk[counted..at]);
        self.feed_reader(&chunk[at..], sink)
    }

    /// Whether the frames are valid for the reader's current state.
    fn accepts(&self, frames: &ChunkFrames) -> bool {
        self.buffer.bytes().is_empty()
            && self.pending_error.is_none()
            && self.reader.as_ref().is_some_and(|reader| reader.version() == frames.version)
    }

    /// Counts the newlines of framed records. They bypass the buffer, which must be empty unless
    /// `passed` is.
    fn skip_lines(&mut self, passed: &[u8]) {
        if !passed.is_empty() {
            self.buffer.skip_lines(memchr::memchr_iter(b'\n', passed).count() as u64);
        }
    }

    /// Returns the framer for the chunks that follow, once one can be built. Other threads may use
    /// clones of it.
    pub(crate) fn framer(&self) -> Option<&Framer> {
        self.framer.as_ref()
    }

    /// Returns a number that changes whenever [`framer`](Self::framer) returns another framer.
    pub(crate) fn framer_version(&self) -> u64 {
        self.framer_number
    }

    /// Passes unframed bytes to the reader.
    fn feed_reader(&mut self, bytes: &[u8], sink: &mut dyn EventSink) -> Result<(), ImportError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.buffer.push(bytes);
        // Only a complete line is new evidence of the format.
        let may_have_records = self.reader.is_some()
            || memchr::memchr(b'\n', bytes).is_some()
            || self.buffer.bytes().len() >= SAMPLE_BYTES;
        if may_have_records { self.advance(InputState::Open, sink) } else { Ok(()) }
    }

    /// Reports that no input arrived for a while. A record that looks complete is then taken to be
    /// complete: in a stderr log, only the start of the next record proves it.
    pub fn idle(&mut self) {
        self.with_queue(|importer, queue| importer.idle_to(queue));
    }

    /// Like [`idle`](Self::idle), with a sink.
    pub(crate) fn idle_to(&mut self, sink: &mut dyn EventSink) {
        // The next call returns the error.
        self.pending_error = self.advance(InputState::Idle, sink).err();
    }

    /// Finishes the file. The rest of an incomplete record is counted as cut short.
    ///
    /// # Errors
    ///
    /// See [`feed`](Self::feed).
    pub fn finish_file(&mut self) -> Result<(), ImportError> {
        self.with_queue(|importer, queue| importer.finish_file_to(queue))
    }

    /// Like [`finish_file`](Self::finish_file), with a sink.
    pub(crate) fn finish_file_to(&mut self, sink: &mut dyn EventSink) -> Result<(), ImportError> {
        let result = self.advance(InputState::End, sink);
        self.framer = None;
        self.buffer.start_file();
        self.previous_reader = self.reader.take().or(self.previous_reader.take());
        result
    }

    /// Finishes the input. Actions that are still open are emitted without an outcome.
    ///
    /// # Errors
    ///
    /// See [`feed`](Self::feed); or the log is translated, so its statements cannot be recognized.
    pub fn finish(&mut self) -> Result<(), ImportError> {
        self.with_queue(|importer, queue| importer.finish_to(queue))
    }

    /// Like [`finish`](Self::finish), with a sink.
    pub(crate) fn finish_to(&mut self, sink: &mut dyn EventSink) -> Result<(), ImportError> {
        self.finish_file_to(sink)?;
        let position = LogPosition { file: &self.file, line: self.buffer.line() };
        self.tracker.finish(&mut self.summary, position, sink);
        self.check_language(0)
    }

    /// Removes and returns the next event; `None` until there is more input.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.queue.events.pop_front()
    }

    /// Returns the latest time seen in the log.
    pub fn watermark(&self) -> Option<Timestamp> {
        self.tracker.watermark()
    }

    /// Returns the statistics of the input so far.
    pub fn summary(&self) -> &ImportSummary {
        &self.summary
    }

    /// Reads as many records as are complete.
    fn advance(&mut self, state: InputState, sink: &mut dyn EventSink) -> Result<(), ImportError> {
        if let Some(error) = self.pending_error.take() {
            return Err(error);
        }
        if self.reader.is_none() && !self.detect(state)? {
            return Ok(());
        }
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let result = self.read(&mut reader, state, sink);
        describe_reader(&reader, &mut self.summary);
        if self.framer.is_none() || self.framed_version != reader.version() {
            self.framer = reader.framer(&self.clock);
            self.framer_number += 1;
            self.framed_version = reader.version();
        }
        self.reader = Some(reader);
        result
    }

    fn read(
        &mut self,
        reader: &mut LogReader,
        state: InputState,
        sink: &mut dyn EventSink,
    ) -> Result<(), ImportError> {
        loop {
            let input = self.buffer.bytes();
            let position = LogPosition { file: &self.file, line: self.buffer.line_at(0) };
            self.scratch.clear();
            let len = match reader.step(input, state, &self.tracker, &mut self.scratch) {
                InputItem::More => return Ok(()),
                InputItem::Skip { len } => len,
                InputItem::Junk { len, reason } => {
                    self.summary.add_problem(reason, position, &input[..len]);
                    len
                }
                InputItem::Record { len } => {
                    self.handle_record(reader, len, sink);
                    len
                }
            };
            self.buffer.consume(len);
            reader.consumed(len);
            self.check_language(LANGUAGE_RECORDS)?;
        }
    }

    /// Passes the record in the first `len` bytes to its session.
    fn handle_record(&mut self, reader: &mut LogReader, len: usize, sink: &mut dyn EventSink) {
        let input = &self.buffer.bytes()[..len];
        let position = LogPosition { file: &self.file, line: self.buffer.line_at(0) };
        let intruders = reader.foreign_lines();
        if intruders.count > 0 {
            let line = self.buffer.line_at(intruders.first);
            self.summary.add_problem(
                ProblemReason::NotARecord,
                LogPosition { line, ..position },
                &input[intruders.first..],
            );
            self.summary.add_repeats(ProblemReason::NotARecord, intruders.count - 1);
        }
        match reader.frame(input, &mut self.clock, &mut self.scratch) {
            Ok((frame, fields)) => {
                let record = LogRecord::new((&frame, &fields), input, &self.scratch, false);
                let memo = &mut SessionMemo::default();
                self.tracker.handle_record(&record, false, memo, &mut self.summary, position, sink);
                if self.translated.is_none() && self.tracker.seems_translated() {
                    self.translated = Some((position.line, shorten(input)));
                }
                count_assumption(frame.assumption, position, input, &mut self.summary);
            }
            Err(reason) => {
                self.summary.add_problem(reason, position, input);
                count_assumption(self.clock.take_assumption(), position, input, &mut self.summary);
                if reason == ProblemReason::BadSeverity && self.translated.is_none() {
                    self.translated = Some((position.line, shorten(input)));
                }
            }
        }
    }

    /// Fails if a log of at least `records_min` records has messages or severities in another
    /// language and none in English.
    fn check_language(&self, records_min: u64) -> Result<(), ImportError> {
        let Some((line, excerpt)) = &self.translated else { return Ok(()) };
        let records = self.summary.records;
        let rejected = self.summary.problem_count(ProblemReason::BadSeverity);
        let is_foreign = self.tracker.seems_translated() || records == 0 && rejected > 0;
        if !is_foreign || records + rejected < records_min {
            return Ok(());
        }
        let (file, line, excerpt) = (self.file.clone(), *line, excerpt.clone());
        let language = Language::detect_in_line(excerpt.as_bytes());
        Err(ImportError::Translated { file, line, excerpt, language })
    }

    /// Detects the format of the file; returns false while there is too little data.
    fn detect(&mut self, state: InputState) -> Result<bool, ImportError> {
        let position = LogPosition { file: &self.file, line: self.buffer.line_at(0) };
        if state != InputState::End && b"\xef\xbb\xbf".starts_with(self.buffer.bytes()) {
            return Ok(false);
        }
        if self.buffer.bytes().starts_with(b"\xef\xbb\xbf") {
            self.buffer.consume(3);
        }
        let detected = self.detector.reader(self.buffer.bytes(), state, position);
        self.reader = match (detected, &self.previous_reader) {
            (Ok(Some(reader)), _) => Some(reader),
            (Ok(None), _) => None,
            (Err(error @ ImportError::UncertainPrefix { .. }), _) => return Err(error),
            (Err(_), Some(before)) => Some(before.restarted()),
            (Err(error), None) => return Err(error),
        };
        Ok(self.reader.is_some())
    }
}

/// Chunk size for processing input, so that a huge slice is not copied at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Number of records after which a log with messages in another language, and none in English, is
/// rejected.
const LANGUAGE_RECORDS: u64 = 1000;

fn count_assumption(
    assumption: Option<Assumption>,
    position: LogPosition<'_>,
    excerpt: &[u8],
    summary: &mut ImportSummary,
) {
    let reason = match assumption {
        None => return,
        Some(Assumption::Unknown) => ProblemReason::UnknownZone,
        Some(Assumption::Ambiguous) => ProblemReason::AmbiguousZone,
    };
    summary.add_problem(reason, position, excerpt);
}

/// Records format and prefix in the summary.
fn describe_reader(reader: &LogReader, summary: &mut ImportSummary) {
    summary.format = Some(match reader {
        LogReader::Stderr(_) => ServerLogFormat::Stderr,
        LogReader::Csv(_) => ServerLogFormat::Csv,
        LogReader::Json(_) => ServerLogFormat::Json,
    });
    if let LogReader::Stderr(reader) = reader {
        let prefix = reader.prefix();
        if summary.prefix.as_ref().is_some_and(|known| known.text == prefix.source()) {
            return;
        }
        let origin = if reader.is_guessed() { PrefixOrigin::Guessed } else { PrefixOrigin::Given };
        let confidence = prefix.confidence().cloned();
        summary.prefix =
            Some(LogLinePrefix { text: prefix.source().to_owned(), origin, confidence });
        summary.facts.sessions_merged |= !prefix.identifies_sessions();
    }
}
