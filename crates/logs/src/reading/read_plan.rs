//! Selects the files to read, and their order.
//!
//! Patterns and directories are expanded to files. A log that exists in two formats is read once.
//! Rotated files are ordered by the first time in each, regardless of their names.
//! [`Inputs`](crate::Inputs) reports these decisions to the user.

mod glob;
mod overlap;
mod sniff;

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use howdah_traffic::Timestamp;

use self::{
    overlap::{LogOverlap, compare},
    sniff::FileSniff,
};
use crate::{
    options::ImportOptions,
    server_log_format::ServerLogFormat,
    summary::{FileOrder, OmittedInput},
};
use howdah_log_input::is_stdin;

/// A plan for reading: the files to read, in reading order, and the decisions to report to the
/// user.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    pub(crate) files: Vec<PathBuf>,
    /// Total size of all files; `None` if one of them is a pipe.
    pub(crate) bytes_total: Option<u64>,
    pub(crate) order: FileOrder,
    pub(crate) left_out: Vec<OmittedInput>,
}

/// The reason why the files to read cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadPlanError {
    /// A file or directory cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Path of the file or directory, or the pattern.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No file matches a pattern.
    #[error("no file matches {}", path.display())]
    NoMatch {
        /// The pattern.
        path: PathBuf,
    },
    /// A directory contains no files, except hidden ones and those in subdirectories.
    #[error("{} contains no files", path.display())]
    EmptyDirectory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A directory contains files that are not logs.
    #[error(
        "{} contains files that are not logs, such as {}: name the log files in it",
        path.display(),
        file.display()
    )]
    NotOnlyLogs {
        /// Path of the directory.
        path: PathBuf,
        /// A file in it that is not a log.
        file: PathBuf,
    },
}

impl ReadPlan {
    /// Plans which files to read. Does not read from pipes.
    ///
    /// # Errors
    ///
    /// A file cannot be opened, no file matches a pattern, or a directory contains no files or
    /// files that are not logs.
    pub(crate) fn new(paths: &[PathBuf], options: &ImportOptions) -> Result<Self, ReadPlanError> {
        let mut candidates = Vec::new();
        for path in paths {
            expand(path, &mut candidates)?;
        }
        let mut plan = Self {
            files: Vec::new(),
            bytes_total: Some(0),
            order: FileOrder::AsGiven,
            left_out: Vec::new(),
        };
        plan.omit_repeated(&mut candidates);
        let are_files = candidates.iter().all(|candidate| candidate.bytes.is_some());
        if are_files && (candidates.len() > 1 || candidates.iter().any(|c| c.directory.is_some())) {
            plan.sniff_files(&mut candidates, options)?;
        }
        plan.bytes_total = candidates.iter().map(|candidate| candidate.bytes).sum();
        plan.files = candidates.into_iter().map(|candidate| candidate.path).collect();
        Ok(plan)
    }

    /// Omits files that were given twice, for example by overlapping patterns.
    fn omit_repeated(&mut self, candidates: &mut Vec<CandidateFile>) {
        let mut seen = HashSet::new();
        candidates.retain(|candidate| {
            let is_new = candidate.bytes.is_none()
                || fs::canonicalize(&candidate.path).is_ok_and(|path| seen.insert(path));
            if !is_new {
                let name = candidate.path.display().to_string();
                self.left_out.push(OmittedInput { instead: name.clone(), name });
            }
            is_new
        });
    }

