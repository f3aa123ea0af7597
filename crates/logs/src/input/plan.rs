//! Which files are read, and in what order.
//!
//! Patterns and directories become files; the same log in two formats is read once; rotated files are
//! put in the order of the first time in each, whatever they are called. What was decided is kept in
//! [`Inputs`], for people to see.

mod copies;
mod probe;

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use howdah_traffic::Timestamp;
use serde::Serialize;

use self::{
    copies::{Copies, compare},
    probe::Probe,
};
use super::{Compression, Envelope, glob};
use crate::options::Options;

/// Files in the order of reading.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) files: Vec<PathBuf>,
    /// Bytes of all files together; `None` if one is a pipe.
    pub(crate) bytes_total: Option<u64>,
    pub(crate) order: Order,
    pub(crate) left_out: Vec<LeftOut>,
}

/// What was read, and in what order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inputs {
    /// How the files were put in order.
    pub order: Order,
    /// The files, in the order they were read.
    pub files: Vec<LogFile>,
    /// Files that were named, and not read.
    pub left_out: Vec<LeftOut>,
}

impl Inputs {
    /// Files that are no logs but captures of other tools.
    pub(crate) fn other_captures(&self) -> u64 {
        let lacks = |file: &&LogFile| file.wrappings.iter().any(|it| !it.lacks().is_empty());
        self.files.iter().filter(lacks).count() as u64
    }

    /// What a person should know of them, in lines.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.order == Order::ByFirstTime && self.files.len() > 1 {
            let (first, last) = (&self.files[0].name, &self.files[self.files.len() - 1].name);
            lines.push(format!(
                "{} files in the order of the first time in each: {first} to {last}",
                self.files.len()
            ));
        }
        let mut counts: Vec<(&LogFile, usize)> = Vec::new();
        for file in self.files.iter().filter(|file| !file.is_plain()) {
            match counts.iter_mut().find(|(known, _)| known.is_like(file)) {
                Some((_, count)) => *count += 1,
                None => counts.push((file, 1)),
            }
        }
        for (file, count) in counts {
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            lines.push(format!("{}{others}: {}", file.name, file.layers()));
            for wrapping in &file.wrappings {
                if !wrapping.lacks().is_empty() {
                    lines.push(format!("{} lack {}", wrapping.as_str(), wrapping.lacks()));
                }
            }
        }
        for LeftOut { name, instead } in &self.left_out {
            lines.push(match name == instead {
                true => format!("{name} was named twice and read once"),
                false => format!("{name} was left out: {instead} is the same log"),
            });
        }
        lines
    }
}

impl LogFile {
    fn is_plain(&self) -> bool {
        self.compression.is_none() && self.wrappings.is_empty()
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.compression, &self.wrappings) == (other.compression, &other.wrappings)
    }

    /// What is around the log, from the outside.
    fn layers(&self) -> String {
        let compression = self.compression.map(Compression::as_str);
        let wrappings = self.wrappings.iter().map(|wrapping| wrapping.as_str());
        compression.into_iter().chain(wrappings).collect::<Vec<_>>().join(" around ")
    }
}

/// How files were put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As they were given: there is only one, or a pipe among them.
    #[default]
    AsGiven,
    /// By the first time in each.
    ByFirstTime,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogFile {
    /// Its name, as given or found.
    pub name: String,
    /// What it was packed with.
    pub compression: Option<Compression>,
    /// What was around the log in it, from the outside.
    pub wrappings: Vec<Envelope>,
}

/// A file that was named, and not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The file that holds the same: itself, if it was named twice, the log in another format, or one that
    /// begins with all that is in this one.
    pub instead: String,
}

