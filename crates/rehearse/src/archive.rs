//! [`RehearsalArchive`]: finds rehearsals, finished or not, in a folder and reads their reports.
//!
//! The folder may come from a build server or a colleague, so its content is not trusted. Folders
//! are opened one by one, relative to their parent and without following symbolic links, so no path
//! leads outside. Numbers of folders, depth and sizes of files are limited.

mod folder;

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use howdah_report::rehearsal::{
    RehearsalVerdict,
    html::{IndexOutcome, IndexRow, RehearsalIndex, version_change},
};
use howdah_traffic::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

use self::folder::{ArchiveFolder, FileStamp};
use crate::{
    journal,
    rehearsal::{CAPTURE, RUNS},
};

/// Maximum depth of subfolders below the root.
const DEPTH_MAX: usize = 4;

/// Maximum number of folder entries that a scan reads.
const ENTRIES_MAX: usize = 50_000;

/// Maximum number of rehearsals in the list.
const REHEARSALS_MAX: usize = 1_000;

/// Maximum size of a file that is read or served. The report of an application with thousands of
/// different statements is about 25 MB long.
const FILE_MAX: u64 = 64 << 20;

/// A file of a rehearsal that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportFile {
    /// Name of the file in the output folder.
    pub(crate) name: &'static str,
    /// Name of the file's format in the index.
    pub(crate) label: &'static str,
    pub(crate) content_type: &'static str,
}

/// The report for browsers. All other files are downloads.
pub(crate) const HTML_REPORT: ReportFile =
    ReportFile { name: "report.html", label: "HTML", content_type: "text/html; charset=utf-8" };

/// The JSON report, from which the list is made.
const JSON_REPORT: ReportFile =
    ReportFile { name: "report.json", label: "JSON", content_type: "application/json" };

/// The only files that are served.
const REPORT_FILES: [ReportFile; 5] = [
    HTML_REPORT,
    JSON_REPORT,
    ReportFile {
        name: "report.md",
        label: "Markdown",
        content_type: "text/markdown; charset=utf-8",
    },
    ReportFile { name: "report.xml", label: "JUnit", content_type: "application/xml" },
    ReportFile { name: "report.txt", label: "text", content_type: "text/plain; charset=utf-8" },
];

impl ReportFile {
    /// Returns the file with a name, if it is served.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        REPORT_FILES.into_iter().find(|file| file.name == name)
    }
}

/// The rehearsals, finished or not, in a folder and its subfolders. The folder itself may be that
/// of a rehearsal.
#[derive(Debug)]
pub(crate) struct RehearsalArchive {
    root: PathBuf,
    /// Rows made from `report.json` files, with the stamps that these files had then.
    cache: Mutex<HashMap<PathBuf, (FileStamp, ReportRow)>>,
}

/// A rehearsal that a scan found.
#[derive(Clone, Debug)]
pub(crate) struct FoundRehearsal {
    /// Path of its folder, relative to the root; empty for the root itself.
    path: PathBuf,
    row: ReportRow,
    files: Vec<ReportFile>,
}

/// The row of a rehearsal in the list.
#[derive(Clone, Debug)]
struct ReportRow {
    outcome: IndexOutcome,
    summary: String,
    started: Option<Timestamp>,
    database: String,
    versions: String,
    slower: Option<u64>,
}

impl ReportRow {
    fn without_report(outcome: IndexOutcome, summary: impl Into<String>) -> Self {
        Self {
            outcome,
            summary: summary.into(),
            started: None,
            database: String::new(),
            versions: String::new(),
            slower: None,
        }
    }
}

impl RehearsalArchive {
    /// Creates an archive of the folder `root`, without searching it yet.
    ///
    /// # Errors
    ///
    /// The folder cannot be opened.
    pub(crate) fn open(root: PathBuf) -> io::Result<Self> {
        ArchiveFolder::open(&root)?;
        Ok(Self { root, cache: Mutex::default() })
    }