    /// Reads the beginning of every file to find its format and first time, omits logs that other
    /// files contain too, and orders the rest by time.
    ///
    /// # Errors
    ///
    /// A given directory contains a file that is not a log.
    fn sniff_files(
        &mut self,
        candidates: &mut Vec<CandidateFile>,
        options: &ImportOptions,
    ) -> Result<(), ReadPlanError> {
        for candidate in &mut *candidates {
            // A file that cannot be read is reported when it is to be read, after the events of the
            // files before it.
            let sniff = FileSniff::from_path(&candidate.path, options)
                .unwrap_or_else(|_| FileSniff { is_log: true, ..FileSniff::default() });
            if let (Some(path), true) = (&candidate.directory, !sniff.is_log && !sniff.is_empty) {
                let file = PathBuf::from(candidate.path.file_name().unwrap_or_default());
                return Err(ReadPlanError::NotOnlyLogs { path: path.clone(), file });
            }
            candidate.sniff = sniff;
        }
        self.omit_duplicates(candidates, options);
        self.omit_contained(candidates, options);
        self.order = FileOrder::ByFirstTime;
        // A file without a time stays after the previous one.
        let mut last = Timestamp::from_micros(i64::MIN);
        for candidate in &mut *candidates {
            last = *candidate.sniff.first.get_or_insert(last);
        }
        candidates.sort_by_key(|candidate| candidate.sniff.first);
        Ok(())
    }

    /// Omits a log if the same log exists in a better format.
    fn omit_duplicates(&mut self, candidates: &mut Vec<CandidateFile>, options: &ImportOptions) {
        let rank = |candidate: &CandidateFile| match candidate.sniff.format {
            format if options.format.is_some() && format == options.format => 0,
            Some(ServerLogFormat::Json) => 1,
            Some(ServerLogFormat::Csv) => 2,
            _ => 3,
        };
        let better = |candidate: &CandidateFile| {
            let better = candidates.iter().filter(|other| rank(other) < rank(candidate));
            better.filter(|other| candidate.is_duplicate(other)).min_by_key(|other| rank(other))
        };
        let instead: Vec<_> = candidates
            .iter()
            .map(|candidate| better(candidate).map(|other| other.path.display().to_string()))
            .collect();
        let mut instead = instead.into_iter();
        candidates.retain(|candidate| match instead.next().flatten() {
            Some(instead) => {
                let name = candidate.path.display().to_string();
                self.left_out.push(OmittedInput { name, instead });
                false
            }
            None => true,
        });
    }
    /// Omits logs that equal another log or its beginning, such as the results of `gzip -k`, or of
    /// a rotation that is still copying.
    fn omit_contained(&mut self, candidates: &mut Vec<CandidateFile>, options: &ImportOptions) {
        // Prefers the longest log, and among equals one that is not compressed, or was named first.
        let mut kept: Vec<CandidateFile> = Vec::new();
        for candidate in candidates.drain(..) {
            let overlapping = kept.iter().enumerate().find_map(|(at, other)| {
                let is_suspect =
                    candidate.sniff.first.is_some() && candidate.sniff.first == other.sniff.first;
                // A file that cannot be read is reported when it is to be read.
                let overlap = is_suspect
                    .then(|| compare(&other.path, &candidate.path, options.max_record_bytes))?
                    .unwrap_or(LogOverlap::Differ);
                let is_better = match overlap {
                    LogOverlap::Differ => return None,
                    LogOverlap::Equal => other.sniff.is_packed && !candidate.sniff.is_packed,
                    LogOverlap::FirstEndsEarlier => true,
                    LogOverlap::SecondEndsEarlier => false,
                };
                Some((at, is_better))
            });
            match overlapping {
                None => kept.push(candidate),
                Some((at, is_better)) => {
                    let dropped = if is_better {
                        std::mem::replace(&mut kept[at], candidate)
                    } else {
                        candidate
                    };
                    let name = dropped.path.display().to_string();
                    let instead = kept[at].path.display().to_string();
                    for left in self.left_out.iter_mut().filter(|left| left.instead == name) {
                        left.instead.clone_from(&instead);
                    }
                    self.left_out.push(OmittedInput { name, instead });
                }
            }
        }
        *candidates = kept;
    }
}

/// A file that may be read.
#[derive(Debug)]
struct CandidateFile {
    path: PathBuf,
    /// Size in bytes; `None` for a pipe.
    bytes: Option<u64>,
    /// The given directory that contains the file; `None` if the file itself was given.
    directory: Option<PathBuf>,
    sniff: FileSniff,
}

