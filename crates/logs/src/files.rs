//! The loop that reads files and pipes into an [`Importer`].

use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use howdah_traffic::{Event, EventRef};

use crate::{
    crew::Crew,
    error::ImportError,
    importer::Importer,
    input::{Got, Input, Inputs, LogFile, Plan, PlanError},
    intern::Interner,
    options::{Options, OptionsError},
    summary::{Reason, Summary},
    tracker::EventSink,
};

/// How far [`read_files`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Bytes of all files together; `None` if one is a pipe.
    pub bytes_total: Option<u64>,
}

/// Why [`read_files`] stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadFilesError<E> {
    /// The options cannot be acted on.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The input is no log.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// What was named cannot be read, or not be told apart.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// None of the files holds a byte.
    #[error("{} is empty", path.display())]
    Empty {
        /// The first of the files.
        path: PathBuf,
    },
    /// Reading failed on the way. Events up to here were handed on.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `progress` wanted no more. Events up to here were handed on.
    #[error("stopped before the end")]
    Stopped,
    /// The taker of events refused one.
    #[error("cannot take an event")]
    Sink(#[source] E),
}

/// Reads logs one after another and hands their events to `sink`; `-` is standard input.
///
/// A path may be a file, a pipe, a directory of logs, or a pattern such as `log/*.csv`. Archives are
/// unpacked, and what services wrap around logs is taken off. Several files are read in the order of the
/// first time in each, and the same log in two formats once; [`Summary::inputs`] tells what was done.
/// With a pipe among them they are read as given. From a pipe, events are handed on as soon as nothing
/// more comes, and end of file ends the input. `progress` is called after each piece of up to 256 KiB,
/// and ten times a second while a pipe is silent; it can end the reading.
///
/// # Errors
///
/// A file cannot be read or is no log, all are empty, or `sink` failed. Files are opened before any is
/// read, so that a mistyped name is found at once. Bad records are no errors: see the summary.
pub fn read_files<E>(
    paths: &[PathBuf],
    options: Options,
    progress: impl FnMut(Progress) -> ControlFlow<()>,
    mut sink: impl FnMut(Event) -> Result<(), E>,
) -> Result<Summary, ReadFilesError<E>> {
    let mut interner = Interner::default();
    visit_files(paths, options, progress, |event| {
        sink(event.to_event(&mut |text| interner.text(text)))
    })
}