/// Why there is nothing to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A file or directory cannot be opened: missing, say, or not permitted.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A pattern that nothing fits.
    #[error("no file fits {}", path.display())]
    NoMatch {
        /// The pattern.
        path: PathBuf,
    },
    /// A directory without files.
    #[error("{} holds no files", path.display())]
    EmptyDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that holds other things than logs.
    #[error(
        "{} holds files that are no logs, such as {}: name the log files in it",
        path.display(),
        file.display()
    )]
    NotOnlyLogs {
        /// The directory.
        path: PathBuf,
        /// A file in it that is no log.
        file: PathBuf,
    },
}

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Plan {
    /// Looks at what was named. Of a pipe nothing is read.
    ///
    /// # Errors
    ///
    /// A file cannot be opened, a pattern fits nothing, or a directory does not hold logs only.
    pub(crate) fn make(paths: &[PathBuf], options: &Options) -> Result<Self, PlanError> {
        let mut candidates = Vec::new();
        for path in paths {
            expand(path, &mut candidates)?;
        }
        let mut plan = Self {
            files: Vec::new(),
            bytes_total: Some(0),
            order: Order::AsGiven,
            left_out: Vec::new(),
        };
        plan.drop_repeated(&mut candidates);
        let are_files = candidates.iter().all(|candidate| candidate.bytes.is_some());
        if are_files && (candidates.len() > 1 || candidates.iter().any(|c| c.directory.is_some())) {
            plan.look_into(&mut candidates, options)?;
        }
        plan.bytes_total = candidates.iter().map(|candidate| candidate.bytes).sum();
        plan.files = candidates.into_iter().map(|candidate| candidate.path).collect();
        Ok(plan)
    }

    /// Leaves out files that were named twice, by overlapping patterns for example.
    fn drop_repeated(&mut self, candidates: &mut Vec<Candidate>) {
        let mut seen = HashSet::new();
        candidates.retain(|candidate| {
            let is_new = candidate.bytes.is_none()
                || fs::canonicalize(&candidate.path).is_ok_and(|path| seen.insert(path));
            if !is_new {
                let name = candidate.path.display().to_string();
                self.left_out.push(LeftOut { instead: name.clone(), name });
            }
            is_new
        });
    }

    /// Opens every file for a look, to find its format and first time.
    fn look_into(
        &mut self,
        candidates: &mut Vec<Candidate>,
        options: &Options,
    ) -> Result<(), PlanError> {
        for candidate in &mut *candidates {
            // A file that cannot be read is told when its turn comes: those before it are kept.
            let probe = Probe::of(&candidate.path, options)
                .unwrap_or_else(|_| Probe { is_log: true, ..Probe::default() });
            if let (Some(path), true) = (&candidate.directory, !probe.is_log && !probe.is_empty) {
                let file = PathBuf::from(candidate.path.file_name().unwrap_or_default());
                return Err(PlanError::NotOnlyLogs { path: path.clone(), file });
            }
            candidate.probe = probe;
        }
        self.drop_twins(candidates, options);
        self.drop_copies(candidates, options);
        self.order = Order::ByFirstTime;
        // A file without a time stays behind the one before.
        let mut last = Timestamp::from_micros(i64::MIN);
        for candidate in &mut *candidates {
            last = *candidate.probe.first.get_or_insert(last);
        }
        candidates.sort_by_key(|candidate| candidate.probe.first);
        Ok(())
    }

    /// Leaves out logs that stand beside one of the same server and time in a better format.
    fn drop_twins(&mut self, candidates: &mut Vec<Candidate>, options: &Options) {
        let rank = |candidate: &Candidate| match candidate.probe.format {
            wanted if options.format.is_some() && wanted == options.format => 0,
            Some(crate::Format::Json) => 1,
            Some(crate::Format::Csv) => 2,
            _ => 3,
        };
        let better = |candidate: &Candidate| {
            let better = candidates.iter().filter(|other| rank(other) < rank(candidate));
            better.filter(|other| candidate.is_twin_of(other)).min_by_key(|other| rank(other))
        };
        let instead: Vec<_> = candidates
            .iter()
            .map(|candidate| better(candidate).map(|other| other.path.display().to_string()))
            .collect();
        let mut instead = instead.into_iter();
        candidates.retain(|candidate| match instead.next().flatten() {
            Some(instead) => {
                let name = candidate.path.display().to_string();
                self.left_out.push(LeftOut { name, instead });
                false
            }
            None => true,
        });
    }
    /// Leaves out logs that are the beginning of another, or all of it: what `gzip -k` leaves, or a rotation
    /// that is still copying.
    fn drop_copies(&mut self, candidates: &mut Vec<Candidate>, options: &Options) {
        // The longest comes first, or of equal ones the one that is not packed, or was named first.
        let mut kept: Vec<Candidate> = Vec::new();
        for candidate in candidates.drain(..) {
            let copy = kept.iter().enumerate().find_map(|(at, other)| {
                let is_suspect =
                    candidate.probe.first.is_some() && candidate.probe.first == other.probe.first;
                // A file that cannot be read is told when its turn comes.
                let copies = is_suspect
                    .then(|| compare(&other.path, &candidate.path, options.max_record_bytes))?
                    .unwrap_or(Copies::No);
                let is_better = match copies {
                    Copies::No => return None,
                    Copies::Equal => other.probe.is_packed && !candidate.probe.is_packed,
                    Copies::FirstEndsEarlier => true,
                    Copies::SecondEndsEarlier => false,
                };
                Some((at, is_better))
            });
            match copy {
                None => kept.push(candidate),
                Some((at, is_better)) => {
                    let dropped = match is_better {
                        true => std::mem::replace(&mut kept[at], candidate),
                        false => candidate,
                    };
                    let name = dropped.path.display().to_string();
                    let instead = kept[at].path.display().to_string();
                    for left in self.left_out.iter_mut().filter(|left| left.instead == name) {
                        left.instead.clone_from(&instead);
                    }
                    self.left_out.push(LeftOut { name, instead });
                }
            }
        }
        *candidates = kept;
    }
}