impl CandidateFile {
    /// Whether two files hold the same log in different formats: they are in one directory and
    /// start at the same time, or less than an hour apart if they have the same base name.
    fn is_duplicate(&self, other: &Self) -> bool {
        let (Some(first), Some(others)) = (self.sniff.first, other.sniff.first) else {
            return false;
        };
        let offset = first.saturating_since(others).max(others.saturating_since(first));
        let are_named_alike = base_name(&self.path) == base_name(&other.path);
        self.path.parent() == other.path.parent()
            && self.sniff.format != other.sniff.format
            && (offset.is_zero()
                || are_named_alike && offset.as_secs() < DUPLICATE_OFFSET_MAX_SECONDS)
    }
}

/// Maximum difference between the start times of duplicate logs, in seconds: the server's own
/// messages may precede the first statement by that much.
const DUPLICATE_OFFSET_MAX_SECONDS: u64 = 3600;

/// Returns a file name without its suffixes for format and compression.
fn base_name(path: &Path) -> String {
    const SUFFIXES: [&str; 7] = ["log", "csv", "json", "gz", "zst", "bz2", "txt"];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').filter(|part| !SUFFIXES.contains(part)).collect::<Vec<_>>().join(".")
}

/// Adds the file at a path, the files in a directory, or those that match a pattern.
fn expand(path: &Path, candidates: &mut Vec<CandidateFile>) -> Result<(), ReadPlanError> {
    if is_stdin(path) {
        let path = path.to_owned();
        candidates.push(CandidateFile {
            path,
            bytes: None,
            directory: None,
            sniff: FileSniff::default(),
        });
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => list_directory(path, candidates),
        Ok(metadata) => add(path.to_owned(), &metadata, None, candidates),
        Err(_) if glob::is_pattern(path) => {
            let open = |source| ReadPlanError::Open { path: path.to_owned(), source };
            let paths = glob::expand(path).map_err(open)?;
            if paths.is_empty() {
                return Err(ReadPlanError::NoMatch { path: path.to_owned() });
            }
            paths.iter().try_for_each(|path| expand(path, candidates))
        }
        Err(source) => Err(ReadPlanError::Open { path: path.to_owned(), source }),
    }
}

fn add(
    path: PathBuf,
    metadata: &fs::Metadata,
    directory: Option<&Path>,
    candidates: &mut Vec<CandidateFile>,
) -> Result<(), ReadPlanError> {
    // A pipe must not be opened twice: its writer would take the first close for the end.
    let bytes = metadata.is_file().then_some(metadata.len());
    if bytes.is_some()
        && let Err(source) = fs::File::open(&path)
    {
        return Err(ReadPlanError::Open { path, source });
    }
    let directory = directory.map(Path::to_owned);
    candidates.push(CandidateFile { path, bytes, directory, sniff: FileSniff::default() });
    Ok(())
}

/// Adds the files of a directory, except those in subdirectories and hidden ones.
fn list_directory(
    directory: &Path,
    candidates: &mut Vec<CandidateFile>,
) -> Result<(), ReadPlanError> {
    let open = |source| ReadPlanError::Open { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(open)? {
        let path = entry.map_err(open)?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !is_hidden && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(ReadPlanError::EmptyDirectory { path: directory.to_owned() });
    }
    for path in paths {
        let metadata = fs::metadata(&path)
            .map_err(|source| ReadPlanError::Open { path: path.clone(), source })?;
        add(path, &metadata, Some(directory), candidates)?;
    }
    Ok(())
}

#[test]
fn base_names_have_no_format_and_compression() {
    for (one, other) in [
        ("postgresql-Mon.csv.gz", "postgresql-Mon.log"),
        ("postgresql.log.1", "postgresql.csv.1.gz"),
        ("a.json", "a.csv"),
    ] {
        assert_eq!(base_name(Path::new(one)), base_name(Path::new(other)));
    }
    assert_ne!(base_name(Path::new("postgresql.log.1")), base_name(Path::new("postgresql.csv.2")));
}