/// The same as [`read_files`] for a `sink` that only looks at the events: nothing is copied for it.
///
/// # Errors
///
/// As for [`read_files`].
pub fn visit_files<E>(
    paths: &[PathBuf],
    options: Options,
    progress: impl FnMut(Progress) -> ControlFlow<()>,
    sink: impl FnMut(&EventRef<'_>) -> Result<(), E>,
) -> Result<Summary, ReadFilesError<E>> {
    options.check()?;
    let plan = Plan::make(paths, &options)?;
    let given_prefix = options.prefix.clone();
    let record_bytes_max = options.max_record_bytes;
    // A prefix without a time is right for syslog, which is only known when its file is read.
    let importer = Importer::new(Options { prefix: None, ..options })?;
    let inputs = Inputs { order: plan.order, files: Vec::new(), left_out: plan.left_out };
    let bytes_total = plan.bytes_total;
    let crew = Crew::new();
    let mut reading = Reading {
        importer,
        crew,
        inputs,
        given_prefix,
        bytes_before: 0,
        bytes_total,
        progress,
        taker: Taker { sink, refusal: None },
    };
    for path in &plan.files {
        let open = |source| PlanError::Open { path: path.clone(), source };
        let input = Input::open(path, record_bytes_max).map_err(open)?;
        reading.file(path, input)?;
    }
    let Reading { mut importer, inputs, mut taker, .. } = reading;
    if importer.summary().bytes == 0 {
        let path = plan.files.first().cloned().unwrap_or_default();
        let damaged = importer.summary().problems.iter().find(|p| p.reason == Reason::Damaged);
        let Some(sample) = damaged.and_then(|problem| problem.samples.first()) else {
            return Err(ReadFilesError::Empty { path });
        };
        let why = io::Error::new(io::ErrorKind::InvalidData, sample.excerpt.clone());
        return Err(ReadFilesError::Read { path: PathBuf::from(&sample.file), source: why });
    }
    let result = importer.finish_to(&mut taker);
    taker.check()?;
    result?;
    let mut summary = importer.summary().clone();
    summary.inputs = inputs;
    Ok(summary)
}

/// Files on their way into an importer.
struct Reading<P, S, E> {
    importer: Importer,
    crew: Crew,
    inputs: Inputs,
    given_prefix: Option<String>,
    /// Bytes of the files that were read to their end.
    bytes_before: u64,
    bytes_total: Option<u64>,
    progress: P,
    taker: Taker<S, E>,
}

/// Hands events on until one is refused.
struct Taker<S, E> {
    sink: S,
    refusal: Option<E>,
}

impl<S: FnMut(&EventRef<'_>) -> Result<(), E>, E> EventSink for Taker<S, E> {
    fn event(&mut self, event: &EventRef<'_>) {
        if self.refusal.is_none() {
            self.refusal = (self.sink)(event).err();
        }
    }
}

impl<S, E> Taker<S, E> {
    /// Fails if an event was refused.
    fn check(&mut self) -> Result<(), ReadFilesError<E>> {
        self.refusal.take().map_or(Ok(()), |refusal| Err(ReadFilesError::Sink(refusal)))
    }
}

impl<P, S, E> Reading<P, S, E>
where
    P: FnMut(Progress) -> ControlFlow<()>,
    S: FnMut(&EventRef<'_>) -> Result<(), E>,
{
    /// Reads one file to its end.
    fn file(&mut self, path: &Path, mut input: Input) -> Result<(), ReadFilesError<E>> {
        self.importer.begin_file(&path.to_string_lossy());
        let mut is_begun = false;
        // Of a pipe nobody knows when it will go on, so nothing of it is kept waiting.
        let is_file = path.is_file();
        let unreadable = |source| ReadFilesError::Read { path: path.to_owned(), source };
        loop {
            let may_leave = is_file && is_begun && self.crew.can_read(&self.importer);
            let result = if may_leave && let Some(stretch) = input.stretch() {
                self.crew.feed_stretch(&mut self.importer, stretch, &mut self.taker)
            } else {
                let got = match input.read() {
                    Ok(got) => got,
                    Err(source) => {
                        self.crew.flush(&mut self.importer, &mut self.taker)?;
                        self.taker.check()?;
                        return Err(unreadable(source));
                    }
                };
                for met in input.take_problems() {
                    self.importer.note(&met);
                }
                match got {
                    Got::End => break,
                    Got::Silence => {
                        self.importer.idle_to(&mut self.taker);
                        Ok(())
                    }
                    Got::Bytes => {
                        if !std::mem::replace(&mut is_begun, true) {
                            self.settle_prefix(&input)?;
                        }
                        self.take(&mut input, is_file)
                    }
                }
            };
            self.taker.check()?;
            result?;
            self.crew.take_failure().map_or(Ok(()), |source| Err(unreadable(source)))?;
            let bytes = self.bytes_before + input.read_bytes();
            if (self.progress)(Progress { bytes, bytes_total: self.bytes_total }).is_break() {
                let flushed = self.crew.flush(&mut self.importer, &mut self.taker);
                let ended = flushed.and_then(|()| self.importer.finish_to(&mut self.taker));
                self.taker.check()?;
                ended?;
                return Err(ReadFilesError::Stopped);
            }
        }
        self.bytes_before += input.read_bytes();
        self.inputs.files.push(LogFile {
            name: path.to_string_lossy().into_owned(),
            compression: input.compression(),
            wrappings: input.wrappings().to_vec(),
        });
        let flushed = self.crew.flush(&mut self.importer, &mut self.taker);
        let result = flushed.and_then(|()| self.importer.end_file_to(&mut self.taker));
        self.taker.check()?;
        result?;
        self.crew.take_failure().map_or(Ok(()), |source| Err(unreadable(source)))
    }

    /// Takes what a read brought.
    fn take(&mut self, input: &mut Input, is_file: bool) -> Result<(), ImportError> {
        let Self { crew, importer, taker, .. } = self;
        match is_file {
            false => importer.feed_to(input.bytes(), taker),
            true => match input.buffer() {
                Some(buffer) => crew.feed_buffer(importer, buffer, taker),
                None => crew.feed(importer, input.bytes(), taker),
            },
        }
    }

    /// Expects the prefix that was given, behind what was put in front of it.
    fn settle_prefix(&mut self, input: &Input) -> Result<(), OptionsError> {
        let Some(given) = &self.given_prefix else { return Ok(()) };
        let added = input.added_prefix().unwrap_or_default();
        self.importer.expect_prefix(&format!("{added}{given}"))
    }
}
