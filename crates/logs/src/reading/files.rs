//! Reads files and pipes, one after another, into an [`Importer`].

use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use howdah_log_input::{LogInput, ReadResult};
use howdah_traffic::{Event, EventRef};

use super::{
    framing_threads::FramingThreads,
    read_plan::{ReadPlan, ReadPlanError},
};
use crate::{
    collections::intern::Interner,
    error::{ImportError, OptionsError},
    importer::Importer,
    options::ImportOptions,
    summary::{ImportSummary, Inputs, LogFile, ProblemReason},
    tracker::EventSink,
};

/// Progress of [`read_files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    /// Bytes read from the files so far, before unpacking.
    pub bytes: u64,
    /// Total size of all files; `None` if one of them is a pipe.
    pub bytes_total: Option<u64>,
}

/// The reason why [`read_files`] failed or was stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFilesError<E> {
    /// The options are not usable.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The input cannot be imported, for example because it is not a log.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A path cannot be opened or matches no file, or a directory contains no files or files that
    /// are not logs.
    #[error(transparent)]
    Plan(#[from] ReadPlanError),
    /// All files are empty after their compression and envelopes were removed.
    #[error("{} is empty", path.display())]
    Empty {
        /// The first of the files.
        path: PathBuf,
    },
    /// Reading a file failed, or all files are empty and one is damaged. The events before the
    /// failure were passed to the sink.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error, or the decoder's.
        source: io::Error,
    },
    /// `progress` requested a stop. The events before it were passed to the sink.
    #[error("the import was stopped before the end of the logs")]
    Stopped,
    /// The sink failed on an event.
    #[error("cannot process an event of the log")]
    Sink(#[source] E),
}

/// Reads logs one after another and passes their events to `sink`; `-` is standard input.
///
/// A path may be a file, a pipe, a directory of logs, or a pattern such as `log/*.csv`. Archives
/// are unpacked, and envelopes of services are removed. Several files are read in the order of the
/// first time in each, and a log that exists in two formats is read once; [`ImportSummary::inputs`]
/// reports these decisions. If any path is a pipe, all are read in the given order. Events from a
/// pipe are passed on when no more data is available, and end of file ends the input. `progress` is
/// called about every 256 KiB, and ten times a second while a pipe is silent; it can stop the
/// import.
///
/// # Errors
///
/// The options are not usable, a file cannot be read or is not a log, all are empty, `progress`
/// requested a stop, or `sink` failed. All files are opened before the first is read, so a mistyped
/// name is found immediately. Bad records are not errors: see the summary.
pub fn read_files<E>(
    paths: &[PathBuf],
    options: ImportOptions,
    progress: impl FnMut(ReadProgress) -> ControlFlow<()>,
    mut sink: impl FnMut(Event) -> Result<(), E>,
) -> Result<ImportSummary, ReadFilesError<E>> {
    let mut interner = Interner::default();
    visit_files(paths, options, progress, |event| {
        sink(event.to_event(&mut |text| interner.text(text)))
    })
}