/// A file that may be read.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    /// Its size; `None` for a pipe.
    bytes: Option<u64>,
    /// The directory that was named, if not the file itself.
    directory: Option<PathBuf>,
    probe: Probe,
}

impl Candidate {
    /// Whether it is the same log in another format: beside it, and begun together. One of the same
    /// name may have begun a little earlier or later.
    fn is_twin_of(&self, other: &Self) -> bool {
        let (Some(first), Some(others)) = (self.probe.first, other.probe.first) else {
            return false;
        };
        let apart = first.saturating_since(others).max(others.saturating_since(first));
        let are_named_alike = stem(&self.path) == stem(&other.path);
        self.path.parent() == other.path.parent()
            && self.probe.format != other.probe.format
            && (apart.is_zero() || are_named_alike && apart.as_secs() < TWINS_APART_SECONDS)
    }
}

/// The server's own log may begin this long before its first statement.
const TWINS_APART_SECONDS: u64 = 3600;

/// A file's name without what tells its format and packing.
fn stem(path: &Path) -> String {
    const SUFFIXES: [&str; 7] = ["log", "csv", "json", "gz", "zst", "bz2", "txt"];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').filter(|part| !SUFFIXES.contains(part)).collect::<Vec<_>>().join(".")
}

/// Adds the files that a path stands for.
fn expand(path: &Path, candidates: &mut Vec<Candidate>) -> Result<(), PlanError> {
    if is_stdin(path) {
        let path = path.to_owned();
        candidates.push(Candidate { path, bytes: None, directory: None, probe: Probe::default() });
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => list(path, candidates),
        Ok(metadata) => add(path.to_owned(), &metadata, None, candidates),
        Err(_) if glob::is_pattern(path) => {
            let open = |source| PlanError::Open { path: path.to_owned(), source };
            let paths = glob::expand(path).map_err(open)?;
            if paths.is_empty() {
                return Err(PlanError::NoMatch { path: path.to_owned() });
            }
            paths.iter().try_for_each(|path| expand(path, candidates))
        }
        Err(source) => Err(PlanError::Open { path: path.to_owned(), source }),
    }
}

fn add(
    path: PathBuf,
    metadata: &fs::Metadata,
    directory: Option<&Path>,
    candidates: &mut Vec<Candidate>,
) -> Result<(), PlanError> {
    // A pipe is not opened twice: its writer would take the first close for the end.
    let bytes = metadata.is_file().then_some(metadata.len());
    if bytes.is_some()
        && let Err(source) = fs::File::open(&path)
    {
        return Err(PlanError::Open { path, source });
    }
    let directory = directory.map(Path::to_owned);
    candidates.push(Candidate { path, bytes, directory, probe: Probe::default() });
    Ok(())
}

/// Adds the files of a directory, without those of its subdirectories and hidden ones.
fn list(directory: &Path, candidates: &mut Vec<Candidate>) -> Result<(), PlanError> {
    let open = |source| PlanError::Open { path: directory.to_owned(), source };
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
        return Err(PlanError::EmptyDirectory { path: directory.to_owned() });
    }
    for path in paths {
        let metadata =
            fs::metadata(&path).map_err(|source| PlanError::Open { path: path.clone(), source })?;
        add(path, &metadata, Some(directory), candidates)?;
    }
    Ok(())
}

#[test]
fn what_was_read_is_told() {
    let file = |name: &str, compression, wrappings: &[Envelope]| LogFile {
        name: name.to_owned(),
        compression,
        wrappings: wrappings.to_vec(),
    };
    let inputs = Inputs {
        order: Order::ByFirstTime,
        files: vec![
            file("a.gz", Some(Compression::Gzip), &[Envelope::Cri, Envelope::Json]),
            file("b.gz", Some(Compression::Gzip), &[Envelope::Cri, Envelope::Json]),
            file("c", None, &[]),
        ],
        left_out: vec![LeftOut { name: "c.log".to_owned(), instead: "c".to_owned() }],
    };
    let expected = [
        "3 files in the order of the first time in each: a.gz to c",
        "a.gz and 1 more: gzip around a container's log (CRI) around JSON envelopes",
        "c.log was left out: c is the same log",
    ];
    assert_eq!(inputs.lines(), expected);
    let file = file("x", None, &[Envelope::PgreplayGo]);
    let inputs = Inputs { files: vec![file], ..Inputs::default() };
    assert!(inputs.lines()[1].contains("lack durations"));
}

#[test]
fn names_without_format_and_packing() {
    for (one, other) in [
        ("postgresql-Mon.csv.gz", "postgresql-Mon.log"),
        ("postgresql.log.1", "postgresql.csv.1.gz"),
        ("a.json", "a.csv"),
    ] {
        assert_eq!(stem(Path::new(one)), stem(Path::new(other)));
    }
    assert_ne!(stem(Path::new("postgresql.log.1")), stem(Path::new("postgresql.csv.2")));
}