    /// Lists the rehearsals, the newest first, with a note if a limit may have left some out.
    /// `link` makes the URL of a file in a rehearsal's folder.
    ///
    /// # Errors
    ///
    /// The root can no longer be opened. Subfolders that cannot be read are left out.
    pub(crate) fn index(
        &self,
        link: fn(&Path, ReportFile) -> String,
    ) -> io::Result<RehearsalIndex> {
        let mut scan = ArchiveScan::new(&self.cache);
        scan.visit(&ArchiveFolder::open(&self.root)?, Path::new(""), 0);
        let mut notes = Vec::new();
        if scan.is_truncated {
            notes.push(format!(
                "The folder is large or deep: only {REHEARSALS_MAX} rehearsals, {ENTRIES_MAX} \
                 files and folders, and {DEPTH_MAX} levels of folders are searched."
            ));
        }
        let mut found = scan.found;
        let known = |path: &PathBuf| found.iter().any(|found| found.path == *path);
        self.cache.lock().retain(|path, _| known(path));
        // Rehearsals without a time come last, in the order of their names.
        found.sort_by(|one, other| {
            other.row.started.cmp(&one.row.started).then_with(|| one.path.cmp(&other.path))
        });
        let rows = found.into_iter().map(|found| found.index_row(link)).collect();
        let folder = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        Ok(RehearsalIndex { folder: folder.display().to_string(), rows, notes })
    }

    /// Reads a file of the rehearsal in the folder `path`, relative to the root. A path with `..`
    /// is refused.
    ///
    /// # Errors
    ///
    /// The folder cannot be opened, has no rehearsal or would not be searched by [`Self::index`],
    /// or the file cannot be read, is not a regular file, or is too large.
    pub(crate) fn read(&self, path: &Path, file: ReportFile) -> io::Result<Vec<u8>> {
        let mut folder = ArchiveFolder::open(&self.root)?;
        let mut depth = 0;
        for component in path.components() {
            depth += 1;
            let std::path::Component::Normal(name) = component else {
                return Err(io::ErrorKind::NotFound.into());
            };
            if depth > DEPTH_MAX || !is_searched(name, is_rehearsal(&folder)) {
                return Err(io::ErrorKind::NotFound.into());
            }
            folder = folder.subfolder(name)?;
        }
        if !is_rehearsal(&folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        folder.read(file.name, FILE_MAX)
    }
}

/// Whether a folder has the journal or the report of a rehearsal.
fn is_rehearsal(folder: &ArchiveFolder) -> bool {
    [journal::FILE, JSON_REPORT.name].iter().any(|name| folder.stamp(name).is_some())
}

/// Whether a subfolder may contain rehearsals: it is not hidden, and is not the folder of the runs
/// or the capture of a rehearsal.
fn is_searched(name: &OsStr, is_in_rehearsal: bool) -> bool {
    let is_own = is_in_rehearsal && [RUNS, CAPTURE].iter().any(|own| name == *own);
    let is_hidden = name.as_encoded_bytes().starts_with(b".");
    !is_own && !is_hidden
}

/// A search for rehearsals.
struct ArchiveScan<'a> {
    cache: &'a Mutex<HashMap<PathBuf, (FileStamp, ReportRow)>>,
    entries: usize,
    is_truncated: bool,
    found: Vec<FoundRehearsal>,
}

impl<'a> ArchiveScan<'a> {
    fn new(cache: &'a Mutex<HashMap<PathBuf, (FileStamp, ReportRow)>>) -> Self {
        Self { cache, entries: 0, is_truncated: false, found: Vec::new() }
    }

    fn visit(&mut self, folder: &ArchiveFolder, path: &Path, depth: usize) {
        let is_rehearsal = is_rehearsal(folder);
        if is_rehearsal {
            if self.found.len() == REHEARSALS_MAX {
                self.is_truncated = true;
                return;
            }
            self.found.push(self.rehearsal(folder, path));
        }
        // A folder that cannot be listed is skipped, like one that does not exist.
        let left = ENTRIES_MAX - self.entries;
        let Ok(listing) = folder.subfolders(left) else { return };
        self.entries += listing.entries;
        self.is_truncated |= listing.is_truncated;
        for name in listing.names.iter().filter(|name| is_searched(name, is_rehearsal)) {
            if depth == DEPTH_MAX {
                self.is_truncated = true;
                return;
            }
            if let Ok(subfolder) = folder.subfolder(name) {
                self.visit(&subfolder, &path.join(name), depth + 1);
            }
        }
    }

    fn rehearsal(&self, folder: &ArchiveFolder, path: &Path) -> FoundRehearsal {
        let row = match folder.stamp(JSON_REPORT.name) {
            Some(stamp) => self.report_row(folder, path, stamp),
            None => journal_row(folder),
        };
        let exists = |file: &ReportFile| folder.stamp(file.name).is_some();
        let files = REPORT_FILES.into_iter().filter(exists).collect();
        FoundRehearsal { path: path.to_owned(), row, files }
    }