/// Like [`read_files`], but `sink` borrows the events, so that nothing is copied.
///
/// # Errors
///
/// See [`read_files`].
pub fn visit_files<E>(
    paths: &[PathBuf],
    options: ImportOptions,
    progress: impl FnMut(ReadProgress) -> ControlFlow<()>,
    sink: impl FnMut(&EventRef<'_>) -> Result<(), E>,
) -> Result<ImportSummary, ReadFilesError<E>> {
    options.check()?;
    let plan = ReadPlan::new(paths, &options)?;
    let given_prefix = options.prefix.clone();
    let record_bytes_max = options.max_record_bytes;
    // A prefix without a time is valid for syslog, and only the file's contents show whether it is
    // syslog.
    let importer = Importer::new(ImportOptions { prefix: None, ..options })?;
    let inputs = Inputs { order: plan.order, files: Vec::new(), left_out: plan.left_out };
    let bytes_total = plan.bytes_total;
    let threads = FramingThreads::new();
    let mut reading = FileImport {
        importer,
        threads,
        inputs,
        given_prefix,
        bytes_before: 0,
        bytes_total,
        progress,
        sink: FallibleSink { sink, error: None },
    };
    for path in &plan.files {
        let open = |source| ReadPlanError::Open { path: path.clone(), source };
        let input = LogInput::open(path, record_bytes_max).map_err(open)?;
        reading.read_file(path, input)?;
    }
    let FileImport { mut importer, inputs, mut sink, .. } = reading;
    if importer.summary().bytes == 0 {
        let path = plan.files.first().cloned().unwrap_or_default();
        let damaged =
            importer.summary().problems.iter().find(|p| p.reason == ProblemReason::Damaged);
        let Some(sample) = damaged.and_then(|problem| problem.samples.first()) else {
            return Err(ReadFilesError::Empty { path });
        };
        let why = io::Error::new(io::ErrorKind::InvalidData, sample.excerpt.clone());
        return Err(ReadFilesError::Read { path: PathBuf::from(&sample.file), source: why });
    }
    let result = importer.finish_to(&mut sink);
    sink.take_error()?;
    result?;
    let mut summary = importer.summary().clone();
    summary.inputs = inputs;
    Ok(summary)
}

/// An import of files in progress.
struct FileImport<P, S, E> {
    importer: Importer,
    threads: FramingThreads,
    inputs: Inputs,
    given_prefix: Option<String>,
    /// Total size of the files already read to their end.
    bytes_before: u64,
    bytes_total: Option<u64>,
    progress: P,
    sink: FallibleSink<S, E>,
}

/// A sink that passes events to a fallible function until it fails.
struct FallibleSink<S, E> {
    sink: S,
    error: Option<E>,
}

impl<S: FnMut(&EventRef<'_>) -> Result<(), E>, E> EventSink for FallibleSink<S, E> {
    fn event(&mut self, event: &EventRef<'_>) {
        if self.error.is_none() {
            self.error = (self.sink)(event).err();
        }
    }
}

impl<S, E> FallibleSink<S, E> {
    /// Returns the error of the function, if it failed.
    fn take_error(&mut self) -> Result<(), ReadFilesError<E>> {
        self.error.take().map_or(Ok(()), |refusal| Err(ReadFilesError::Sink(refusal)))
    }
}

impl<P, S, E> FileImport<P, S, E>
where
    P: FnMut(ReadProgress) -> ControlFlow<()>,
    S: FnMut(&EventRef<'_>) -> Result<(), E>,
{
    /// Reads one file to its end.
    fn read_file(&mut self, path: &Path, mut input: LogInput) -> Result<(), ReadFilesError<E>> {
        self.importer.start_file(&path.to_string_lossy());
        let mut is_started = false;
        // A pipe may stay silent for any length of time, so none of its data is held back.
        let is_file = path.is_file();
        let unreadable = |source| ReadFilesError::Read { path: path.to_owned(), source };
        loop {
            // The first chunk is read here, because it shows envelopes and the prefix; the threads
            // can read the rest of a plain file themselves.
            let threads_may_read = is_file && is_started && self.threads.is_active(&self.importer);
            let result = if threads_may_read && let Some(range) = input.next_range() {
                self.threads.feed_range(&mut self.importer, range, &mut self.sink)
            } else {
                let read = match input.read() {
                    Ok(read) => read,
                    Err(source) => {
                        self.threads.flush(&mut self.importer, &mut self.sink)?;
                        self.sink.take_error()?;
                        return Err(unreadable(source));
                    }
                };
                for issue in input.take_problems() {
                    self.importer.count_issue(&issue);
                }
                match read {
                    ReadResult::End => break,
                    ReadResult::Idle => {
                        self.importer.idle_to(&mut self.sink);
                        Ok(())
                    }
                    ReadResult::Bytes => {
                        if !std::mem::replace(&mut is_started, true) {
                            self.apply_given_prefix(&input)?;
                        }
                        self.feed_input(&mut input, is_file)
                    }
                }
            };
            // Report an error of the sink first, because it may have caused the other errors.
            self.sink.take_error()?;
            result?;
            self.threads.take_failure().map_or(Ok(()), |source| Err(unreadable(source)))?;
            let bytes = self.bytes_before + input.read_bytes();
            if (self.progress)(ReadProgress { bytes, bytes_total: self.bytes_total }).is_break() {
                let flushed = self.threads.flush(&mut self.importer, &mut self.sink);
                let result = flushed.and_then(|()| self.importer.finish_to(&mut self.sink));
                self.sink.take_error()?;
                result?;
                return Err(ReadFilesError::Stopped);
            }
        }
        self.bytes_before += input.read_bytes();
        self.inputs.files.push(LogFile {
            name: path.to_string_lossy().into_owned(),
            compression: input.compression(),
            envelopes: input.envelopes().to_vec(),
        });
        let flushed = self.threads.flush(&mut self.importer, &mut self.sink);
        let result = flushed.and_then(|()| self.importer.finish_file_to(&mut self.sink));
        self.sink.take_error()?;
        result?;
        self.threads.take_failure().map_or(Ok(()), |source| Err(unreadable(source)))
    }

    /// Feeds the data of the last read to the importer.
    fn feed_input(&mut self, input: &mut LogInput, is_file: bool) -> Result<(), ImportError> {
        let Self { threads, importer, sink, .. } = self;
        if is_file {
            match input.buffer() {
                Some(buffer) => threads.feed_buffer(importer, buffer, sink),
                None => threads.feed(importer, input.bytes(), sink),
            }
        } else {
            importer.feed_to(input.bytes(), sink)
        }
    }

    /// Makes the importer expect the `log_line_prefix` that the user gave, preceded in each line by
    /// the prefix that an envelope added, if any.
    fn apply_given_prefix(&mut self, input: &LogInput) -> Result<(), OptionsError> {
        let Some(given) = &self.given_prefix else { return Ok(()) };
        match input.added_prefix() {
            None => self.importer.expect_prefix(given),
            Some(added) => {
                let own = without_leading_time(given);
                self.importer.expect_prefix(&format!("{added}{own}"))
            }
        }
    }
}

/// Removes a time from the front of a prefix: `SHOW log_line_prefix` prints it even if a service
/// has removed it from the lines.
fn without_leading_time(prefix: &str) -> &str {
    ["%m ", "%t ", "%n "].iter().find_map(|time| prefix.strip_prefix(time)).unwrap_or(prefix)
}