    /// Returns the row of a report, from the cache if the file has not changed.
    fn report_row(&self, folder: &ArchiveFolder, path: &Path, stamp: FileStamp) -> ReportRow {
        if let Some((cached, row)) = self.cache.lock().get(path)
            && *cached == stamp
        {
            return row.clone();
        }
        let row = read_report(folder);
        self.cache.lock().insert(path.to_owned(), (stamp, row.clone()));
        row
    }
}

impl FoundRehearsal {
    fn index_row(self, link: fn(&Path, ReportFile) -> String) -> IndexRow {
        let Self { path, row, files } = self;
        let (html, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| *file == HTML_REPORT);
        IndexRow {
            folder: path.display().to_string(),
            outcome: row.outcome,
            summary: row.summary,
            started: row.started,
            database: row.database,
            versions: row.versions,
            slower: row.slower,
            report: html.first().map(|file| link(&path, *file)),
            downloads: others.iter().map(|file| (file.label, link(&path, *file))).collect(),
        }
    }
}

/// The parts of a `report.json` that the list needs.
#[derive(Deserialize)]
struct ReportParts {
    format: String,
    verdict: String,
    summary: String,
    started: String,
    servers: ReportServers,
    queries: Vec<QueryParts>,
}

#[derive(Deserialize)]
struct ReportServers {
    base: ServerPart,
    change: ServerPart,
}

#[derive(Deserialize)]
struct ServerPart {
    database: String,
    version: String,
}

#[derive(Deserialize)]
struct QueryParts {
    verdict: String,
}

fn read_report(folder: &ArchiveFolder) -> ReportRow {
    let unreadable = |why: String| ReportRow::without_report(IndexOutcome::Unreadable, why);
    let bytes = match folder.read(JSON_REPORT.name, FILE_MAX) {
        Ok(bytes) => bytes,
        Err(error) => return unreadable(format!("{}: {error}", JSON_REPORT.name)),
    };
    let report: ReportParts = match serde_json::from_slice(&bytes) {
        Ok(report) => report,
        Err(error) => return unreadable(format!("{}: {error}", JSON_REPORT.name)),
    };
    let verdicts =
        [RehearsalVerdict::Passed, RehearsalVerdict::Failed, RehearsalVerdict::NotComparable];
    let verdict = verdicts.into_iter().find(|verdict| verdict.as_str() == report.verdict);
    let (Some(verdict), "howdah-rehearsal-report") = (verdict, report.format.as_str()) else {
        return unreadable(format!("{} is not the report of a rehearsal", JSON_REPORT.name));
    };
    let slower = report.queries.iter().filter(|query| query.verdict == "slower").count();
    let ReportServers { base, change } = report.servers;
    ReportRow {
        outcome: IndexOutcome::Verdict(verdict),
        summary: shortened(report.summary),
        started: report.started.parse().ok(),
        versions: shortened(version_change(&base.version, &change.version)),
        database: shortened(base.database),
        slower: Some(slower as u64),
    }
}

/// The parts of a journal that the list needs.
#[derive(Deserialize)]
struct JournalParts {
    format: String,
    started: String,
    runs: Vec<serde::de::IgnoredAny>,
}

fn journal_row(folder: &ArchiveFolder) -> ReportRow {
    let unreadable = |why: String| ReportRow::without_report(IndexOutcome::Unreadable, why);
    let journal = folder
        .read(journal::FILE, FILE_MAX)
        .and_then(|bytes| serde_json::from_slice::<JournalParts>(&bytes).map_err(io::Error::from));
    match journal {
        Ok(journal) if journal.format == journal::FORMAT => {
            let runs = howdah_report::counted(journal.runs.len() as u64, "finished run");
            let row = ReportRow::without_report(IndexOutcome::Unfinished, runs);
            ReportRow { started: journal.started.parse().ok(), ..row }
        }
        Ok(_) => unreadable(format!("{} is not the journal of a rehearsal", journal::FILE)),
        Err(error) => unreadable(format!("{}: {error}", journal::FILE)),
    }
}

/// Maximum length in bytes of a text from a report in the list.
const TEXT_MAX: usize = 500;

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

#[cfg(test)]
mod tests;
